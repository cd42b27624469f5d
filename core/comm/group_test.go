package comm

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// onAll runs f for every member of a group over the transports at once and returns their errors.
func onAll(t *testing.T, ts []Transport, opt Options, f func(ctx context.Context, g *Group) error) []error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	ranks := make([]int, len(ts))
	for i := range ranks {
		ranks[i] = i
	}
	groups := make([]*Group, len(ts))
	for i := range ts {
		g, err := NewGroup(ts[i], t.Name(), ranks, opt)
		if err != nil {
			t.Fatal(err)
		}
		groups[i] = g
	}
	errs := make([]error, len(ts))
	var wg sync.WaitGroup
	for i, g := range groups {
		wg.Go(func() { errs[i] = f(ctx, g) })
	}
	wg.Wait()
	for _, g := range groups {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	}
	return errs
}

func noErrors(t *testing.T, errs []error) {
	t.Helper()
	for r, err := range errs {
		if err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
	if t.Failed() {
		t.FailNow()
	}
}

func inProcess(t testing.TB, n int) []Transport {
	ts := NewInProcess(n)
	t.Cleanup(func() {
		for _, x := range ts {
			if err := x.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	return ts
}

// TestPlacementInvariance is the promise of the package: however many ranks hold the lanes, the sum has the bits of the
// single-rank tree.
func TestPlacementInvariance(t *testing.T) {
	const n = 53
	for lanes := 1; lanes <= 40; lanes++ {
		values := laneValues(lanes, n)
		want := treeSumOf(values, Tree{lanes}.Root())
		for ranks := 1; ranks <= lanes; ranks++ {
			if testing.Short() && lanes%3 != 0 {
				continue
			}
			red, err := NewReduction(lanes, Assign(lanes, ranks))
			if err != nil {
				t.Fatal(err)
			}
			t.Run(fmt.Sprintf("%dlanes%dranks", lanes, ranks), func(t *testing.T) {
				ts := inProcess(t, ranks)
				noErrors(t, onAll(t, ts, Options{PieceBytes: 32}, func(ctx context.Context, g *Group) error {
					own := runFold(red.Fold(g.Rank()), values)
					chunks := Chunks(n, g.Size(), 1)
					c := chunks[g.Rank()]
					mine := make([]float32, c.Len())
					if err := g.ReduceScatterTree(ctx, "rs", red, chunks, own, mine); err != nil {
						return err
					}
					if !sameBits(mine, want[c.Lo:c.Hi]) {
						return fmt.Errorf("reduce-scatter differs from the tree")
					}
					if err := g.AllReduceTree(ctx, "ar", red, own, own[0]); err != nil {
						return err
					}
					if !sameBits(own[0], want) {
						return fmt.Errorf("all-reduce differs from the tree: %v", slices.Index(own[0], 0))
					}
					need := max(red.StagingBytes(g.Rank(), chunks, 32), red.StagingBytes(g.Rank(), Chunks(n, ranks, ChunkAlign), 32))
					if g.StagingPeak() != need {
						return fmt.Errorf("staging peak %d, predicted %d", g.StagingPeak(), need)
					}
					return nil
				}))
			})
		}
	}
}

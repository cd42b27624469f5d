package comm

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"starling/sdk/vec"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// onAll runs f for every member of a group over the transports at once and returns their errors.
func onAll(t *testing.T, ts []Transport, opt Options, f func(ctx context.Context, g *Group) error) []error {
	t.Helper()
	return onAllNamed(t, ts, t.Name(), opt, f)
}

func onAllNamed(t *testing.T, ts []Transport, name string, opt Options, f func(ctx context.Context, g *Group) error) []error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	ranks := make([]int, len(ts))
	for i := range ranks {
		ranks[i] = i
	}
	groups := make([]*Group, len(ts))
	for i := range ts {
		g, err := NewGroup(ts[i], name, ranks, opt)
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
		if lanes > 3 {
			ascending := slices.Clone(values[0])
			for _, v := range values[1:] {
				vec.Add(ascending, ascending, v)
			}
			if sameBits(ascending, want) {
				t.Fatalf("%d lanes: another order gives the same bits, so this test shows nothing", lanes)
			}
		}
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

// TestSteadyMemory: after the first one, collectives allocate nothing of the size of what they move.
func TestSteadyMemory(t *testing.T) {
	const n, rounds = 1 << 20, 8
	ts := inProcess(t, 2)
	var before, after runtime.MemStats
	noErrors(t, onAll(t, ts, Options{}, func(ctx context.Context, g *Group) error {
		b := make([]float32, n)
		for i := range rounds + 1 {
			if err := g.AllReduce(ctx, "bucket", b); err != nil {
				return err
			}
			if err := g.Barrier(ctx, "round"); err != nil {
				return err
			}
			if g.Rank() == 0 && i == 0 {
				runtime.ReadMemStats(&before)
			}
		}
		if g.Rank() == 0 {
			runtime.ReadMemStats(&after)
		}
		return nil
	}))
	if got := after.TotalAlloc - before.TotalAlloc; got > 4*n {
		t.Errorf("%d all-reduces of %d bytes allocated %d bytes", rounds, 4*n, got)
	}
}

// TestHandleTimes: collectives of a group run one after another, in the order in which they were started, while the caller
// goes on.
func TestHandleTimes(t *testing.T) {
	ts := inProcess(t, 2)
	noErrors(t, onAll(t, ts, Options{}, func(ctx context.Context, g *Group) error {
		var handles []*Handle
		for i := range 8 {
			handles = append(handles, g.StartAllReduce(fmt.Sprint("bucket ", i), make([]float32, 1000)))
		}
		for i, h := range handles {
			if err := h.Wait(ctx); err != nil {
				return err
			}
			if h.Started().Before(h.Issued()) || h.Finished().Before(h.Started()) {
				return fmt.Errorf("%s: issued %v, started %v, finished %v", h.Label(), h.Issued(), h.Started(), h.Finished())
			}
			if i > 0 && h.Started().Before(handles[i-1].Finished()) {
				return fmt.Errorf("%s started before %s had finished", h.Label(), handles[i-1].Label())
			}
		}
		return nil
	}))
}

// TestReservedStaging: what was reserved is not allocated again, and the peak is what was used.
func TestReservedStaging(t *testing.T) {
	ts := inProcess(t, 3)
	noErrors(t, onAll(t, ts, Options{}, func(ctx context.Context, g *Group) error {
		const n = 300_000
		red, err := NewReduction(3, Assign(3, 3))
		if err != nil {
			return err
		}
		need := red.StagingBytes(g.Rank(), Chunks(n, 3, ChunkAlign), 0)
		g.ReserveStaging(need)
		at := &g.staging[0]
		if err := g.AllReduce(ctx, "bucket", make([]float32, n)); err != nil {
			return err
		}
		if &g.staging[0] != at || g.StagingPeak() != need || need != 4*300_000/3*2 {
			return fmt.Errorf("reserved %d bytes, used %d", need, g.StagingPeak())
		}
		return nil
	}))
}

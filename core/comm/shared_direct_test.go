package comm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"
)

// vectorsIn returns vectors of n elements in memory that the ranks of g's host share, far enough apart that none of them ends
// where another begins.
func vectorsIn(g *Group, count, n int) ([][]float32, func(), error) {
	each := n + 3*ChunkAlign
	m, err := g.Allocate(4 * each * count)
	if err != nil || m == nil {
		return nil, func() {}, fmt.Errorf("memory %v: %w", m, err)
	}
	var out [][]float32
	for i := range count {
		out = append(out, floatsOf(m.Bytes(), i*each, n))
	}
	return out, m.Free, nil
}

// TestInPlaceInvariance: sums of vectors that all ranks of a host have mapped have the bits of the single-rank tree for every
// spread of lanes, into one of the partial sums or elsewhere; so have they where one rank's vectors are its own, and the bytes
// sent are the same as if everything had been copied.
func TestInPlaceInvariance(t *testing.T) {
	const n = 3*strip*ChunkAlign + 7
	for _, c := range []struct{ ranks, lanes int }{{2, 2}, {2, 3}, {2, 21}, {3, 8}, {4, 16}, {6, 6}, {3, 3}} {
		t.Run(fmt.Sprintf("%dlanes%dranks", c.lanes, c.ranks), func(t *testing.T) {
			red, err := NewReduction(c.lanes, Assign(c.lanes, c.ranks))
			if err != nil {
				t.Fatal(err)
			}
			values := laneValues(c.lanes, n)
			want := treeSumOf(values, Tree{c.lanes}.Root())
			ts := sharing(t, c.ranks)
			sent := map[string]int64{}
			for _, lies := range []string{"in place", "one apart", "copied"} {
				before := Sum(ts[0]).PayloadSent
				noErrors(t, onAllNamed(t, ts, lies, Options{}, func(ctx context.Context, g *Group) error {
					folded := runFold(red.Fold(g.Rank()), values)
					own, dst := folded, make([]float32, n)
					mapped := lies == "in place" || lies == "one apart" && g.Rank() != 1
					if mapped {
						vectors, free, err := vectorsIn(g, len(folded)+1, n)
						defer free()
						if err != nil {
							return err
						}
						own, dst = vectors[:len(folded)], vectors[len(folded)]
						for k := range own {
							copy(own[k], folded[k])
						}
					}
					chunks := Chunks(n, g.Size(), 1)
					at := chunks[g.Rank()]
					mine := make([]float32, at.Len())
					rs, err := g.PrepareReduceScatterTree("rs", red, chunks, own, mine)
					if err != nil {
						return err
					}
					apart, err := g.PrepareAllReduceTree("apart", red, own, dst)
					if err != nil {
						return err
					}
					into, err := g.PrepareAllReduceTree("into", red, own, own[0])
					if err != nil {
						return err
					}
					gather, err := g.PrepareAllGather("gather", chunks, dst)
					if err != nil {
						return err
					}
					for _, k := range []*Collective{rs, apart, into, gather} {
						if k.local.places.direct != mapped {
							return fmt.Errorf("%s: its vectors are thought to be mapped: %v", k.h.Label(), k.local.places.direct)
						}
					}
					for range 2 {
						if err := rs.Run(ctx); err != nil {
							return err
						}
						if !sameBits(mine, want[at.Lo:at.Hi]) {
							return fmt.Errorf("the reduce-scatter differs from the tree")
						}
						if err := apart.Run(ctx); err != nil {
							return err
						}
						if !sameBits(dst, want) {
							return fmt.Errorf("the sum into another vector differs from the tree")
						}
						for k := range own {
							if !sameBits(own[k], folded[k]) && (mapped || k > 0) {
								return fmt.Errorf("partial sum %d has changed", k)
							}
						}
						clear(dst[:at.Lo])
						clear(dst[at.Hi:])
						if err := gather.Run(ctx); err != nil {
							return err
						}
						if !sameBits(dst, want) {
							return fmt.Errorf("what was gathered differs from the tree")
						}
					}
					if err := into.Run(ctx); err != nil {
						return err
					}
					if !sameBits(own[0], want) {
						return fmt.Errorf("the sum into a partial sum differs from the tree")
					}
					return nil
				}))
				sent[lies] = Sum(ts[0]).PayloadSent - before
			}
			if sent["in place"] != sent["copied"] || sent["one apart"] != sent["copied"] || sent["copied"] == 0 {
				t.Errorf("bytes sent: %v", sent)
			}
		})
	}
}

// TestBytesInSharedMemory: with aligned ranges a rank sends 2(N-1)/N of a vector in an all-reduce, in place or not, and half of
// that in a reduce-scatter, of small vectors too.
func TestBytesInSharedMemory(t *testing.T) {
	for _, ranks := range []int{2, 4} {
		red, err := NewReduction(2*ranks, Assign(2*ranks, ranks))
		if err != nil {
			t.Fatal(err)
		}
		ts := sharing(t, ranks)
		for _, n := range []int{ranks * ChunkAlign, 1 << 20} {
			for _, mapped := range []bool{false, true} {
				for _, op := range []Op{OpAllReduceTree, OpReduceScatterTree} {
					if op == OpAllReduceTree && n < 1<<20 && ranks > 2 {
						continue // in one round everybody reads everything
					}
					name := fmt.Sprint(op, " ", ranks, " ", n, " ", mapped)
					before := make([]int64, ranks)
					for r, x := range ts {
						before[r] = Sum(x).PayloadSent
					}
					noErrors(t, onAllNamed(t, ts, name, Options{}, func(ctx context.Context, g *Group) error {
						own := make([]float32, n)
						if mapped {
							v, free, err := vectorsIn(g, 1, n)
							defer free()
							if err != nil {
								return err
							}
							own = v[0]
						}
						if op == OpAllReduceTree {
							return g.AllReduceTree(ctx, "x", red, [][]float32{own}, own)
						}
						chunks := Chunks(n, ranks, ChunkAlign)
						c := chunks[g.Rank()]
						return g.ReduceScatterTree(ctx, "x", red, chunks, [][]float32{own}, own[c.Lo:c.Hi])
					}))
					want := int64(4 * n * (ranks - 1) / ranks)
					if op == OpAllReduceTree {
						want *= 2
					}
					for r, x := range ts {
						if got := Sum(x).PayloadSent - before[r]; got != want {
							t.Errorf("%s: rank %d has sent %d bytes, want %d", name, r, got, want)
						}
					}
				}
			}
		}
	}
}

// TestAllocate: memory is to be had where ranks share it, and goes back; elsewhere there is none and no error.
func TestAllocate(t *testing.T) {
	for name, ts := range map[string][]Transport{"inprocess": inProcess(t, 2), "unix": meshOf(t, 2, ShareNever)} {
		noErrors(t, onAllNamed(t, ts, name, Options{}, func(_ context.Context, g *Group) error {
			if m, err := g.Allocate(4096); m != nil || err != nil {
				return fmt.Errorf("%s: memory %v, error %w", name, m, err)
			}
			return nil
		}))
	}
	ts := sharing(t, 2)
	noErrors(t, onAll(t, ts, Options{}, func(ctx context.Context, g *Group) error {
		empty, err := g.Allocate(0)
		if err != nil || len(empty.Bytes()) != 0 {
			return fmt.Errorf("no bytes: %d, %w", len(empty.Bytes()), err)
		}
		empty.Free()
		if _, err := g.Allocate(-1); err == nil {
			return errors.New("memory of less than nothing")
		}
		if _, err := g.Allocate(segmentMost); err == nil || !strings.Contains(err.Error(), "addresses are left") {
			return fmt.Errorf("more than there is: %w", err)
		}
		const n = 16 << 20
		m, err := g.Allocate(n)
		if err != nil {
			return err
		}
		defer m.Free()
		if at := uintptr(unsafe.Pointer(unsafe.SliceData(m.Bytes()))); at%64 != 0 || len(m.Bytes()) != n {
			return fmt.Errorf("%d bytes at %#x", len(m.Bytes()), at)
		}
		v := floatsOf(m.Bytes(), 0, n/4)
		for i := range v {
			v[i] = 1
		}
		if err := g.AllReduce(ctx, "sum", v); err != nil {
			return err
		}
		// Half of the other's memory was read here, and written.
		if f := g.Foreign(); f < n/2 || f > 2*n {
			return fmt.Errorf("%d bytes of the other rank's memory are resident", f)
		}
		return g.Barrier(ctx, "looked")
	}))
}

// TestInPlaceFailures: a member that stops on its way through its chunk is named by all others after the deadline,
// and vectors that lie outside the shared memory are an error of whoever announced them.
func TestInPlaceFailures(t *testing.T) {
	const n = 1 << 20
	sum := func(ctx context.Context, g *Group, spoil func(c *Collective)) error {
		v, free, err := vectorsIn(g, 1, n)
		defer free()
		if err != nil {
			return err
		}
		red, err := NewReduction(3, Assign(3, 3))
		if err != nil {
			return err
		}
		c, err := g.PrepareAllReduceTree("bucket", red, v, v[0])
		if err != nil {
			return err
		}
		if g.Rank() == 1 {
			spoil(c)
		}
		return c.Run(ctx)
	}
	hold := make(chan struct{})
	for name, c := range map[string]struct {
		opt   Options
		spoil func(c *Collective)
		want  string
	}{
		"stops": {Options{Timeout: 300 * time.Millisecond}, func(c *Collective) {
			rest := c.local.rest
			c.local.rest = func(c *Collective) error { <-hold; return rest(c) }
		}, "rank 1"},
		"lies elsewhere": {Options{}, func(c *Collective) {
			c.local.places.list = slices.Clone(c.local.places.list)
			c.local.places.list[0] = 1 << 60
		}, "outside the memory of this host's ranks"},
	} {
		t.Run(name, func(t *testing.T) {
			released := make(chan struct{}, 3)
			if name == "stops" {
				go func() {
					<-released
					<-released
					close(hold)
				}()
			}
			errs := onAll(t, sharing(t, 3), c.opt, func(ctx context.Context, g *Group) error {
				err := sum(ctx, g, c.spoil)
				released <- struct{}{}
				return err
			})
			for r, err := range errs {
				if name == "stops" && r == 1 {
					continue // it has everybody's part by the time it goes on, unless it hears of the failure first
				}
				var stall *StallError
				if errors.As(err, &stall) && slices.Contains(stall.Waiting, 1) && name == "stops" {
					continue // alone, or with one that a loaded machine has held up
				}
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("rank %d: %v", r, err)
				}
			}
		})
	}
}

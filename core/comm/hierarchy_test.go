package comm

import (
	"context"
	"fmt"
	"strings"
	"testing"
)

// TestHierarchy: sums over several hosts have the bits of the flat sum, and fewer bytes cross between hosts.
func TestHierarchy(t *testing.T) {
	const n = 4 * ChunkAlign * 2000
	for _, c := range []struct{ hosts, each, lanes int }{{2, 2, 4}, {2, 2, 16}, {2, 3, 8}, {3, 2, 6}, {2, 4, 8}, {2, 2, 5}} {
		t.Run(fmt.Sprintf("%dhosts%dranks%dlanes", c.hosts, c.each, c.lanes), func(t *testing.T) {
			world := c.hosts * c.each
			red, err := NewReduction(c.lanes, Assign(c.lanes, world))
			if err != nil {
				t.Fatal(err)
			}
			values := laneValues(c.lanes, n)
			want := treeSumOf(values, Tree{c.lanes}.Root())
			ts := meshOn(t, world, ShareAuto, func(r int) string { return fmt.Sprint("host ", r/c.each) })
			crossed := func(rank int) (bytes int64) {
				for r := range world {
					if r/c.each != rank/c.each {
						bytes += ts[rank].Counters(r).PayloadSent
					}
				}
				return bytes
			}
			total := map[bool]int64{}
			for _, flat := range []bool{false, true} {
				before := int64(0)
				for r := range world {
					before += crossed(r)
				}
				noErrors(t, onAllNamed(t, ts, fmt.Sprint("flat ", flat), Options{Flat: flat, PieceBytes: 16 << 10}, func(ctx context.Context, g *Group) error {
					if (g.hosts == nil) != flat {
						return fmt.Errorf("the group's hosts are %+v", g.hosts)
					}
					own := runFold(red.Fold(g.Rank()), values)
					if len(own) == 0 {
						own = nil
					}
					dst := make([]float32, n)
					for range 2 {
						if err := g.AllReduceTree(ctx, "gradient", red, own, dst); err != nil {
							return err
						}
						if !sameBits(dst, want) {
							return fmt.Errorf("the sum differs from the tree")
						}
					}
					return g.Barrier(ctx, "counted")
				}))
				for r := range world {
					total[flat] += crossed(r)
				}
				total[flat] -= before
			}
			if total[false] >= total[true] {
				t.Errorf("%d bytes crossed between hosts, %d in the flat sum", total[false], total[true])
			}
			if c.lanes%world == 0 && c.lanes/c.hosts&(c.lanes/c.hosts-1) == 0 && c.hosts&(c.hosts-1) == 0 {
				if want := int64(2 * 2 * (c.hosts - 1) * 4 * n); total[false] != want { // two sums
					t.Errorf("%d bytes crossed, want %d", total[false], want)
				}
			}
		})
	}
}

// TestNoHierarchy: ranks that do not lie by hosts are summed flat.
func TestNoHierarchy(t *testing.T) {
	for _, hosts := range [][]string{{"a", "b", "a", "b"}, {"a", "a", "a", "b"}, {"a", "b", "c", "d"}, {"a", "a", "a", "a"}, {"", "", "b", "b"}} {
		ts := meshOn(t, 4, ShareAuto, func(r int) string { return hosts[r] })
		noErrors(t, onAll(t, ts, Options{}, func(ctx context.Context, g *Group) error {
			if g.hosts != nil {
				return fmt.Errorf("hosts %v make a hierarchy", hosts)
			}
			b := []float32{1}
			if err := g.AllReduce(ctx, "x", b); err != nil || b[0] != 4 {
				return fmt.Errorf("sum %v: %w", b[0], err)
			}
			return nil
		}))
	}
}

// TestAMismatchBetweenHosts: who entered what is told alike on every host, whichever noticed it first.
func TestAMismatchBetweenHosts(t *testing.T) {
	for range 5 {
		ts := meshOn(t, 4, ShareAuto, func(r int) string { return fmt.Sprint("host ", r/2) })
		errs := onAll(t, ts, Options{}, func(ctx context.Context, g *Group) error {
			b := make([]float32, 1000)
			if g.Rank() == 2 {
				return g.AllGather(ctx, "parameters", Chunks(len(b), 4, 1), b)
			}
			return g.AllReduce(ctx, "bucket", b)
		})
		for r, err := range errs {
			if want := `collective 0 of group ` + t.Name() + `: rank 2 entered all_gather "parameters" of 4000 bytes of float32, ranks 0, 1, 3 entered all_reduce "bucket" of 4000 bytes of float32`; err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("rank %d: %v, want %s", r, err, want)
			}
		}
	}
}

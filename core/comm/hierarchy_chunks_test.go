package comm

import (
	"context"
	"fmt"
	"slices"
	"testing"
)

// cuts are ways to cut n elements into a chunk for each of so many members.
func cuts(n, world int) map[string][]Range {
	uneven := make([]Range, world)
	at := 0
	for m := range uneven {
		end := min(at+n/world/2*(m%3), n) // some are empty
		if m == world-1 {
			end = n
		}
		uneven[m] = Range{at, end}
		at = end
	}
	replicas := make([]Range, world) // as hybrid sharding cuts: the chunks of every second member side by side
	order := []int{}
	for m := range world {
		if m%2 == 0 {
			order = append(order, m)
		}
	}
	for m := range world {
		if m%2 == 1 {
			order = append(order, m)
		}
	}
	for i, c := range Chunks(n, world, 1) {
		replicas[order[i]] = c
	}
	return map[string][]Range{"even": Chunks(n, world, ChunkAlign), "uneven": uneven, "replicas": replicas}
}

// TestHierarchyOfChunks: over several hosts a reduce-scatter has the bits of the tree and an all-gather gives everybody everything,
// however the vector is cut and whatever the lanes, and what crosses between hosts is what there is to say.
func TestHierarchyOfChunks(t *testing.T) {
	for _, c := range []struct{ hosts, each, lanes, n int }{
		{2, 2, 4, 16000}, {2, 2, 16, 100_003}, {2, 3, 8, 20_000}, {3, 2, 6, 5}, {2, 4, 8, 16_384}, {2, 2, 5, 0}, {4, 2, 8, 8192}, {3, 2, 3, 6000}, // the last: members without lanes
	} {
		t.Run(fmt.Sprintf("%dhosts%dranks%dlanes%d", c.hosts, c.each, c.lanes, c.n), func(t *testing.T) {
			world := c.hosts * c.each
			exact, err := NewReduction(c.lanes, Assign(c.lanes, world))
			if err != nil {
				t.Fatal(err)
			}
			values := laneValues(c.lanes, c.n)
			want := treeSumOf(values, Tree{c.lanes}.Root())
			ts := meshOn(t, world, ShareAuto, func(r int) string { return fmt.Sprint("host ", r/c.each) })
			crossed := func() (bytes int64) {
				for r, x := range ts {
					for p := range world {
						if p/c.each != r/c.each {
							bytes += x.Counters(p).PayloadSent
						}
					}
				}
				return bytes
			}
			for name, chunks := range cuts(c.n, world) {
				for _, pieces := range []int{16 << 10, 256, 0} {
					if pieces == 256 && c.n > 20_000 {
						continue
					}
					var before, between int64
					noErrors(t, onAllNamed(t, ts, fmt.Sprint(name, pieces), Options{PieceBytes: pieces}, func(ctx context.Context, g *Group) error {
						if g.hosts == nil {
							return fmt.Errorf("the group has no hosts")
						}
						own := runFold(exact.Fold(g.Rank()), values)[:len(exact.Nodes(g.Rank()))]
						mine := chunks[g.Rank()]
						dst := make([]float32, mine.Len())
						if len(own) > 0 { // the memory that the trainer gives
							dst = own[0][mine.Lo:mine.Hi]
						}
						if err := g.Barrier(ctx, "before"); err != nil {
							return err
						}
						if g.Rank() == 0 {
							before = crossed()
						}
						if err := g.Barrier(ctx, "read"); err != nil {
							return err
						}
						if err := g.ReduceScatterTree(ctx, "gradient", exact, chunks, own, dst); err != nil {
							return err
						}
						if !sameBits(dst, want[mine.Lo:mine.Hi]) {
							return fmt.Errorf("%s: the sum differs from the tree", name)
						}
						if err := g.Barrier(ctx, "after"); err != nil {
							return err
						}
						if g.Rank() == 0 {
							between = crossed() - before
						}
						if err := g.Barrier(ctx, "counted"); err != nil {
							return err
						}
						if !slices.IsSortedFunc(chunks, func(a, b Range) int { return a.Lo - b.Lo }) {
							return nil
						}
						all := make([]float32, c.n)
						copy(all[mine.Lo:mine.Hi], dst)
						if err := g.AllGather(ctx, "parameters", chunks, all); err != nil {
							return err
						}
						if !sameBits(all, want) {
							return fmt.Errorf("%s: what was gathered differs", name)
						}
						if err := g.Barrier(ctx, "after"); err != nil {
							return err
						}
						if g.Rank() == 0 {
							if gathered, want := crossed()-before-between, int64(4*c.n*(c.hosts-1)); gathered != want {
								return fmt.Errorf("%s: %d bytes crossed between hosts in the all-gather, want each chunk once for each other host, %d", name, gathered, want)
							}
						}
						return g.Barrier(ctx, "counted")
					}))
					if c.lanes%c.hosts == 0 && c.lanes/c.hosts&(c.lanes/c.hosts-1) == 0 && c.hosts&(c.hosts-1) == 0 {
						if want := int64(4 * c.n * (c.hosts - 1)); between != want {
							t.Errorf("%s: %d bytes crossed between hosts in the reduce-scatter, want one sum of each chunk from each other host, %d", name, between, want)
						}
					}
				}
			}
		})
	}
}

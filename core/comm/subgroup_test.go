package comm

import (
	"context"
	"fmt"
	"testing"
)

// The chunks of a reduce-scatter may lie in any order of members, and some may be empty; the bits are those of the tree, whatever
// carries it. Then members that lie apart complete each other's chunks in groups of their own.
func TestChunksInAnyOrder(t *testing.T) {
	const ranks, lanes = 6, 11
	red, err := NewReduction(lanes, Assign(lanes, ranks))
	if err != nil {
		t.Fatal(err)
	}
	for name, open := range map[string]func() []Transport{
		"in process": func() []Transport { return inProcess(t, ranks) }, "shared": func() []Transport { return sharing(t, ranks) },
	} {
		for _, n := range []int{5, 53, 3*strip + 7, 100_003} {
			values := laneValues(lanes, n)
			for _, e := range []Element{Float32, BFloat16} {
				t.Run(fmt.Sprintf("%s,%v,%d", name, e, n), func(t *testing.T) {
					r, want := red, treeSumOf(values, Tree{lanes}.Root())
					if e != Float32 {
						r, want = red.Rounded(e), roundedSumOf(e, values, Tree{lanes}.Root())
					}
					noErrors(t, onAll(t, open(), Options{PieceBytes: 1 << 10}, func(ctx context.Context, g *Group) error {
						// Places 0, 1 of the vector are those of members 0 and 3, then 1 and 4, 2 and 5.
						places := Chunks(n-1, ranks-1, 1)
						places = append(places, Range{n - 1, n - 1})
						places[4].Hi, places[5] = n-1, Range{n - 1, n}
						chunks := make([]Range, ranks)
						for i, p := range places {
							chunks[i/2+i%2*3] = p
						}
						var own [][]float32
						for _, node := range r.Nodes(g.Rank()) {
							if e == Float32 {
								own = append(own, treeSumOf(values, node))
							} else {
								own = append(own, roundedSumOf(e, values, node))
							}
						}
						sum := make([]float32, n)
						c := chunks[g.Rank()]
						if err := g.ReduceScatterTree(ctx, "rs", r, chunks, own, sum[c.Lo:c.Hi]); err != nil {
							return err
						}
						if !sameBits(sum[c.Lo:c.Hi], want[c.Lo:c.Hi]) {
							return fmt.Errorf("the chunk %v differs from the tree", c)
						}
						first := g.Rank() % 3
						pair, err := g.Subgroup("pair", []int{first, first + 3})
						if err != nil {
							return err
						}
						a, b := chunks[first], chunks[first+3]
						part := sum[a.Lo:b.Hi]
						if err := pair.AllGather(ctx, "ag", []Range{{0, a.Len()}, {a.Len(), len(part)}}, part); err != nil {
							return err
						}
						if !sameBits(part, want[a.Lo:b.Hi]) {
							return fmt.Errorf("the pair's part %v differs from the tree", Range{a.Lo, b.Hi})
						}
						if err := g.Barrier(ctx, "end"); err != nil {
							return err
						}
						return pair.Close()
					}))
				})
			}
		}
	}
	noErrors(t, onAll(t, inProcess(t, ranks), Options{}, func(ctx context.Context, g *Group) error {
		if _, err := g.Subgroup("none", []int{0, ranks}); err == nil {
			return fmt.Errorf("a group has a member that does not exist")
		}
		chunks := Chunks(8, ranks, 1)
		chunks[2] = chunks[3]
		if err := checkParts(chunks, ranks, 8); err == nil {
			return fmt.Errorf("chunks %v make up a vector", chunks)
		}
		return nil
	}))
}

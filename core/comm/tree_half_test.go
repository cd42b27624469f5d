package comm

import (
	"context"
	"fmt"
	"math"
	"testing"

	"starling/sdk/vec"
)

// roundAll rounds x in place.
func roundAll(e Element, x []float32) {
	bits := make([]uint16, len(x))
	if e == BFloat16 {
		vec.F32ToBF16(bits, x)
		vec.BF16ToF32(x, bits)
	} else {
		vec.F32ToF16(bits, x)
		vec.F16ToF32(x, bits)
	}
}

// roundedSumOf is the definition: a lane's total is rounded, and so is each node.
func roundedSumOf(e Element, values [][]float32, r Range) []float32 {
	out := make([]float32, len(values[0]))
	if left, right, ok := (Tree{len(values)}).Children(r); ok {
		vec.Add(out, roundedSumOf(e, values, left), roundedSumOf(e, values, right))
	} else {
		copy(out, values[r.Lo])
	}
	roundAll(e, out)
	return out
}

// TestHalfSums: sums that travel in 16 bits have the bits of the definition, over messages, in shared memory and between hosts, and
// send half the bytes.
func TestHalfSums(t *testing.T) {
	for _, n := range []int{4 * ChunkAlign * 700, 53} {
		for _, c := range []struct{ world, lanes, each int }{{1, 3, 1}, {2, 2, 2}, {3, 12, 3}, {4, 7, 4}, {4, 16, 2}, {6, 6, 2}, {4, 4, 1}} {
			values := laneValues(c.lanes, n)
			red, err := NewReduction(c.lanes, Assign(c.lanes, c.world))
			if err != nil {
				t.Fatal(err)
			}
			host := func(r int) string { return fmt.Sprint("host ", r/c.each) }
			for name, open := range map[string]func() []Transport{
				"in process": func() []Transport { return inProcess(t, c.world) },
				"mesh":       func() []Transport { return meshOn(t, c.world, ShareAuto, host) },
			} {
				if c.world == 1 && name == "mesh" {
					continue
				}
				for _, e := range []Element{BFloat16, Float16} {
					t.Run(fmt.Sprintf("%v,%s,%dranks%dlanes,%d", e, name, c.world, c.lanes, n), func(t *testing.T) {
						want := roundedSumOf(e, values, Tree{c.lanes}.Root())
						half := red.Rounded(e)
						ts := open()
						noErrors(t, onAll(t, ts, Options{}, func(ctx context.Context, g *Group) error {
							own := make([][]float32, 0)
							for _, node := range half.Nodes(g.Rank()) {
								own = append(own, roundedSumOf(e, values, node))
							}
							chunks := Chunks(n, g.Size(), 1)
							k := chunks[g.Rank()]
							mine := make([]float32, k.Len())
							sent := Sum(ts[g.Rank()]).PayloadSent
							for range 2 {
								if err := g.ReduceScatterTree(ctx, "rs", half, chunks, own, mine); err != nil {
									return err
								}
								if !sameBits(mine, want[k.Lo:k.Hi]) {
									return fmt.Errorf("reduce-scatter differs from the tree")
								}
							}
							if parts := len(own) * 2 * (n - k.Len()); c.each == c.world && name == "in process" {
								if got := Sum(ts[g.Rank()]).PayloadSent - sent; got != int64(2*parts) {
									return fmt.Errorf("%d bytes sent in two sums, want %d", got, 2*parts)
								}
							}
							dst := make([]float32, n)
							if len(own) > 0 {
								dst = own[0]
							}
							if err := g.AllReduceTree(ctx, "ar", half, own, dst); err != nil {
								return err
							}
							if !sameBits(dst, want) {
								return fmt.Errorf("all-reduce differs from the tree")
							}
							if need := half.StagingBytes(g.Rank(), Chunks(n, g.Size(), ChunkAlign), 0); g.hosts == nil && g.StagingPeak() < need {
								return fmt.Errorf("staging peak %d, predicted %d", g.StagingPeak(), need)
							}
							return nil
						}))
					})
				}
			}
		}
	}
}

// Case 29: 1024 contributions of 100. Their sum does not fit into fp16; as contributions to a mean they do.
func TestMeansOfManyLanesFitIntoFP16(t *testing.T) {
	for _, c := range []struct {
		each float32
		want float64
	}{{100. / 1024, 100}, {100, math.Inf(1)}} {
		red, err := NewReduction(1024, Assign(1024, 8))
		if err != nil {
			t.Fatal(err)
		}
		values := make([][]float32, 1024)
		for i := range values {
			values[i] = []float32{c.each}
		}
		half := red.Rounded(Float16)
		noErrors(t, onAll(t, inProcess(t, 8), Options{}, func(ctx context.Context, g *Group) error {
			own := [][]float32{roundedSumOf(Float16, values, half.Nodes(g.Rank())[0])}
			if err := g.AllReduceTree(ctx, "mean", half, own, own[0]); err != nil {
				return err
			}
			if got := float64(own[0][0]); got != c.want {
				return fmt.Errorf("1024 contributions of %v make %v, want %v", c.each, got, c.want)
			}
			return nil
		}))
	}
}

// TestHalfSumsInPlace: of vectors that all ranks of a host have mapped too, sums in 16 bits have the bits of the definition, and
// count as many bytes as if one rank's were its own and all were copied.
func TestHalfSumsInPlace(t *testing.T) {
	const n = 2*strip*ChunkAlign + 7
	for _, c := range []struct{ ranks, lanes int }{{2, 2}, {2, 7}, {3, 8}} {
		red, err := NewReduction(c.lanes, Assign(c.lanes, c.ranks))
		if err != nil {
			t.Fatal(err)
		}
		values := laneValues(c.lanes, n)
		ts := sharing(t, c.ranks)
		for _, e := range []Element{BFloat16, Float16} {
			half, want := red.Rounded(e), roundedSumOf(e, values, Tree{c.lanes}.Root())
			sent := map[string]int64{}
			for _, lies := range []string{"in place", "one apart"} {
				before := Sum(ts[0]).PayloadSent
				noErrors(t, onAllNamed(t, ts, fmt.Sprint(lies, e), Options{}, func(ctx context.Context, g *Group) error {
					nodes := half.Nodes(g.Rank())
					mapped := lies == "in place" || g.Rank() != 1
					var own [][]float32
					for _, node := range nodes {
						own = append(own, roundedSumOf(e, values, node))
					}
					if mapped {
						vectors, free, err := vectorsIn(g, len(nodes), n)
						defer free()
						if err != nil {
							return err
						}
						for k := range own {
							copy(vectors[k], own[k])
						}
						own = vectors
					}
					chunks := Chunks(n, g.Size(), 1)
					at := chunks[g.Rank()]
					mine := make([]float32, at.Len())
					rs, err := g.PrepareReduceScatterTree("rs", half, chunks, own, mine)
					if err != nil {
						return err
					}
					ar, err := g.PrepareAllReduceTree("ar", half, own, own[0])
					if err != nil {
						return err
					}
					if rs.local.places.direct != mapped || ar.local.places.direct != mapped {
						return fmt.Errorf("its vectors are thought to be mapped: %v, %v", rs.local.places.direct, ar.local.places.direct)
					}
					if err := rs.Run(ctx); err != nil {
						return err
					}
					if !sameBits(mine, want[at.Lo:at.Hi]) {
						return fmt.Errorf("the reduce-scatter differs from the tree")
					}
					if err := ar.Run(ctx); err != nil {
						return err
					}
					if !sameBits(own[0], want) {
						return fmt.Errorf("the all-reduce differs from the tree")
					}
					return nil
				}))
				sent[lies] = Sum(ts[0]).PayloadSent - before
			}
			if sent["in place"] != sent["one apart"] || sent["in place"] == 0 {
				t.Errorf("%v, %d ranks: bytes sent: %v", e, c.ranks, sent)
			}
		}
	}
}

// BenchmarkHalfSums sums a 64 MB gradient in bfloat16 over two ranks of a host, where it lies and copied; bytes are those of the
// vector of float32.
func BenchmarkHalfSums(b *testing.B) {
	const n = 16 << 20
	red, err := NewReduction(2, Assign(2, 2))
	if err != nil {
		b.Fatal(err)
	}
	half := red.Rounded(BFloat16)
	for _, lies := range []string{"in place", "copied"} {
		b.Run(lies, func(b *testing.B) {
			ts := sharing(b, 2)
			all := make([]*Collective, 2)
			for r := range all {
				g, err := NewGroup(ts[r], lies, []int{0, 1}, Options{})
				if err != nil {
					b.Fatal(err)
				}
				defer g.Close()
				v := [][]float32{make([]float32, n)}
				if lies == "in place" {
					vectors, free, err := vectorsIn(g, 1, n)
					defer free()
					if err != nil {
						b.Fatal(err)
					}
					v = vectors
				}
				if all[r], err = g.PrepareAllReduceTree("bucket", half, v, v[0]); err != nil {
					b.Fatal(err)
				}
			}
			b.SetBytes(4 * n)
			for b.Loop() {
				for _, c := range all {
					c.Start()
				}
				for _, c := range all {
					if err := c.over(); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}

package devicetest

import (
	"math/rand/v2"

	"starling/core/graph"
	"starling/core/tensor"
)

// operand is an input of a case: its type and how its elements are drawn.
type operand struct {
	graph.Type
	fill filler
}

// filler draws element i of an input.
type filler func(r *rand.Rand, i int) float64

func f32(shape ...int) graph.Type  { return graph.Type{DType: tensor.F32, Shape: shape} }
func f64(shape ...int) graph.Type  { return graph.Type{DType: tensor.F64, Shape: shape} }
func bf16(shape ...int) graph.Type { return graph.Type{DType: tensor.BF16, Shape: shape} }
func i32(shape ...int) graph.Type  { return graph.Type{DType: tensor.I32, Shape: shape} }
func u32(shape ...int) graph.Type  { return graph.Type{DType: tensor.U32, Shape: shape} }

func normal(r *rand.Rand, _ int) float64 { return r.NormFloat64() }

// spread is normal with a large deviation and the edges of an activation's range among the values.
func spread(r *rand.Rand, i int) float64 {
	edges := []float64{0, 1e-30, -1e-30, 1e-3, -1e-3, 0.625, -0.625, 3, -3, 8, -8, 9.5, -9.5}
	if i < len(edges) {
		return edges[i]
	}
	return 3 * r.NormFloat64()
}

// far holds values at which an activation is one of its asymptotes.
func far(r *rand.Rand, i int) float64 {
	edges := []float64{20, -20, 50, -50, 88, -88, 105, -105, 1000, -1000, 1e4, -1e4}
	if i < len(edges) {
		return edges[i]
	}
	return 40 * r.NormFloat64()
}

// positive draws from about 1e-6 to 1e6, evenly in the exponent.
func positive(r *rand.Rand, _ int) float64 {
	v := 1 + r.Float64()
	for range r.IntN(20) {
		v *= 2
	}
	for range r.IntN(20) {
		v /= 2
	}
	return v
}

// away draws normal values at a distance from zero.
func away(r *rand.Rand, i int) float64 {
	v := r.NormFloat64()
	if v < 0 {
		return v - 0.5
	}
	return v + 0.5
}

// times scales what another filler draws.
func times(c float64, f filler) filler {
	return func(r *rand.Rand, i int) float64 { return c * f(r, i) }
}

// whole draws integers in [lo, hi), so that there are ties.
func whole(lo, hi int) filler {
	return func(r *rand.Rand, _ int) float64 { return float64(lo + r.IntN(hi-lo)) }
}

func uniform(lo, hi float64) filler {
	return func(r *rand.Rand, _ int) float64 { return lo + (hi-lo)*r.Float64() }
}

// list gives these elements.
func list(v ...float64) filler {
	return func(_ *rand.Rand, i int) float64 { return v[i] }
}

// elementCounts are lengths around the widths of vectors and of a task's block, whatever those are.
var elementCounts = []int{1, 2, 7, 8, 15, 16, 17, 31, 33, 64, 100, 127, 1031, 70001}

// someShapes are small shapes of every rank, drawn from sizes with 1 and primes among them.
func someShapes(r *rand.Rand) [][]int {
	shapes := [][]int{{}}
	for _, n := range elementCounts {
		shapes = append(shapes, []int{n})
	}
	sizes := []int{1, 2, 3, 5, 8, 13, 17}
	for rank := 2; rank <= 5; rank++ {
		for range 2 {
			s := make([]int, rank)
			for i := range s {
				s[i] = sizes[r.IntN(len(sizes)-rank+2)]
			}
			shapes = append(shapes, s)
		}
	}
	return shapes
}

// rowShapes are shapes whose last dimension is reduced.
func rowShapes() [][]int {
	return [][]int{{1}, {7}, {1, 1}, {3, 5}, {4, 16}, {2, 3, 17}, {5, 64}, {1, 127}, {33, 100}, {2, 1, 2, 33}, {3, 1031}, {70, 768}, {1, 5003}}
}

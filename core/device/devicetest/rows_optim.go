package devicetest

import (
	"math"
	"math/rand/v2"

	"starling/core/graph"
	"starling/core/tensor"
)

func optimRows() map[string]row {
	return map[string]row{
		"clip_value": {nan: []int{0}, renews: []int{0}, cases: func(*rand.Rand) []testCase {
			var cs []testCase
			for _, n := range elementCounts {
				for _, limit := range []float64{0.5, 1e-30, 1e30, 0.1} {
					cs = append(cs, testCase{in: []operand{{f32(n), normal}, {f64(1), list(limit)}}})
				}
			}
			return cs
		}},
		"round_to": {nan: []int{0}, renews: []int{0}, cases: func(*rand.Rand) []testCase {
			var cs []testCase
			for _, n := range elementCounts {
				for _, to := range []tensor.DType{tensor.BF16, tensor.F16} {
					for _, fill := range []filler{normal, times(1e-6, normal), times(1e5, normal)} {
						cs = append(cs, testCase{attrs: graph.RoundAttrs{To: to}, in: []operand{{f32(n), fill}}})
					}
				}
			}
			return cs
		}},
		"average": {rel: 4 * units, abs: 2 * units, nan: []int{0, 1}, renews: []int{0}, cases: func(*rand.Rand) []testCase {
			var cs []testCase
			for _, n := range elementCounts {
				cs = append(cs, testCase{attrs: graph.AverageAttrs{Rate: 0.1, Weight: 1.0 / 12}, in: []operand{{f32(n), normal}, {f32(n), normal}}})
			}
			return cs
		}},
		"adamw": {rel: units, abs: halfUnit, nan: []int{0, 1}, renews: []int{0, 2, 3}, cases: adamws},
		// What is kept is rounded: a moment may be its neighbour, a code the next one. The step itself is compared closely elsewhere.
		"adamw_bf16": {rel: 1. / 128, renews: []int{0, 2, 3}, cases: func(r *rand.Rand) []testCase {
			cs := adamws(r)
			for i := range cs {
				for _, k := range []int{2, 3} {
					cs[i].in[k].DType = tensor.BF16
				}
			}
			return cs
		}},
		"adamw_int8": {rel: units, abs: halfUnit, least: 1, renews: []int{0, 2, 3, 4, 5}, cases: func(r *rand.Rand) []testCase {
			cs := adamws(r)
			for i, c := range cs {
				n := c.in[0].Shape.Numel()
				codes := operand{graph.Type{DType: tensor.U8, Shape: tensor.Shape{n}}, func(r *rand.Rand, _ int) float64 { return float64(r.IntN(256)) }}
				scales := operand{f32((n + graph.QuantBlock - 1) / graph.QuantBlock), uniform(0, 1e-2)}
				cs[i].in = []operand{c.in[0], c.in[1], codes, scales, codes, scales, c.in[4]}
			}
			return cs
		}},
		"sgd": {rel: units, abs: halfUnit, nan: []int{0, 1}, renews: []int{0, 2}, cases: func(*rand.Rand) []testCase {
			return append(sgds(false), sgds(true)...)
		}},
	}
}

func adamws(*rand.Rand) []testCase {
	var cs []testCase
	add := func(n int, grad, v filler, hyper ...float64) {
		cs = append(cs, testCase{attrs: graph.AdamWAttrs{}, in: []operand{
			{f32(n), normal}, {f32(n), grad}, {f32(n), times(1e-2, normal)}, {f32(n), v}, {f64(graph.HyperCount), list(hyper...)}}})
	}
	for _, n := range elementCounts {
		for _, step := range []float64{1, 2, 1000} {
			add(n, times(1e-2, normal), times(1e-4, uniform(0, 1)),
				1e-3, 0.9, 0.95, 1e-8, 0.1, 1-math.Pow(0.9, step), 1-math.Pow(0.95, step), 0.37)
		}
	}
	zero := func(*rand.Rand, int) float64 { return 0 }
	add(33, zero, zero, 1e-3, 0.9, 0.999, 1e-8, 0, 0.1, 0.001, 1)
	add(33, times(1e-20, normal), zero, 1e-3, 0.9, 0.999, 1e-8, 0, 0.1, 0.001, 1)
	return cs
}

// sgds gives plain updates, or those with momentum.
func sgds(momentum bool) []testCase {
	var cs []testCase
	for i, n := range elementCounts {
		hyper := operand{f64(graph.HyperCount), list(0.1, 0.9, []float64{0, 0.25}[i%2], []float64{0, 0.01}[i/2%2], 0, 0, 0, 0.37)}
		in := []operand{{f32(n), normal}, {f32(n), normal}, {f32(n), normal}, hyper}
		if !momentum {
			cs = append(cs, testCase{attrs: graph.SGDAttrs{}, in: []operand{in[0], in[1], hyper}})
			continue
		}
		for _, nesterov := range []bool{false, true} {
			at := graph.SGDAttrs{Momentum: true, Nesterov: nesterov}
			first := operand{f64(graph.HyperCount), list(0.1, 0.9, 0.25, 0.01, 1, 0, 0, 1)}
			cs = append(cs, testCase{attrs: at, in: in}, testCase{name: "first step ", attrs: at, in: append(in[:3:3], first)})
		}
	}
	return cs
}

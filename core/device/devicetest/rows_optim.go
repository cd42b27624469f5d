package devicetest

import (
	"math"
	"math/rand/v2"

	"starling/core/graph"
)

func optimRows() map[string]row {
	return map[string]row{
		"adamw": {rel: units, abs: halfUnit, nan: []int{0, 1}, renews: []int{0, 2, 3}, cases: adamws},
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

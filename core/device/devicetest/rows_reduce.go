package devicetest

import (
	"math"
	"math/rand/v2"

	"starling/core/graph"
)

func reduceRows() map[string]row {
	return map[string]row{
		"sum":  {rel: units, abs: 4 * units, nan: []int{0}, cases: reductions(normal)},
		"mean": {rel: units, abs: 4 * units, nan: []int{0}, cases: reductions(normal)},
		"max":  {nan: []int{0}, cases: reductions(normal, whole(-2, 3), times(-1, positive))},
		"max_grad": {nan: []int{2}, cases: func(r *rand.Rand) []testCase {
			var cs []testCase
			for _, c := range reductions(normal, whole(-2, 3))(r) {
				x := graph.NewArray(c.in[0].Type)
				y := operand{reference(graph.OpMax, c.attrs, x)[0].Type, normal}
				c.in = append(c.in, y, y)
				c.derive = func(in []*graph.Array) { in[1] = reference(graph.OpMax, c.attrs, in[0])[0] }
				cs = append(cs, c)
			}
			return cs
		}},
		"softmax":     {rel: 4 * units, abs: 1e-8, nan: []int{0}, cases: rowsOf(normal, times(30, normal), masked)},
		"log_softmax": {rel: 4 * units, abs: units, nan: []int{0}, cases: rowsOf(normal, times(30, normal))},
		"softmax_grad": {rel: units, abs: 4 * units, nan: []int{1}, cases: func(r *rand.Rand) []testCase {
			return lastGradients(graph.OpSoftmax)
		}},
		"log_softmax_grad": {rel: units, abs: 4 * units, nan: []int{1}, cases: func(r *rand.Rand) []testCase {
			return lastGradients(graph.OpLogSoftmax)
		}},
		"argmax":      {nan: []int{0}, cases: rowsOf(normal, whole(-2, 3))},
		"sum_squares": {rel: 1e-12, nan: []int{0}, cases: blockNorms},
		"sum_abs":     {rel: 1e-12, nan: []int{0}, cases: blockNorms},
		"max_abs":     {nan: []int{0}, cases: blockNorms},
	}
}

// blockNorms covers whole blocks, parts of them, and values whose squares are large.
func blockNorms(*rand.Rand) []testCase {
	var cs []testCase
	for _, s := range [][]int{{}, {1}, {7}, {64, 64}, {4095}, {4096}, {4097}, {3, 4096}, {123, 457}} {
		cs = append(cs, testCase{in: []operand{{f32(s...), normal}}}, testCase{in: []operand{{f32(s...), times(1e15, normal)}}})
	}
	return cs
}

// masked is normal with some elements at minus infinity.
func masked(r *rand.Rand, i int) float64 {
	if i > 0 && r.IntN(4) == 0 {
		return math.Inf(-1)
	}
	return r.NormFloat64()
}

// reductions covers axes at either end, in the middle and scattered.
func reductions(fills ...filler) func(*rand.Rand) []testCase {
	return func(*rand.Rand) []testCase {
		var cs []testCase
		for _, c := range []struct{ axes, shape []int }{
			{[]int{}, []int{}}, {[]int{0}, []int{1}}, {[]int{0}, []int{7}}, {[]int{}, []int{3, 5}}, {[]int{0}, []int{3, 5}}, {[]int{1}, []int{3, 5}},
			{[]int{0, 1}, []int{3, 5}}, {[]int{1}, []int{2, 3, 17}}, {[]int{0, 2}, []int{2, 3, 17}}, {[]int{2}, []int{2, 3, 1031}},
			{[]int{0, 2, 3}, []int{3, 5, 4, 7}}, {[]int{1, 3}, []int{2, 3, 4, 5}}, {[]int{0, 1, 2, 3, 4}, []int{2, 3, 2, 3, 2}},
			{[]int{0}, []int{70001}}, {[]int{0}, []int{1031, 33}}, {[]int{1}, []int{1031, 33}}, {[]int{0}, []int{1, 9}}, {[]int{1}, []int{9, 1}},
		} {
			for i, fill := range fills {
				at := graph.ReduceAttrs{Axes: dims(c.axes...), Keep: (len(c.shape)+i)%2 == 0}
				cs = append(cs, testCase{attrs: at, in: []operand{{f32(c.shape...), fill}}})
			}
		}
		return cs
	}
}

func rowsOf(fills ...filler) func(*rand.Rand) []testCase {
	return func(*rand.Rand) []testCase {
		var cs []testCase
		for _, s := range rowShapes() {
			for _, fill := range fills {
				cs = append(cs, testCase{in: []operand{{f32(s...), fill}}})
			}
		}
		return cs
	}
}

// lastGradients gives (y, dy) with y made by the forward operation.
func lastGradients(op *graph.Op) []testCase {
	var cs []testCase
	for _, s := range rowShapes() {
		cs = append(cs, testCase{
			in:     []operand{{f32(s...), times(3, normal)}, {f32(s...), normal}},
			derive: func(in []*graph.Array) { in[0] = reference(op, nil, in[0])[0] },
		})
	}
	return cs
}

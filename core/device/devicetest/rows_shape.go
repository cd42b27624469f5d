package devicetest

import (
	"math/rand/v2"

	"starling/core/graph"
)

func dims(d ...int) graph.Dims { return graph.MakeDims(d) }

func shapeRows() map[string]row {
	return map[string]row{
		"const": {rel: halfUnit, cases: func(r *rand.Rand) []testCase {
			var cs []testCase
			for _, s := range someShapes(r) {
				cs = append(cs, testCase{attrs: graph.FullAttrs{Value: r.NormFloat64(), Shape: dims(s...)}})
			}
			return cs
		}},
		"reshape": {nan: []int{0}, cases: func(r *rand.Rand) []testCase {
			return []testCase{
				{attrs: graph.ShapeAttrs{Shape: dims(6, 7)}, in: []operand{{f32(2, 3, 7), normal}}},
				{attrs: graph.ShapeAttrs{Shape: dims()}, in: []operand{{f32(1, 1), normal}}},
				{attrs: graph.ShapeAttrs{Shape: dims(70001)}, in: []operand{{f32(1, 70001), normal}}},
				{attrs: graph.ShapeAttrs{Shape: dims(3, 5)}, in: []operand{{i32(15), whole(-9, 9)}}},
			}
		}},
		"stop_gradient": {nan: []int{0}, cases: func(r *rand.Rand) []testCase {
			return []testCase{{in: []operand{{f32(3, 11), normal}}}, {in: []operand{{f32(), normal}}}}
		}},
		"transpose":    {nan: []int{0}, cases: transposes},
		"slice":        {nan: []int{0}, cases: slices},
		"pad_slice":    {nan: []int{0}, cases: padSlices},
		"concat":       {nan: []int{0}, cases: concats},
		"broadcast_to": {nan: []int{0}, cases: broadcasts},
		"sum_to":       {rel: units, abs: 4 * units, nan: []int{0}, cases: sumTos},
	}
}

func transposes(r *rand.Rand) []testCase {
	var cs []testCase
	add := func(perm []int, shape ...int) {
		cs = append(cs, testCase{attrs: graph.PermAttrs{Perm: dims(perm...)}, in: []operand{{f32(shape...), normal}}})
	}
	add([]int{}, []int{}...)
	add([]int{0}, 5)
	add([]int{1, 0}, 3, 5)
	add([]int{1, 0}, 1, 17)
	add([]int{1, 0}, 130, 67)
	add([]int{0, 2, 1, 3}, 2, 5, 3, 16)
	add([]int{0, 2, 3, 1}, 2, 5, 3, 7)
	add([]int{0, 1, 2}, 2, 3, 4)
	for rank := 2; rank <= 6; rank++ {
		for range 3 {
			shape := make([]int, rank)
			for i := range shape {
				shape[i] = 1 + r.IntN(5)
			}
			add(r.Perm(rank), shape...)
		}
	}
	return append(cs, testCase{attrs: graph.PermAttrs{Perm: dims(1, 0)}, in: []operand{{i32(7, 3), whole(-9, 9)}}})
}

func slices(r *rand.Rand) []testCase {
	var cs []testCase
	for _, s := range [][]int{{5}, {1}, {3, 7}, {4, 33}, {2, 3, 17}, {2, 3, 4, 5}, {3, 300, 100}} {
		for axis, size := range s {
			start := r.IntN(size)
			end := start + 1 + r.IntN(size-start)
			for _, at := range []graph.SliceAttrs{{Axis: axis, Start: start, End: end}, {Axis: axis, Start: 0, End: size, Size: size}} {
				cs = append(cs, testCase{attrs: at, in: []operand{{f32(s...), normal}}})
			}
		}
	}
	return append(cs, testCase{attrs: graph.SliceAttrs{Axis: 1, Start: 1, End: 6}, in: []operand{{i32(3, 8), whole(-9, 9)}}})
}

func padSlices(r *rand.Rand) []testCase {
	var cs []testCase
	for _, s := range [][]int{{5}, {1}, {3, 7}, {4, 33}, {2, 3, 17}, {2, 3, 4, 5}, {3, 100, 100}} {
		for axis, size := range s {
			start := r.IntN(4)
			at := graph.SliceAttrs{Axis: axis, Start: start, End: start + size, Size: start + size + r.IntN(4)}
			cs = append(cs, testCase{attrs: at, in: []operand{{f32(s...), normal}}})
		}
	}
	return cs
}

func concats(r *rand.Rand) []testCase {
	var cs []testCase
	for _, s := range [][]int{{5}, {1}, {3, 7}, {4, 33}, {2, 3, 17}, {2, 3, 4, 5}} {
		for axis := range s {
			var in []operand
			for range 1 + r.IntN(4) {
				t := append([]int(nil), s...)
				t[axis] = 1 + r.IntN(9)
				in = append(in, operand{f32(t...), normal})
			}
			cs = append(cs, testCase{attrs: graph.AxisAttrs{Axis: axis}, in: in})
		}
	}
	return append(cs, testCase{attrs: graph.AxisAttrs{Axis: 0}, in: []operand{{i32(2, 3), whole(-9, 9)}, {i32(1, 3), whole(-9, 9)}}})
}

// stretches are shapes and what they broadcast to.
var stretches = [][2][]int{
	{{}, {}}, {{}, {5}}, {{1}, {7}}, {{7}, {7}}, {{7}, {3, 7}}, {{3, 1}, {3, 7}}, {{1, 7}, {3, 7}}, {{65}, {2, 3, 65}}, {{2, 1, 5}, {2, 3, 5}},
	{{1, 3, 1, 5}, {2, 3, 4, 5}}, {{3, 1, 5, 1}, {2, 3, 4, 5, 6}}, {{}, {130, 129}}, {{129}, {130, 129}}, {{130, 1}, {130, 129}}, {{8, 1, 1}, {4, 8, 5, 7}},
}

func broadcasts(*rand.Rand) []testCase {
	var cs []testCase
	for _, p := range stretches {
		cs = append(cs, testCase{attrs: graph.ShapeAttrs{Shape: dims(p[1]...)}, in: []operand{{f32(p[0]...), normal}}})
	}
	return cs
}

func sumTos(*rand.Rand) []testCase {
	var cs []testCase
	for _, p := range stretches {
		cs = append(cs, testCase{attrs: graph.ShapeAttrs{Shape: dims(p[0]...)}, in: []operand{{f32(p[1]...), normal}}})
	}
	return cs
}

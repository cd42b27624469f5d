package devicetest

import (
	"fmt"
	"math/rand/v2"

	"starling/core/graph"
)

// A product's error grows with its length: sums of K terms of order one differ by a few units times sqrt(K).
const product = 3e-6

func productRows() map[string]row {
	return map[string]row{
		"matmul": {abs: product, nan: []int{0, 1}, cases: matmuls},
		"linear": {abs: product, nan: []int{0, 1, 2}, cases: func(*rand.Rand) []testCase {
			var cs []testCase
			for _, l := range layers {
				c := testCase{in: []operand{{f32(append(l.rows, l.in)...), normal}, {f32(l.out, l.in), normal}}}
				cs = append(cs, c)
				c.in = append(c.in[:2:2], operand{f32(l.out), normal})
				cs = append(cs, c)
			}
			return cs
		}},
		"linear_grad_x": {abs: product, nan: []int{0, 1}, cases: func(*rand.Rand) []testCase {
			var cs []testCase
			for _, l := range layers {
				cs = append(cs, testCase{in: []operand{{f32(append(l.rows, l.out)...), normal}, {f32(l.out, l.in), normal}}})
			}
			return cs
		}},
		"linear_grad_w": {abs: product, nan: []int{0, 1}, cases: func(*rand.Rand) []testCase {
			var cs []testCase
			for _, l := range layers {
				cs = append(cs, testCase{in: []operand{{f32(append(l.rows, l.out)...), normal}, {f32(append(l.rows, l.in)...), normal}}})
			}
			return cs
		}},
		"linear_grad_w_wide": {abs: product, nan: []int{0, 1}, cases: func(*rand.Rand) []testCase {
			var cs []testCase
			for _, l := range layers {
				for _, t := range []func(...int) graph.Type{f32, bf16} {
					cs = append(cs, testCase{in: []operand{{t(append(l.rows, l.out)...), normal}, {t(append(l.rows, l.in)...), normal}}})
				}
			}
			return cs
		}},
		"linear_grad_b": {abs: product, nan: []int{0}, cases: func(*rand.Rand) []testCase {
			var cs []testCase
			for _, l := range layers {
				cs = append(cs, testCase{in: []operand{{f32(append(l.rows, l.out)...), normal}}})
			}
			return cs
		}},
		"embedding": {nan: []int{0}, cases: func(*rand.Rand) []testCase {
			var cs []testCase
			for _, e := range tables {
				cs = append(cs, testCase{in: []operand{{f32(e.rows, e.width), normal}, {i32(e.ids...), whole(0, e.rows)}}})
			}
			return append(cs, testCase{name: "ids outside the table ", in: []operand{{f32(5, 17), normal}, {i32(9), list(0, -1, 4, 5, 2, 1<<30, -1<<31, 3, 1)}}})
		}},
		"embedding_grad": {rel: units, abs: units, nan: []int{0}, cases: func(*rand.Rand) []testCase {
			var cs []testCase
			for _, e := range tables {
				cs = append(cs, testCase{attrs: graph.EmbeddingGradAttrs{Rows: e.rows},
					in: []operand{{f32(append(e.ids, e.width)...), normal}, {i32(e.ids...), whole(0, e.rows)}}})
			}
			return append(cs, testCase{name: "ids outside the table ", attrs: graph.EmbeddingGradAttrs{Rows: 5},
				in: []operand{{f32(9, 17), normal}, {i32(9), list(0, -1, 4, 5, 2, 1<<30, -1<<31, 3, 1)}}})
		}},
	}
}

// layers are dense layers: leading dimensions, inputs, outputs.
var layers = []struct {
	rows    []int
	in, out int
}{
	{nil, 1, 1}, {nil, 5, 3}, {[]int{1}, 17, 1}, {[]int{1}, 1, 17}, {[]int{3}, 5, 7}, {[]int{2, 3}, 8, 16}, {[]int{2, 17}, 33, 65}, {[]int{2, 1, 5}, 64, 31},
	{[]int{14}, 32, 32}, {[]int{29}, 400, 33}, {[]int{130}, 257, 100}, {[]int{4, 32}, 96, 384}, {[]int{2}, 1000, 130}, {[]int{600}, 20, 19},
}

var tables = []struct {
	rows, width int
	ids         []int
}{
	{1, 1, []int{1}}, {5, 3, []int{}}, {7, 17, []int{2, 5}}, {100, 64, []int{3, 33}}, {3, 100, []int{200}}, {50, 33, []int{2, 3, 4}}, {2000, 65, []int{300}},
}

func matmuls(r *rand.Rand) []testCase {
	var cs []testCase
	for _, size := range []struct {
		a, b    []int
		m, k, n int
	}{
		{nil, nil, 1, 1, 1}, {nil, nil, 3, 5, 7}, {nil, nil, 1, 33, 17}, {nil, nil, 17, 1, 33}, {nil, nil, 65, 130, 34}, {nil, nil, 14, 400, 32},
		{[]int{2}, []int{2}, 5, 3, 4}, {[]int{2}, nil, 5, 3, 4}, {nil, []int{2}, 5, 3, 4}, {[]int{2, 1}, []int{3}, 4, 9, 5}, {[]int{2, 3}, []int{2, 3}, 16, 8, 16},
		{[]int{1, 3}, []int{2, 1}, 7, 2, 9}, {[]int{4}, []int{4}, 33, 65, 31},
	} {
		for form := range 4 {
			at := graph.MatmulAttrs{TransA: form&1 != 0, TransB: form&2 != 0}
			a, b := []int{size.m, size.k}, []int{size.k, size.n}
			if at.TransA {
				a[0], a[1] = a[1], a[0]
			}
			if at.TransB {
				b[0], b[1] = b[1], b[0]
			}
			cs = append(cs, testCase{name: fmt.Sprintf("%v %v ", at.TransA, at.TransB), attrs: at,
				in: []operand{{f32(append(size.a[:len(size.a):len(size.a)], a...)...), normal}, {f32(append(size.b[:len(size.b):len(size.b)], b...)...), normal}}})
		}
	}
	return cs
}

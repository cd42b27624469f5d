package plan

import (
	"testing"

	"starling/core/graph"
	"starling/core/tensor"
)

// Products cost two operations for each multiply-add, counted here by hand.
func TestCostOfProducts(t *testing.T) {
	m := newTracer(t)
	x := m.input("x", tensor.F32, 2, 3, 4)
	w := m.param("w", 5, 4)
	dy := m.input("dy", tensor.F32, 2, 3, 5)
	img := m.input("img", tensor.F32, 2, 4, 6, 6)
	kernel := m.param("kernel", 8, 2, 3, 3)
	conv := graph.ConvAttrs{StrideH: 1, StrideW: 1, PadH: 1, PadW: 1, DilationH: 1, DilationW: 1, Groups: 2}
	q, k := m.input("q", tensor.F32, 2, 3, 4, 5), m.input("k", tensor.F32, 2, 3, 2, 5)
	attend := func(causal bool) *graph.Node {
		return m.op(graph.OpAttention, graph.AttentionAttrs{Causal: causal, Scale: 1}, q, k, k).Def
	}
	for _, c := range []struct {
		n    *graph.Node
		want int64
	}{
		{m.op(graph.OpLinear, nil, x, w).Def, 2 * 6 * 5 * 4},
		{m.op(graph.OpLinearGradX, nil, dy, w).Def, 2 * 6 * 5 * 4},
		{m.op(graph.OpLinearGradW, nil, dy, x).Def, 2 * 6 * 5 * 4},
		{m.op(graph.OpMatmul, graph.MatmulAttrs{TransB: true}, x, w).Def, 2 * 6 * 5 * 4},
		{m.op(graph.OpMatmul, graph.MatmulAttrs{TransA: true}, x, dy).Def, 2 * 2 * 4 * 5 * 3},
		{m.op(graph.OpConv2D, conv, img, kernel).Def, 2 * (2 * 8 * 6 * 6) * (2 * 3 * 3)},
		{attend(false), 2 * 2 * (3 * 3) * (2 * 4 * 5)}, // scores and values, every pair
		{attend(true), 2 * 2 * (1 + 2 + 3) * (2 * 4 * 5)},
	} {
		if got, _ := cost(c.n); got != c.want {
			t.Errorf("%v: %d operations, want %d", c.n, got, c.want)
		}
	}
	if _, bytes := cost(m.op(graph.OpAdd, nil, x, x).Def); bytes != 3*24*4 {
		t.Errorf("an addition of 24 elements moves %d bytes", bytes)
	}
}

func TestCausalPairs(t *testing.T) {
	for queries := int64(1); queries < 7; queries++ {
		for keys := int64(1); keys < 7; keys++ {
			want := int64(0)
			for q := range queries {
				for k := range keys {
					if k <= q+keys-queries {
						want++
					}
				}
			}
			if got := causalPairs(queries, keys); got != want {
				t.Errorf("%d queries and %d keys: %d pairs, want %d", queries, keys, got, want)
			}
		}
	}
}

// Every entry of the tables names an operation that exists.
func TestCostTablesNameOperations(t *testing.T) {
	for name := range perElement {
		if _, err := graph.Lookup(name); err != nil {
			t.Error(err)
		}
		if _, both := products[name]; both {
			t.Errorf("%s stands in both tables", name)
		}
	}
	for name := range products {
		if _, err := graph.Lookup(name); err != nil {
			t.Error(err)
		}
	}
}

// A parameter of N elements costs about six operations a token in a transformer of narrow context.
func TestStepCostsSixOperationsAParameterAndToken(t *testing.T) {
	size := gptSize{B: 4, T: 8, C: 128, V: 64, Layers: 4, Heads: 4}
	s := mustBuild(t, gpt(t, size, true), settings(1, 0)).Summary()
	per := float64(s.ForwardFLOPs+s.BackwardFLOPs) / float64(s.Parameters) / float64(size.B*size.T)
	if per < 5.8 || per > 7 {
		t.Errorf("%.2f operations a parameter and token", per)
	}
	if r := float64(s.BackwardFLOPs) / float64(s.ForwardFLOPs); r < 1.9 || r > 2.1 {
		t.Errorf("backward costs %.2f times forward", r)
	}
}

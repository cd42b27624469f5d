package graph_test

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"starling/core/graph"
	"starling/core/tensor"
)

// The gradients that linear_cross_entropy_grads makes are those of its loss by central differences, whatever the chunks.
func TestLinearLossGradients(t *testing.T) {
	for _, rows := range []int{1, 2, 4, 6, 100} {
		r := rand.New(rand.NewPCG(11, uint64(rows)))
		b := graph.NewBuilder()
		input := func(name string, d tensor.DType, shape ...int) *graph.Value {
			return b.Must(graph.OpInput, graph.InputAttrs{Name: name, DType: d, Shape: graph.MakeDims(shape)})[0]
		}
		seed, x, w, targets := input("seed", tensor.F32), input("x", tensor.F32, 2, 3, 4), input("w", tensor.F32, 5, 4), input("targets", tensor.I32, 2, 3)
		at := graph.LinearLossAttrs{CrossEntropyAttrs: graph.CrossEntropyAttrs{Ignore: 3}, Rows: rows}
		n := b.Must(graph.OpLinearCrossEntropyGrads, at, seed, x, w, targets)[0].Def
		in := []*graph.Array{graph.NewArray(seed.Type), graph.NewArray(x.Type), graph.NewArray(w.Type), graph.NewArray(targets.Type)}
		in[0].Data[0] = 0.7
		for _, a := range in[1:3] {
			for i := range a.Data {
				a.Data[i] = r.NormFloat64()
			}
		}
		copy(in[3].Data, []float64{2, 0, 3, -1, 4, 4})
		out := n.Op.Ref(n, in)
		if out[3].Data[0] != 4 {
			t.Errorf("the weight is %v, want the 4 rows that count", out[3].Data[0])
		}
		const h = 1e-5
		for k, grad := range map[int]*graph.Array{1: out[1], 2: out[0]} {
			for i, got := range grad.Data {
				at := func(d float64) float64 {
					old := in[k].Data[i]
					defer func() { in[k].Data[i] = old }()
					in[k].Data[i] += d
					return n.Op.Ref(n, in)[2].Data[0]
				}
				if want := 0.7 * (at(h) - at(-h)) / (2 * h); math.Abs(got-want) > 1e-8 {
					t.Errorf("chunks of %d: gradient %d of input %d is %v, want %v", rows, i, k, got, want)
				}
			}
		}
	}
}

func TestLinearLossShapes(t *testing.T) {
	f := func(shape ...int) graph.Type { return graph.Type{DType: tensor.F32, Shape: shape} }
	i := func(shape ...int) graph.Type { return graph.Type{DType: tensor.I32, Shape: shape} }
	for _, c := range []struct {
		rows int
		in   []graph.Type
		want string
	}{
		{4, []graph.Type{f(2, 3, 4), f(5, 4), i(2, 3)}, ""},
		{0, []graph.Type{f(2, 3, 4), f(5, 4), i(2, 3)}, "chunks of 0 rows"},
		{4, []graph.Type{f(2, 3, 4), f(5, 6), i(2, 3)}, "the inner sizes 4 and 6 differ"},
		{4, []graph.Type{f(2, 3, 4), f(5, 4), i(3, 2)}, "targets must be of shape [2,3]"},
		{4, []graph.Type{f(2, 3, 4), f(5, 4), f(2, 3)}, "targets"},
	} {
		b := graph.NewBuilder()
		var in []*graph.Value
		for k, ty := range append([]graph.Type{f()}, c.in...) {
			in = append(in, b.Must(graph.OpInput, graph.InputAttrs{Name: string(rune('a' + k)), DType: ty.DType, Shape: graph.MakeDims(ty.Shape)})[0])
		}
		for op, args := range map[*graph.Op][]*graph.Value{graph.OpLinearCrossEntropy: in[1:], graph.OpLinearCrossEntropyGrads: in} {
			_, err := b.Apply(op, graph.LinearLossAttrs{Rows: c.rows}, args...)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%s%v: %v, want %q", op.Name, c.in, err, c.want)
			}
		}
	}
}

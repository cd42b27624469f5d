package graph_test

import (
	"testing"

	"starling/core/graph"
	"starling/core/tensor"
)

// builder makes graphs in tests; a mistake ends the test.
type builder struct {
	*graph.Builder
	t testing.TB
}

func newBuilder(t testing.TB) *builder { return &builder{graph.NewBuilder(), t} }

func (b *builder) op(op *graph.Op, attrs any, in ...*graph.Value) []*graph.Value {
	b.t.Helper()
	out, err := b.Apply(op, attrs, in...)
	if err != nil {
		b.t.Fatalf("%s: %v", op.Name, err)
	}
	return out
}

func (b *builder) one(op *graph.Op, attrs any, in ...*graph.Value) *graph.Value {
	b.t.Helper()
	return b.op(op, attrs, in...)[0]
}

func (b *builder) input(name string, d tensor.DType, shape ...int) *graph.Value {
	b.t.Helper()
	return b.one(graph.OpInput, graph.InputAttrs{Name: name, DType: d, Shape: graph.MakeDims(shape)})
}

func (b *builder) param(name string, shape ...int) *graph.Value {
	b.t.Helper()
	return b.one(graph.OpParam, graph.ParamAttrs{Name: name, Shape: graph.MakeDims(shape)})
}

// sum adds all elements.
func (b *builder) sum(x *graph.Value) *graph.Value {
	b.t.Helper()
	axes := make([]int, len(x.Shape))
	for i := range axes {
		axes[i] = i
	}
	return b.one(graph.OpSum, graph.ReduceAttrs{Axes: graph.MakeDims(axes)}, x)
}

func (b *builder) differentiate(loss *graph.Value) []graph.Gradient {
	b.t.Helper()
	seed := b.input("seed", loss.DType, loss.Shape...)
	grads, _, err := graph.Differentiate(b.G, loss, seed)
	if err != nil {
		b.t.Fatal(err)
	}
	if err := graph.Verify(b.G); err != nil {
		b.t.Fatal(err)
	}
	return grads
}

func dims(d ...int) graph.Dims { return graph.MakeDims(d) }

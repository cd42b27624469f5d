package graph_test

import (
	"strings"
	"testing"

	"starling/core/graph"
	"starling/core/tensor"
)

func TestVerifyFindsBrokenGraphs(t *testing.T) {
	for _, c := range []struct {
		name, want string
		damage     func(b *builder, y *graph.Value)
	}{
		{"a use before its definition", "input 0 (%1) is not defined before it", func(b *builder, y *graph.Value) {
			n := b.G.Nodes
			n[1], n[2] = n[2], n[1]
		}},
		{"a value of another graph", "input 0 (%0) is not defined before it", func(b *builder, y *graph.Value) {
			y.Def.In[0] = newBuilder(b.t).input("x", tensor.F32, 3)
		}},
		{"a type that the rule does not give", "result 0 is f32[4], its rule gives f32[3]", func(b *builder, y *graph.Value) {
			y.Shape = tensor.Shape{4}
		}},
		{"an input that the rule refuses", "needs floating-point values, got i32[3]", func(b *builder, y *graph.Value) {
			y.Def.In[0].DType = tensor.I32
			y.Def.In[0].Def.In[0].DType = tensor.I32
			y.Def.In[0].Def.Op = graph.OpStopGradient
			in := b.G.Nodes[0].Attrs.(graph.InputAttrs)
			in.DType = tensor.I32
			b.G.Nodes[0].Attrs = in
		}},
		{"a missing result", "has 0 results, its rule gives 1", func(b *builder, y *graph.Value) { y.Def.Out = nil }},
		{"a result of another node", "result 0 (%2) belongs to another node", func(b *builder, y *graph.Value) { y.Def = b.G.Nodes[0] }},
		{"a number used twice", "result 0 has the number of another value, %0", func(b *builder, y *graph.Value) { y.ID = 0 }},
		{"two parameters of one name", "parameter w is defined twice", func(b *builder, y *graph.Value) { b.param("w", 2); b.param("w", 3) }},
		{"two inputs of one name", "input x is defined twice", func(b *builder, y *graph.Value) { b.input("x", tensor.F32) }},
		{"two draws with one key", "its key 0x9 is that of an earlier draw", func(b *builder, y *graph.Value) {
			rng := b.input("rng", tensor.U32, 4)
			b.one(graph.OpDropout, graph.DropoutAttrs{P: 0.1, Key: 9}, y, rng)
			b.one(graph.OpDropout, graph.DropoutAttrs{P: 0.1, Key: 9}, y, rng)
		}},
		{"an output from nowhere", `output "z" is no value of the graph`, func(b *builder, y *graph.Value) { b.Output("z", &graph.Value{}) }},
		{"an output defined twice", `output "y" is defined twice`, func(b *builder, y *graph.Value) { b.Output("y", y) }},
		{"no operation", "node 1 has no operation", func(b *builder, y *graph.Value) { b.G.Nodes[1].Op = nil }},
		{"attributes of another operation", "needs attributes of type graph.ScalarAttrs, got graph.NormAttrs", func(b *builder, y *graph.Value) {
			y.Def.Attrs = graph.NormAttrs{}
			y.Def.Op = graph.OpScale
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBuilder(t)
			y := b.one(graph.OpExp, nil, b.one(graph.OpNeg, nil, b.input("x", tensor.F32, 3)))
			b.Output("y", y)
			if err := graph.Verify(b.G); err != nil {
				t.Fatalf("the sound graph: %v", err)
			}
			c.damage(b, y)
			if err := graph.Verify(b.G); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}

func TestRecomputedDrawsMayShareTheirKey(t *testing.T) {
	b := newBuilder(t)
	w, rng := b.param("w", 3), b.input("rng", tensor.U32, 4)
	loss := b.sum(b.one(graph.OpDropout, graph.DropoutAttrs{P: 0.1, Key: 9}, w, rng))
	b.differentiate(loss) // verifies: the gradient draws again under the same key
}

package graph_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"starling/core/graph"
	"starling/core/tensor"
)

// names lists gradients as parameter#use.
func names(grads []graph.Gradient) []string {
	var out []string
	for _, d := range grads {
		out = append(out, fmt.Sprintf("%s#%d", d.Param.Attrs.(graph.ParamAttrs).Name, d.Use))
	}
	return out
}

func expectNames(t *testing.T, got []graph.Gradient, want ...string) {
	t.Helper()
	if !slices.Equal(names(got), want) {
		t.Errorf("gradients are %v, want %v", names(got), want)
	}
}

// A tied embedding: the table is read by the embedding first and by the head last, so the backward pass completes the head's use first.
func TestEachUseOfATiedParameterHasItsGradient(t *testing.T) {
	b := newBuilder(t)
	table, w := b.param("wte", 5, 3), b.param("w", 3, 3)
	ids := b.input("ids", tensor.I32, 4)
	h := b.one(graph.OpEmbedding, nil, table, ids)
	h = b.one(graph.OpLinear, nil, h, w)
	logits := b.one(graph.OpLinear, nil, h, table)
	loss := b.one(graph.OpCrossEntropy, graph.CrossEntropyAttrs{Ignore: -1}, logits, ids)
	grads := b.differentiate(loss)
	expectNames(t, grads, "wte#1", "w#0", "wte#0")
	for i, op := range []string{"linear_grad_w", "linear_grad_w", "embedding_grad"} {
		if got := grads[i].Value.Def.Op.Name; got != op {
			t.Errorf("gradient %d is made by %s, want %s", i, got, op)
		}
	}
}

func TestUsesAreCountedByDirectConsumer(t *testing.T) {
	b := newBuilder(t)
	w := b.param("w", 2, 3)
	flat := b.one(graph.OpReshape, graph.ShapeAttrs{Shape: dims(6)}, w)
	y := b.one(graph.OpMul, nil, flat, b.one(graph.OpExp, nil, flat)) // two uses of the view, one of w
	z := b.one(graph.OpMul, nil, w, w)                                // one more, in both operands of one node
	loss := b.one(graph.OpAdd, nil, b.sum(y), b.sum(z))
	expectNames(t, b.differentiate(loss), "w#1", "w#0")
}

func TestNoGradientForWhatNeedsNone(t *testing.T) {
	b := newBuilder(t)
	x := b.input("x", tensor.F32, 4, 3)
	w1, w2 := b.param("w1", 3, 3), b.param("w2", 3, 3)
	frozen := b.one(graph.OpParam, graph.ParamAttrs{Name: "frozen", Shape: dims(3, 3), Frozen: true})
	stopped, unused := b.param("stopped", 3, 3), b.param("unused", 7)
	h := b.one(graph.OpLinear, nil, x, w1)
	h = b.one(graph.OpLinear, nil, h, frozen)
	h = b.one(graph.OpLinear, nil, h, w2)
	h = b.one(graph.OpMul, nil, h, b.one(graph.OpStopGradient, nil, b.one(graph.OpLinear, nil, x, stopped)))
	loss := b.sum(h)
	first := len(b.G.Nodes)
	seed := b.input("seed", tensor.F32)
	grads, unreached, err := graph.Differentiate(b.G, loss, seed)
	if err != nil {
		t.Fatal(err)
	}
	expectNames(t, grads, "w2#0", "w1#0")
	if len(unreached) != 2 || unreached[0] != stopped.Def || unreached[1] != unused.Def {
		t.Errorf("unreached parameters are %v, want stopped and unused", unreached)
	}
	used := map[*graph.Value]bool{}
	for _, d := range grads {
		used[d.Value] = true
	}
	for _, n := range slices.Backward(b.G.Nodes) {
		for _, v := range n.In {
			if slices.ContainsFunc(n.Out, func(o *graph.Value) bool { return used[o] }) {
				used[v] = true
			}
		}
	}
	var ops []string
	for _, n := range b.G.Nodes[first:] {
		if n.Op == graph.OpInput {
			continue
		}
		ops = append(ops, n.Op.Name)
		if !slices.ContainsFunc(n.Out, func(o *graph.Value) bool { return used[o] }) {
			t.Errorf("node %v serves no gradient", n)
		}
	}
	want := "broadcast_to mul linear_grad_x linear_grad_w linear_grad_x linear_grad_w"
	slices.Sort(ops)
	sorted := strings.Fields(want)
	slices.Sort(sorted)
	if !slices.Equal(ops, sorted) {
		t.Errorf("the backward pass is %v, want %v", ops, sorted)
	}
}

func TestBackwardNodesInheritTheirPlace(t *testing.T) {
	b := newBuilder(t)
	x, w := b.input("x", tensor.F32, 4, 3), b.param("w", 3, 3)
	b.Pos, b.Block = graph.Position{File: "net.star", Line: 3, Col: 9}, "h.0"
	y := b.one(graph.OpLinear, nil, x, w)
	b.Pos, b.Block = graph.Position{File: "net.star", Line: 8, Col: 1}, "h.1"
	z := b.one(graph.OpMul, nil, y, b.one(graph.OpReLU, nil, y))
	loss := b.sum(z)
	first := len(b.G.Nodes)
	b.differentiate(loss)
	for _, n := range b.G.Nodes[first:] {
		if n.Op == graph.OpInput {
			continue
		}
		line, block := 8, "h.1"
		if n.Op == graph.OpLinearGradW {
			line, block = 3, "h.0"
		}
		if n.Phase != graph.Backward || n.Pos.Line != line || n.Block != block {
			t.Errorf("%v has phase %d, line %d, block %s; want backward, line %d, block %s", n, n.Phase, n.Pos.Line, n.Block, line, block)
		}
	}
}

func TestContributionsAreAddedInBackwardOrder(t *testing.T) {
	b := newBuilder(t)
	w := b.param("w", 3)
	x := b.one(graph.OpExp, nil, w)
	first, second, third := b.one(graph.OpTanh, nil, x), b.one(graph.OpSigmoid, nil, x), b.one(graph.OpSiLU, nil, x)
	loss := b.sum(b.one(graph.OpConcat, graph.AxisAttrs{}, first, second, third))
	grads := b.differentiate(loss)
	last := grads[0].Value.Def.In[0].Def // the gradient of x
	chain := []string{last.Op.Name, last.In[0].Def.Op.Name, last.In[0].Def.In[0].Def.Op.Name, last.In[0].Def.In[1].Def.Op.Name, last.In[1].Def.Op.Name}
	want := []string{"add", "add", "silu_grad", "sigmoid_grad", "tanh_grad"}
	if !slices.Equal(chain, want) {
		t.Errorf("the chain is %v, want %v", chain, want)
	}
}

func TestDifferentiateNamesWhatHasNoGradient(t *testing.T) {
	b := newBuilder(t)
	w := b.param("w", 2, 3)
	targets := b.input("targets", tensor.I32, 2)
	b.Pos = graph.Position{File: "net.star", Line: 7, Col: 2}
	out := b.op(graph.OpCrossEntropy, graph.CrossEntropyAttrs{}, w, targets)
	b.Pos = graph.Position{}
	for _, c := range []struct {
		loss *graph.Value
		want string
	}{
		{b.sum(out[2]), "net.star:7:2: cross_entropy: its result 2 has no gradient, but the loss depends on a parameter through it"},
		{b.sum(b.one(graph.OpAccumulate, nil, w, w)), "accumulate: has no gradient, but the loss depends on a parameter through it"},
	} {
		seed := b.input(fmt.Sprintf("seed %v", c.loss), tensor.F32)
		_, _, err := graph.Differentiate(b.G, c.loss, seed)
		if err == nil || err.Error() != c.want {
			t.Errorf("error %q, want %q", err, c.want)
		}
	}
	if _, _, err := graph.Differentiate(b.G, w, out[0]); err == nil {
		t.Error("a seed of another shape than the loss is accepted")
	}
	// The weight is a count: dividing by it is no mistake.
	mean := b.one(graph.OpDiv, nil, out[0], out[1])
	expectNames(t, b.differentiate(mean), "w#0")
}

func TestLossWithoutParameters(t *testing.T) {
	b := newBuilder(t)
	loss := b.sum(b.input("x", tensor.F32, 3))
	w := b.param("w", 2)
	seed := b.input("seed", tensor.F32)
	grads, unreached, err := graph.Differentiate(b.G, loss, seed)
	if err != nil || len(grads) != 0 || len(unreached) != 1 || unreached[0] != w.Def {
		t.Errorf("got %v, %v, %v; want no gradients and w unreached", grads, unreached, err)
	}
}

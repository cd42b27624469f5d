package plan

import (
	"starling/core/graph"
	"starling/core/tensor"
)

const (
	// lossRows is the rows of a chunk of logits: as many as a product takes without packing its right operand twice.
	lossRows = 384
	// lossLeast is the number of logits from which on chunks are worth their passes over the weight and its gradient.
	lossLeast = 1 << 25
)

// chunkLoss joins a linear layer and the cross-entropy of its result, which then never exist beyond a chunk of rows; in training the three
// products of the layer as well. The gradient of the loss is known before the loss is, so one pass over the chunks makes both. Every sum is
// the one that it was, so no bit changes.
func chunkLoss(s *State) error {
	rows, least := s.Settings.LossRows, 0
	switch {
	case rows < 0:
		return nil
	case rows == 0:
		rows, least = lossRows, lossLeast
	}
	heads, gone := map[*graph.Node]*lossHead{}, map[*graph.Node]bool{}
	m := lossMatcher{consumersOf(s.Graph)}
	for _, n := range s.Graph.Nodes {
		if n.Op != graph.OpCrossEntropy {
			continue
		}
		h := m.head(n)
		if h == nil || n.Out[2].Shape.Numel() <= rows || n.In[0].Shape.Numel() < least {
			continue
		}
		heads[n] = h
		for _, p := range h.parts {
			gone[p] = true
		}
	}
	if len(heads) == 0 {
		return nil
	}
	r := newRewriter()
	for _, n := range s.Graph.Nodes {
		switch h := heads[n]; {
		case h != nil:
			h.replace(r, rows)
		case !gone[n] && (len(n.Out) == 0 || r.env[n.Out[0]] == nil): // the seed may have come earlier
			r.copy(n)
		}
	}
	s.Graph = r.finish(s.Graph)
	return nil
}

// lossHead is a linear layer with the cross-entropy of its result, and the gradients of both in training.
type lossHead struct {
	linear, loss       *graph.Node
	grad, gradX, gradW *graph.Node   // nil in a graph without gradients
	parts              []*graph.Node // all that is replaced, casts among it
}

// replace appends the operation that stands for the head.
func (h *lossHead) replace(r *rewriter, rows int) {
	n := h.loss
	a := graph.LinearLossAttrs{CrossEntropyAttrs: n.Attrs.(graph.CrossEntropyAttrs), Rows: rows}
	x, w, targets := r.env[h.linear.In[0]], r.env[h.linear.In[1]], r.env[n.In[1]]
	if h.grad == nil {
		out := r.apply(n, graph.OpLinearCrossEntropy, a, x, w, targets)
		r.env[n.Out[0]], r.env[n.Out[1]] = out[0], out[1]
		return
	}
	seed := h.grad.In[0]
	if r.env[seed] == nil {
		r.copy(seed.Def)
	}
	r.b.Pos, r.b.Block, r.b.Phase = n.Pos, n.Block, graph.Backward
	out := r.b.Must(graph.OpLinearCrossEntropyGrads, a, r.env[seed], x, w, targets)
	r.env[h.gradW.Out[0]], r.env[h.gradX.Out[0]], r.env[n.Out[0]], r.env[n.Out[1]] = out[0], out[1], out[2], out[3]
}

// lossMatcher finds heads: layers without a bias, in fp32 or in bfloat16, whose logits nothing reads but the loss.
type lossMatcher struct{ consumers map[*graph.Value]uses }

// head returns the head of a cross-entropy, nil if it has none that can be replaced.
func (m lossMatcher) head(loss *graph.Node) *lossHead {
	logits := uncast(loss.In[0], tensor.BF16)
	h := &lossHead{linear: logits.Def, loss: loss, parts: []*graph.Node{logits.Def, loss}}
	if h.linear.Op != graph.OpLinear || len(h.linear.In) != 2 || logits.DType != tensor.F32 && logits.DType != tensor.BF16 {
		return nil
	}
	readers, ok := m.readers(logits, &h.parts)
	lse := m.consumers[loss.Out[2]]
	if !ok || len(lse.outputs) > 0 {
		return nil
	}
	if len(readers) == 1 && len(lse.nodes) == 0 {
		return h
	}
	if len(readers) != 2 || len(lse.nodes) != 1 {
		return nil
	}
	h.grad = lse.nodes[0]
	if h.grad.Op != graph.OpCrossEntropyGrad || h.grad.Attrs != loss.Attrs || readers[0] != loss || readers[1] != h.grad ||
		h.grad.In[2] != loss.In[1] || !isSeed(h.grad.In[0]) {
		return nil
	}
	h.parts = append(h.parts, h.grad)
	readers, ok = m.readers(h.grad.Out[0], &h.parts)
	if !ok || len(readers) != 2 {
		return nil
	}
	for _, n := range readers {
		switch dy := uncast(n.In[0], tensor.F32); {
		case n.In[0].DType != logits.DType || dy != h.grad.Out[0]:
			return nil
		case n.Op == graph.OpLinearGradX && n.In[1] == h.linear.In[1] && n.Out[0].DType == logits.DType:
			h.gradX = n
		case (n.Op == graph.OpLinearGradW || n.Op == graph.OpLinearGradWWide) && n.In[1] == h.linear.In[0] && n.Out[0].DType == tensor.F32:
			h.gradW = n
		}
	}
	if h.gradX == nil || h.gradW == nil {
		return nil
	}
	h.parts = append(h.parts, h.gradX, h.gradW)
	return h
}

// uncast looks behind a cast from a type.
func uncast(v *graph.Value, from tensor.DType) *graph.Value {
	if d := v.Def; d.Op == graph.OpCast && d.In[0].DType == from {
		return d.In[0]
	}
	return v
}

// readers are the nodes that read v or a cast of it, which are added to parts. It fails where v or a cast is an output.
func (m lossMatcher) readers(v *graph.Value, parts *[]*graph.Node) (nodes []*graph.Node, ok bool) {
	u := m.consumers[v]
	if len(u.outputs) > 0 {
		return nil, false
	}
	for _, n := range u.nodes {
		if n.Op != graph.OpCast {
			nodes = append(nodes, n)
			continue
		}
		behind := m.consumers[n.Out[0]]
		if len(behind.outputs) > 0 {
			return nil, false
		}
		*parts = append(*parts, n)
		nodes = append(nodes, behind.nodes...)
	}
	return nodes, true
}

// isSeed reports whether v is the gradient of the whole loss, which is known before the forward pass.
func isSeed(v *graph.Value) bool {
	a, ok := v.Def.Attrs.(graph.InputAttrs)
	return ok && a.Name == InputSeed
}

package plan

import (
	"slices"

	"starling/core/graph"
)

// fuseAttention replaces attention on three slices of one value by attention that reads the value itself, and the concatenation of
// its three gradients by one that writes them side by side. The arithmetic is the same; what falls away are the copies.
func fuseAttention(s *State) error {
	if err := prune(s); err != nil { // what an earlier fusion has replaced still reads the gradients
		return err
	}
	g := s.Graph
	consumers := consumersOf(g)
	grads := map[*graph.Node]*graph.Node{} // concatenation → attention_grad
	joint := map[*graph.Node]*graph.Value{}
	backward := map[*graph.Node]bool{} // attention_grad that is replaced
	for _, n := range g.Nodes {
		if n.Op != graph.OpAttention {
			continue
		}
		x := joined(n.In)
		if x == nil {
			continue
		}
		fits := true
		var concats, gradients []*graph.Node
		for _, c := range consumers[n.Out[1]].nodes { // whoever reads the sums of exponentials is a gradient
			concat := joinedGradient(c, consumers)
			if concat == nil || joined(c.In[1:4]) != x {
				fits = false
				break
			}
			concats, gradients = append(concats, concat), append(gradients, c)
		}
		if !fits || len(consumers[n.Out[1]].outputs) > 0 {
			continue
		}
		joint[n] = x
		for i, c := range concats {
			grads[c] = gradients[i]
			backward[gradients[i]] = true
		}
	}
	r := newRewriter()
	attrs := func(n *graph.Node, heads int) graph.JointAttentionAttrs {
		return graph.JointAttentionAttrs{AttentionAttrs: n.Attrs.(graph.AttentionAttrs), Heads: heads}
	}
	for _, n := range g.Nodes {
		switch {
		case joint[n] != nil:
			out := r.apply(n, graph.OpAttentionJoint, attrs(n, n.In[0].Shape[2]), r.env[joint[n]])
			r.env[n.Out[0]], r.env[n.Out[1]] = out[0], out[1]
		case grads[n] != nil:
			a := grads[n]
			r.env[n.Out[0]] = r.apply(a, graph.OpAttentionJointGrad, attrs(a, a.In[1].Shape[2]),
				r.env[a.In[0]], r.env[joined(a.In[1:4])], r.env[a.In[4]], r.env[a.In[5]])[0]
		case backward[n], n.Op.View && backward[n.In[0].Def]:
			// Nothing but the concatenation reads these.
		default:
			r.copy(n)
		}
	}
	s.Graph = r.finish(g)
	return nil
}

// joined returns the value of which queries, keys and values of equal shape are the three thirds, in this order; nil if
// there is none, or if there are segments.
func joined(in []*graph.Value) *graph.Value {
	if len(in) != 3 || !in[0].Shape.Equal(in[1].Shape) {
		return nil
	}
	var whole *graph.Value
	for i, v := range in {
		n := v.Def
		if !n.Op.View || n.In[0].Def.Op != graph.OpSlice {
			return nil
		}
		cut := n.In[0].Def
		a, x := cut.Attrs.(graph.SliceAttrs), cut.In[0]
		third := cut.Out[0].Shape[len(cut.Out[0].Shape)-1]
		batch, time, width := v.Shape[0], v.Shape[1], v.Shape[2]*v.Shape[3]
		if len(x.Shape) != 3 || !x.Shape.Equal([]int{batch, time, 3 * width}) || third != width || a.Axis != 2 || a.Start != i*width || whole != nil && x != whole {
			return nil
		}
		whole = x
	}
	return whole
}

// joinedGradient returns the concatenation that puts the three results of an attention_grad side by side and that alone reads
// them, nil if there is none.
func joinedGradient(n *graph.Node, consumers map[*graph.Value]uses) *graph.Node {
	if n.Op != graph.OpAttentionGrad || len(n.In) != 6 {
		return nil
	}
	var concat *graph.Node
	for i, v := range n.Out {
		for _, view := range []bool{true, false} { // through a reshape to the concatenation
			u := consumers[v]
			if len(u.nodes) != 1 || len(u.outputs) > 0 || u.nodes[0].Op.View != view {
				return nil
			}
			if view {
				v = u.nodes[0].Out[0]
				continue
			}
			c := u.nodes[0]
			if c.Op != graph.OpConcat || c.Attrs.(graph.AxisAttrs).Axis != 2 || len(c.In) != 3 || slices.Index(c.In, v) != i || concat != nil && c != concat {
				return nil
			}
			concat = c
		}
	}
	return concat
}

package plan

import (
	"cmp"
	"slices"

	"starling/core/graph"
)

// fuse replaces groups of nodes by one node that does their work in fewer passes over memory. It may change the last
// bits, so it comes before everything that depends on placement and looks at the graph alone.
//
// One form is known: the gradient of slicing a value into adjoining pieces, such as queries, keys and values. Each
// piece's gradient is put into zeros of the whole size and the results are added; where the pieces cover the whole, that is
// their concatenation (up to the sign of zeros).
func fuse(s *State) error {
	joined := joinedSlices(s.Graph)
	r := newRewriter()
	for _, n := range s.Graph.Nodes {
		parts, ok := joined[n]
		if !ok {
			r.copy(n)
			continue
		}
		in := make([]*graph.Value, len(parts))
		for i, p := range parts {
			in[i] = r.env[p.In[0]]
		}
		r.env[n.Out[0]] = r.apply(n, graph.OpConcat, graph.AxisAttrs{Axis: parts[0].Attrs.(graph.SliceAttrs).Axis}, in...)[0]
	}
	s.Graph = r.finish(s.Graph)
	return nil
}

// joinedSlices finds the add nodes whose operands come, through adds that nothing else reads, from pad_slice nodes
// that cover the result. It returns those in ascending order of position. What they leave behind is pruned later.
func joinedSlices(g *graph.Graph) map[*graph.Node][]*graph.Node {
	consumers := consumersOf(g)
	parts := map[*graph.Value][]*graph.Node{} // disjoint pieces that add up to the value
	joined := map[*graph.Node][]*graph.Node{}
	for _, n := range g.Nodes {
		switch n.Op {
		case graph.OpPadSlice:
			parts[n.Out[0]] = []*graph.Node{n}
		case graph.OpAdd:
			pieces := slices.Concat(parts[n.In[0]], parts[n.In[1]])
			slices.SortStableFunc(pieces, func(a, b *graph.Node) int {
				return cmp.Compare(a.Attrs.(graph.SliceAttrs).Start, b.Attrs.(graph.SliceAttrs).Start)
			})
			if parts[n.In[0]] == nil || parts[n.In[1]] == nil || !disjoint(pieces) || !privateSum(n, consumers) {
				continue
			}
			parts[n.Out[0]] = pieces
			if covers(pieces) {
				joined[n] = pieces
			}
		}
	}
	return joined
}

// privateSum reports whether the operands of n that are sums themselves are read by n alone.
func privateSum(n *graph.Node, consumers map[*graph.Value]uses) bool {
	return !slices.ContainsFunc(n.In, func(v *graph.Value) bool {
		return v.Def.Op == graph.OpAdd && len(consumers[v].nodes)+len(consumers[v].outputs) > 1
	})
}

// disjoint reports whether ascending pieces lie along one axis of one size without overlap.
func disjoint(pieces []*graph.Node) bool {
	for i, p := range pieces[:max(0, len(pieces)-1)] {
		a, b := p.Attrs.(graph.SliceAttrs), pieces[i+1].Attrs.(graph.SliceAttrs)
		if a.Axis != b.Axis || a.Size != b.Size || a.End > b.Start || !sameType(p.Out[0].Type, pieces[i+1].Out[0].Type) {
			return false
		}
	}
	return true
}

// covers reports whether ascending, disjoint pieces leave no gap.
func covers(pieces []*graph.Node) bool {
	at := 0
	for _, p := range pieces {
		a := p.Attrs.(graph.SliceAttrs)
		if a.Start != at {
			return false
		}
		at = a.End
	}
	return at == pieces[0].Attrs.(graph.SliceAttrs).Size
}

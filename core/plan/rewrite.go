package plan

import (
	"fmt"
	"strings"

	"starling/core/graph"
)

// rewriter builds a new graph from an old one, node by node.
type rewriter struct {
	b   *graph.Builder
	env map[*graph.Value]*graph.Value // old value → new value
}

func newRewriter() *rewriter {
	return &rewriter{b: graph.NewBuilder(), env: map[*graph.Value]*graph.Value{}}
}

// inputs returns the new values that a node's inputs have become.
func (r *rewriter) inputs(n *graph.Node) []*graph.Value {
	in := make([]*graph.Value, len(n.In))
	for i, v := range n.In {
		in[i] = r.env[v]
	}
	return in
}

// apply appends a node that stands where n stood.
func (r *rewriter) apply(n *graph.Node, op *graph.Op, attrs any, in ...*graph.Value) []*graph.Value {
	r.b.Pos, r.b.Block, r.b.Phase = n.Pos, n.Block, n.Phase
	return r.b.Must(op, attrs, in...)
}

// copy appends a copy of n.
func (r *rewriter) copy(n *graph.Node) *graph.Node {
	out := r.apply(n, n.Op, n.Attrs, r.inputs(n)...)
	for i, v := range n.Out {
		r.env[v] = out[i]
	}
	return out[0].Def
}

// finish copies the outputs and returns the new graph.
func (r *rewriter) finish(old *graph.Graph) *graph.Graph {
	for _, o := range old.Outputs {
		r.b.Output(o.Name, r.env[o.Value])
	}
	return r.b.G
}

// clone copies a whole graph.
func clone(g *graph.Graph) *graph.Graph {
	r := newRewriter()
	for _, n := range g.Nodes {
		r.copy(n)
	}
	return r.finish(g)
}

// share merges nodes of one phase that have the same operation, attributes and inputs. All operations are pure: a
// draw is keyed by its attributes and the state of the generator, so equal dropout nodes draw equal numbers. Nodes of
// different phases stay apart, because sharing would keep a value of the forward pass alive until the backward pass
// that was cheaper to compute twice.
func share(s *State) error {
	type key struct {
		op    *graph.Op
		attrs any
		in    string
		phase graph.Phase
	}
	seen := map[key]*graph.Node{}
	r := newRewriter()
	for _, n := range s.Graph.Nodes {
		var ids strings.Builder
		for _, v := range r.inputs(n) {
			fmt.Fprintf(&ids, "%d ", v.ID)
		}
		k := key{n.Op, n.Attrs, ids.String(), n.Phase}
		widens := n.Op == graph.OpCast && s.Settings.isHalf(n.In[0]) // cheaper made again than kept
		if first, ok := seen[k]; ok && !isSource(n) && !widens {
			for i, v := range n.Out {
				r.env[v] = first.Out[i]
			}
			continue
		}
		seen[k] = r.copy(n)
	}
	s.Graph = r.finish(s.Graph)
	return nil
}

// prune drops nodes that no output depends on. Inputs and parameters stay: they are the frame that the host fills in,
// whether or not this graph looks at all of it.
func prune(s *State) error {
	needed := map[*graph.Node]bool{}
	for _, o := range s.Graph.Outputs {
		needed[o.Value.Def] = true
	}
	for i := len(s.Graph.Nodes) - 1; i >= 0; i-- {
		if n := s.Graph.Nodes[i]; needed[n] {
			for _, v := range n.In {
				needed[v.Def] = true
			}
		}
	}
	r := newRewriter()
	for _, n := range s.Graph.Nodes {
		if needed[n] || isSource(n) {
			r.copy(n)
		}
	}
	s.Graph = r.finish(s.Graph)
	return nil
}

// order moves two kinds of nodes within the trace order, which is otherwise kept. A node whose results go nowhere
// but into gradients runs as soon as its operands exist: its operands can be freed earlier and its bucket leaves
// earlier, while its result needs no transient memory or little. A node without inputs, such as a constant, runs right
// before its first use. Neither changes what is computed.
func order(s *State) error {
	g := s.Graph
	consumers := consumersOf(g)
	// Where a moved node goes: behind the node that its operands wait for, or before its first user.
	behind := map[*graph.Node][]*graph.Node{}
	before := map[*graph.Node][]*graph.Node{}
	moved := map[*graph.Node]bool{}
	index := indexOf(g)
	for _, n := range g.Nodes {
		if isSource(n) {
			continue
		}
		if len(n.In) == 0 {
			if use := firstUser(n, consumers, index); use != nil {
				before[use] = append(before[use], n)
				moved[n] = true
			}
			continue
		}
		if !onlyGradients(g, n, consumers) {
			continue
		}
		last, movable := lastOperand(n, moved, index)
		if movable {
			behind[last] = append(behind[last], n)
			moved[n] = true
		}
	}
	r := newRewriter()
	var emit func(n *graph.Node)
	emit = func(n *graph.Node) {
		for _, c := range before[n] {
			r.copy(c)
		}
		r.copy(n)
		for _, c := range behind[n] {
			emit(c)
		}
	}
	for _, n := range g.Nodes {
		if !moved[n] {
			emit(n)
		}
	}
	s.Graph = r.finish(g)
	return nil
}

func firstUser(n *graph.Node, consumers map[*graph.Value]uses, index map[*graph.Node]int) *graph.Node {
	var first *graph.Node
	for _, v := range n.Out {
		for _, c := range consumers[v].nodes {
			if first == nil || index[c] < index[first] {
				first = c
			}
		}
	}
	return first
}

// lastOperand is the node behind which n may run at the earliest. Where a moved node is among several operands the
// answer is not worth the search.
func lastOperand(n *graph.Node, moved map[*graph.Node]bool, index map[*graph.Node]int) (*graph.Node, bool) {
	last := n.In[0].Def
	for _, v := range n.In[1:] {
		if moved[v.Def] || moved[last] {
			return nil, false
		}
		if index[v.Def] > index[last] {
			last = v.Def
		}
	}
	// A constant is moved before its first user and is no place to wait behind.
	return last, len(last.In) > 0 || isSource(last)
}

// onlyGradients reports whether the results of n are gradients, or are read by nodes that store gradients and by
// nothing else.
func onlyGradients(g *graph.Graph, n *graph.Node, consumers map[*graph.Value]uses) bool {
	if !isBackward(n) {
		return false
	}
	found := false
	for _, v := range n.Out {
		u := consumers[v]
		for _, name := range u.outputs {
			if !strings.HasPrefix(name, gradPrefix) {
				return false
			}
			found = true
		}
		for _, c := range u.nodes {
			if c.Op.Name != storeName {
				return false
			}
			found = true
		}
	}
	return found
}

// uses is who reads a value.
type uses struct {
	nodes   []*graph.Node // a node that reads the value twice is listed twice
	outputs []string
}

func consumersOf(g *graph.Graph) map[*graph.Value]uses {
	m := map[*graph.Value]uses{}
	for _, n := range g.Nodes {
		for _, v := range n.In {
			u := m[v]
			u.nodes = append(u.nodes, n)
			m[v] = u
		}
	}
	for _, o := range g.Outputs {
		u := m[o.Value]
		u.outputs = append(u.outputs, o.Name)
		m[o.Value] = u
	}
	return m
}

func indexOf(g *graph.Graph) map[*graph.Node]int {
	m := make(map[*graph.Node]int, len(g.Nodes))
	for i, n := range g.Nodes {
		m[n] = i
	}
	return m
}

func isBackward(n *graph.Node) bool { return n.Phase == graph.Backward }

// isSource reports whether a node stands for memory that exists before the program runs.
func isSource(n *graph.Node) bool { return n.Op.Name == "input" || n.Op.Name == "param" }

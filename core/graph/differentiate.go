package graph

import (
	"fmt"
	"slices"
)

// Gradient is the gradient of a loss with respect to one use of a parameter. Uses are numbered in trace order: a
// parameter whose value goes to two nodes (tied weights) has two gradients, which are added by whoever accumulates them.
type Gradient struct {
	Param *Node
	Use   int
	Value *Value // of the parameter's type; the same value may serve several parameters, and may be the seed itself
}

// Differentiate appends the backward pass to g, in place: the nodes that compute the gradient of loss, which enters as
// seed (of loss's type), with respect to every trainable parameter. It returns one gradient for each use of each parameter,
// in the order in which the backward pass completes them, and the trainable parameters that the loss does not depend on.
//
// The new nodes have Phase Backward and the position and block of the node that they differentiate. Where a value
// feeds several nodes, their contributions are added by a chain of add nodes in the order in which they arise. Only what
// some gradient needs is appended. Outputs are left alone: naming the gradients is the caller's business.
//
// An error says which operation on the way to a parameter has no gradient; g is then unfinished and of no use.
func Differentiate(g *Graph, loss, seed *Value) (grads []Gradient, unreached []*Node, err error) {
	if !loss.DType.IsFloat() || seed.DType != loss.DType || !seed.Shape.Equal(loss.Shape) {
		return nil, nil, fmt.Errorf("the loss %v and its seed %v must have one floating-point type", loss.Type, seed.Type)
	}
	d := differentiator{
		b:       &Builder{G: g, Phase: Backward},
		depends: dependents(g),
		grad:    map[*Value]*Value{},
	}
	forward := slices.Clone(g.Nodes)
	if d.depends[loss] {
		d.grad[loss] = seed
	}
	for _, n := range slices.Backward(forward) {
		if err := d.node(n); err != nil {
			return nil, nil, err
		}
	}
	number(d.grads, forward, d.users)
	keepNeeded(g, len(forward), d.grads)
	for _, p := range g.Params() {
		got := slices.ContainsFunc(d.grads, func(gr Gradient) bool { return gr.Param == p })
		if !got && !p.Attrs.(ParamAttrs).Frozen {
			unreached = append(unreached, p)
		}
	}
	return d.grads, unreached, nil
}

type differentiator struct {
	b       *Builder
	depends map[*Value]bool   // values that a trainable parameter reaches
	grad    map[*Value]*Value // the sum of contributions so far
	grads   []Gradient
	users   []*Node // for each of grads, the node that uses the parameter
}

// dependents returns the values through which gradients flow to trainable parameters.
func dependents(g *Graph) map[*Value]bool {
	depends := map[*Value]bool{}
	for _, n := range g.Nodes {
		flows := false
		switch a := n.Attrs.(type) {
		case ParamAttrs:
			flows = !a.Frozen
		default:
			flows = n.Op != OpStopGradient && slices.ContainsFunc(n.In, func(v *Value) bool { return depends[v] })
		}
		for i, v := range n.Out {
			// The weight that cross_entropy returns is a count of rows.
			isCount := n.Op == OpCrossEntropy && i == 1
			depends[v] = flows && v.DType.IsFloat() && !isCount
		}
	}
	return depends
}

// node passes the gradients of a node's results on to its inputs.
func (d *differentiator) node(n *Node) error {
	dout := make([]*Value, len(n.Out))
	reached := false
	for i, v := range n.Out {
		dout[i] = d.grad[v]
		reached = reached || dout[i] != nil
	}
	if !reached || !slices.ContainsFunc(n.In, func(v *Value) bool { return d.depends[v] }) {
		return nil
	}
	if n.Op.Grad == nil {
		return &Error{Pos: n.Pos, Block: n.Block, Op: n.Op.Name, Msg: "has no gradient, but the loss depends on a parameter through it"}
	}
	for i, v := range dout {
		if i > 0 && v != nil {
			return &Error{Pos: n.Pos, Block: n.Block, Op: n.Op.Name,
				Msg: fmt.Sprintf("its result %d has no gradient, but the loss depends on a parameter through it", i)}
		}
	}
	d.b.Pos, d.b.Block = n.Pos, n.Block
	din := n.Op.Grad(d.b, n, dout)
	if len(din) != len(n.In) {
		panic(fmt.Sprintf("graph: broken invariant: %s has %d inputs and %d gradients", n.Op.Name, len(n.In), len(din)))
	}
	uses := map[*Value]int{} // parameter → its gradient's place in d.grads
	for i, v := range n.In {
		dv := din[i]
		if dv == nil || !d.depends[v] {
			continue
		}
		if dv.DType != v.DType || !dv.Shape.Equal(v.Shape) {
			panic(fmt.Sprintf("graph: broken invariant: the gradient of %s for an input of type %v has type %v", n.Op.Name, v.Type, dv.Type))
		}
		if v.Def.Op != OpParam {
			d.grad[v] = d.sum(d.grad[v], dv)
			continue
		}
		if at, ok := uses[v]; ok {
			d.grads[at].Value = d.sum(d.grads[at].Value, dv)
			continue
		}
		uses[v] = len(d.grads)
		d.grads = append(d.grads, Gradient{Param: v.Def, Value: dv})
		d.users = append(d.users, n)
	}
	return nil
}

func (d *differentiator) sum(acc, v *Value) *Value {
	if acc == nil {
		return v
	}
	return d.b.Must(OpAdd, nil, acc, v)[0]
}

// number counts each parameter's uses in trace order.
func number(grads []Gradient, forward, users []*Node) {
	place := map[*Node]int{}
	for i, n := range forward {
		place[n] = i
	}
	for i := range grads {
		for j := range grads {
			if grads[j].Param == grads[i].Param && place[users[j]] < place[users[i]] {
				grads[i].Use++
			}
		}
	}
}

// keepNeeded drops the nodes from place first on that no gradient needs: rules compute the gradients of all inputs,
// whether or not somebody asks for them.
func keepNeeded(g *Graph, first int, grads []Gradient) {
	needed := map[*Node]bool{}
	for _, d := range grads {
		needed[d.Value.Def] = true
	}
	for _, n := range slices.Backward(g.Nodes[first:]) {
		if needed[n] {
			for _, v := range n.In {
				needed[v.Def] = true
			}
		}
	}
	kept := slices.DeleteFunc(slices.Clone(g.Nodes[first:]), func(n *Node) bool { return !needed[n] })
	g.Nodes = append(g.Nodes[:first:first], kept...)
}

package plan

import (
	"fmt"
	"maps"
	"slices"

	"starling/core/device"
	"starling/core/graph"
)

// lowering turns one graph into one segment.
type lowering struct {
	plan *Plan
	g    *graph.Graph
	seg  *device.Segment
	// where says which of the graph's inputs and outputs have a place of their own, by name. The others get one in IO
	// and are listed in the segment.
	where binding
	// preset gives the places of further values.
	preset map[*graph.Value]device.Operand
	// before and after, if set, append instructions in front of a node's and behind it.
	before, after func(n *graph.Node)
	// finish, if set, appends instructions behind the last node's.
	finish    func()
	place     map[*graph.Value]device.Operand
	leastWork int64

	sharded     map[*graph.Value]*Param // parameters of which this rank has a part only
	gathered    []*residency            // in the order in which they start
	gatherBytes int64
	peak        *graph.Node

	trips   map[*graph.Value]*trip // values that wait off the device
	ordered []*trip                // in the order in which they are made
}

// binding gives the places of inputs and outputs that do not lie in IO under their own name.
type binding struct {
	input, output func(name string) (device.Operand, bool)
}

func nowhere(string) (device.Operand, bool) { return device.Operand{}, false }

// lower makes the segment of a graph and adds it to the plan.
func (l *lowering) lower(name string) error {
	l.seg = &device.Segment{Name: name, Inputs: map[string]device.Operand{}, Outputs: map[string]device.Operand{}}
	l.place = map[*graph.Value]device.Operand{}
	l.sharded = map[*graph.Value]*Param{}
	maps.Copy(l.place, l.preset)
	weights := map[*graph.Value]*Param{} // by the value of the parameter's node
	for _, n := range l.g.Nodes {
		switch a := n.Attrs.(type) {
		case graph.InputAttrs:
			o, ok := l.where.input(a.Name)
			if !ok {
				o = l.plan.allocIO(n.Out[0].Type)
				l.seg.Inputs[a.Name] = o
			}
			l.place[n.Out[0]] = o
		case graph.ParamAttrs:
			q, err := l.plan.paramOf(n)
			if err != nil {
				return fmt.Errorf("segment %s: %w", name, err)
			}
			weights[n.Out[0]] = q
		}
		if q := weightOf(l.plan.Settings, n, weights); q != nil {
			if q.Sharded {
				l.sharded[n.Out[0]] = q
				continue
			}
			l.place[n.Out[0]] = q.Place
		}
	}
	accumulators := map[*graph.Node]bool{}
	for _, o := range l.g.Outputs {
		root := rootOf(o.Value)
		at, ok := l.where.output(o.Name)
		switch {
		case ok:
			if at.Space == device.Grads {
				accumulators[root.Def] = true
			}
			l.place[root] = retype(at, root.Type)
		default:
			if _, done := l.place[root]; !done {
				l.place[root] = l.plan.allocIO(root.Type)
			}
			l.seg.Outputs[o.Name] = retype(l.place[root], o.Value.Type)
		}
	}
	l.placeTransient()
	l.planResidencies()
	l.placeGathered()
	for i, n := range l.g.Nodes {
		if l.passive(n) {
			continue
		}
		l.gather(i)
		l.fetch(i)
		if l.before != nil {
			l.before(n)
		}
		in := device.Instr{Kind: device.Kernel, Op: n.Op, Attrs: n.Attrs, Node: n}
		for _, v := range n.In {
			in.In = append(in.In, l.operand(v, i))
		}
		for _, v := range n.Out {
			in.Out = append(in.Out, l.operand(v, i))
		}
		in.Accum = accumulators[n] && n.Op.Accumulates
		in.FLOPs, in.Bytes = cost(n)
		if in.Accum {
			in.Bytes += in.Out[0].Type.Bytes()
		}
		l.seg.Instrs = append(l.seg.Instrs, in)
		l.send(i)
		if l.after != nil {
			l.after(n)
		}
	}
	if l.finish != nil {
		l.finish()
	}
	l.plan.Segments[name] = l.seg
	l.plan.lowered = append(l.plan.lowered, lowered{name, l.g, l.where, l.leastWork, l.gatherBytes, l.peak})
	l.plan.ArenaBytes[device.Work] = max(l.plan.ArenaBytes[device.Work], l.seg.WorkBytes)
	return nil
}

// passive reports whether a node is no work of the program: it stands for memory that there is already.
func (l *lowering) passive(n *graph.Node) bool {
	return isSource(n) || n.Op.View || l.plan.Settings.isWeight(n)
}

// weightOf is the parameter whose memory a node stands for: the parameter itself, or under half precision its rounded form.
func weightOf(s Settings, n *graph.Node, params map[*graph.Value]*Param) *Param {
	q := params[n.Out[0]]
	switch {
	case !s.half() || q != nil && q.Buffer:
		return q
	case s.isWeight(n):
		return params[n.In[0]]
	}
	return nil
}

// operand is the place of a value while node i runs, found through views.
func (l *lowering) operand(v *graph.Value, i int) device.Operand {
	root := rootOf(v)
	if q := l.sharded[root]; q != nil {
		return retype(l.residentPlace(q, i), v.Type)
	}
	if t := l.trips[root]; t != nil {
		return retype(t.at(i), v.Type)
	}
	return retype(l.place[root], v.Type)
}

func retype(o device.Operand, t graph.Type) device.Operand {
	o.Type = t
	return o
}

// rootOf is the value whose memory v is a view of.
func rootOf(v *graph.Value) *graph.Value {
	for v.Def.Op.View {
		v = v.Def.In[0]
	}
	return v
}

// placeTransient gives a place in Work to every value that has none yet.
func (l *lowering) placeTransient() {
	last := map[*graph.Value]int{} // root → index of the node that reads it last
	for i, n := range l.g.Nodes {
		if n.Op.View || l.plan.Settings.isWeight(n) {
			continue // a view reads nothing; whoever reads the view reads its root
		}
		for _, v := range n.In {
			last[rootOf(v)] = i
		}
	}
	l.planTrips(last)
	var blocks []*block
	of := map[*graph.Value]*block{}
	for i, n := range l.g.Nodes {
		if l.passive(n) {
			continue
		}
		for k, v := range n.Out {
			if _, fixed := l.place[v]; fixed {
				continue
			}
			end := max(i, last[v])
			t := l.trips[v]
			if t != nil {
				end = t.gone
			}
			b := l.reusable(n, k, i, last, of)
			if b == nil {
				b = &block{bytes: aligned(v.Bytes()), start: i}
				blocks = append(blocks, b)
			}
			b.end = end
			of[v] = b
			if t != nil {
				t.out, t.in = b, &block{bytes: b.bytes, start: t.back, end: last[v]}
				blocks = append(blocks, t.in)
			}
		}
	}
	if len(blocks) > 0 {
		var at int
		l.seg.WorkBytes = placeBlocks(blocks)
		l.leastWork, at = leastBytes(blocks)
		l.peak = l.g.Nodes[at]
	}
	l.placeTrips()
	for v, b := range of {
		l.place[v] = device.Operand{Type: v.Type, Space: device.Work, Offset: b.offset}
	}
}

// reusable returns the block of an input over which result k of node n, the i-th, may be written: one of exactly the
// result's type, in Work, that nothing reads afterwards, and no other part of which n reads under another shape.
func (l *lowering) reusable(n *graph.Node, k, i int, last map[*graph.Value]int, of map[*graph.Value]*block) *block {
	if !n.Op.InPlace || k != 0 {
		return nil
	}
	for _, v := range n.In {
		root := rootOf(v)
		b := of[root]
		if t := l.trips[root]; t != nil && i >= t.back {
			b = t.in
		}
		if b == nil || last[root] != i || !sameType(v.Type, n.Out[0].Type) {
			continue
		}
		if !slices.ContainsFunc(n.In, func(w *graph.Value) bool {
			return rootOf(w) == root && !sameType(w.Type, v.Type)
		}) {
			return b
		}
	}
	return nil
}

func sameType(a, b graph.Type) bool { return a.DType == b.DType && a.Shape.Equal(b.Shape) }

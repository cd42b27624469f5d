package plan

import (
	"cmp"
	"fmt"
	"slices"

	"starling/core/device"
	"starling/core/graph"
	"starling/core/tensor"
)

// Check proves by replay that the plan's programs compute what their graphs say, as far as places go. It walks every
// segment with the memory as a map from ranges to values and reports the first
//
//   - operand that lies outside its arena, is not aligned or has another type than its value;
//   - read of a range that does not hold, whole, the value that the graph says;
//   - result written over an operand where the operation does not allow it;
//   - node that is missing or runs twice, output that is not in its place at the end;
//   - gradient that does not add into its accumulator, or bucket that is rounded, folded, started or waited for at a wrong
//     moment.
//
// It shares no code with the planner. Tests call it for every plan they make.
func Check(p *Plan) error {
	if err := checkLasting(p); err != nil {
		return err
	}
	if err := checkRenewals(p); err != nil {
		return err
	}
	for _, l := range p.lowered {
		c := &checker{plan: p, lowered: l, seg: p.Segments[l.name], ran: map[*graph.Node]bool{}}
		if err := c.check(); err != nil {
			return fmt.Errorf("plan check: segment %s: %w", l.name, err)
		}
	}
	return nil
}

// checkLasting checks that places that outlive a segment are disjoint.
func checkLasting(p *Plan) error {
	type named struct {
		what string
		o    device.Operand
	}
	var all []named
	for i := range p.Params {
		q := &p.Params[i]
		all = append(all, named{"parameter " + q.Name, q.Place})
		if p.Settings.half() && !q.Buffer {
			all = append(all, named{"exact parameter " + q.Name, q.Exact})
		}
		for u, o := range q.Uses {
			if !p.Settings.passing() { // there, buckets take turns
				all = append(all, named{Gradient{q.Name, u}.Output(), o})
			}
			if p.Rounds != nil {
				all = append(all, named{"sum of " + Gradient{q.Name, u}.Output(), q.Reduced[u]})
			}
		}
		for _, s := range q.Slots {
			all = append(all, named{"state " + s.Key, s.Place})
		}
		if q.updated() && !q.Buffer {
			all = append(all, named{"partials of " + q.Name, q.Partials})
		}
	}
	for _, l := range p.lowered {
		for name, o := range p.Segments[l.name].Inputs {
			all = append(all, named{l.name + " input " + name, o})
		}
	}
	all = slices.DeleteFunc(all, func(a named) bool { return a.o.Type.Bytes() == 0 }) // what another rank owns
	slices.SortFunc(all, func(a, b named) int {
		return cmp.Or(cmp.Compare(a.o.Space, b.o.Space), cmp.Compare(a.o.Offset, b.o.Offset))
	})
	for i, a := range all {
		if end := a.o.Offset + a.o.Type.Bytes(); end > p.ArenaBytes[a.o.Space] || a.o.Offset%device.Align != 0 {
			return fmt.Errorf("plan check: %s at %v+%d is not aligned or ends behind the arena of %d bytes", a.what, a.o.Space, a.o.Offset, p.ArenaBytes[a.o.Space])
		}
		if i > 0 && all[i-1].o.Space == a.o.Space && all[i-1].o.Offset+all[i-1].o.Type.Bytes() > a.o.Offset {
			return fmt.Errorf("plan check: %s and %s share memory at %v+%d", all[i-1].what, a.what, a.o.Space, a.o.Offset)
		}
	}
	return nil
}

type checker struct {
	plan    *Plan
	lowered lowered
	seg     *device.Segment
	memory  [device.NumSpaces][]span // ascending and disjoint
	ran     map[*graph.Node]bool
	started []bool // buckets that were handed to other ranks
	leaving []bool // those that may still be on their way
	rounded []bool
	folded  []bool
	waited  []bool
	arrival map[int]bool // units that are being gathered
	copies  map[int]copyOnItsWay
	renewed int // buckets whose parameters have been updated
	gone    map[int]bool
}

func (c *checker) check() error {
	flags := func() []bool { return make([]bool, len(c.plan.Buckets)) }
	c.started, c.leaving, c.rounded, c.folded, c.waited, c.arrival = flags(), flags(), flags(), flags(), flags(), map[int]bool{}
	c.copies, c.gone = map[int]copyOnItsWay{}, map[int]bool{}
	if c.lowered.name == SegmentMicro && c.plan.Rounds != nil {
		for i := range c.leaving { // from the round before
			c.leaving[i] = !c.plan.Settings.passing() || i >= len(c.leaving)-2
		}
	}
	for _, n := range c.lowered.graph.Nodes {
		if !isSource(n) && !c.plan.Settings.isWeight(n) {
			continue
		}
		if a, ok := paramAttrs(n); ok {
			if c.plan.Settings.half() && isSource(n) && !a.Buffer {
				continue // only its rounded form is in reach of programs
			}
			if q := c.plan.Param(a.Name); q != nil && q.Sharded {
				continue // nowhere until it is gathered
			}
		}
		o, err := c.sourcePlace(n)
		if err != nil {
			return err
		}
		c.write(o, n.Out[0])
	}
	for i := range c.seg.Instrs {
		in := &c.seg.Instrs[i]
		var err error
		switch {
		case in.Kind == device.Kernel:
			err = c.kernel(in)
		case in.Kind == device.Copy || in.Kind == device.Copied:
			err = c.copy(in)
		case in.Kind == device.Renew:
			err = c.renew(in)
		case in.Collective == AllGather:
			err = c.gather(in)
		default:
			err = c.bucket(in)
		}
		if err != nil {
			return fmt.Errorf("instruction %d: %w", i, err)
		}
	}
	return c.end()
}

func (c *checker) sourcePlace(n *graph.Node) (device.Operand, error) {
	if a, ok := paramAttrs(n); ok {
		if q := c.plan.Param(a.Name); q != nil {
			return q.Place, nil
		}
	}
	switch a := n.Attrs.(type) {
	case graph.InputAttrs:
		if o, ok := c.seg.Inputs[a.Name]; ok {
			return o, nil
		}
		if o, ok := c.lowered.where.input(a.Name); ok {
			return o, nil
		}
	}
	return device.Operand{}, fmt.Errorf("%v has no place", n)
}

// paramAttrs are those of the parameter that a node stands for, itself or rounded.
func paramAttrs(n *graph.Node) (graph.ParamAttrs, bool) {
	if n.Op == graph.OpCast {
		n = n.In[0].Def
	}
	a, ok := n.Attrs.(graph.ParamAttrs)
	return a, ok
}

// kernel checks the operands of one node and moves the replay on.
func (c *checker) kernel(in *device.Instr) error {
	n := in.Node
	if n == nil || in.Op != n.Op || len(in.In) != len(n.In) || len(in.Out) != len(n.Out) {
		return fmt.Errorf("the instruction does not match its node")
	}
	if c.ran[n] {
		return fmt.Errorf("%v runs twice", n)
	}
	c.ran[n] = true
	for i, v := range n.In {
		if err := c.operand(in.In[i], v); err != nil {
			return fmt.Errorf("%v%s, input %d: %w", n, at(n), i, err)
		}
		if err := c.holds(in.In[i], root(v)); err != nil {
			return fmt.Errorf("%v%s, input %d: %w", n, at(n), i, err)
		}
	}
	for i, v := range n.Out {
		if err := c.operand(in.Out[i], v); err != nil {
			return fmt.Errorf("%v%s, result %d: %w", n, at(n), i, err)
		}
		if err := c.mayWrite(in, i); err != nil {
			return fmt.Errorf("%v%s, result %d: %w", n, at(n), i, err)
		}
	}
	for i, v := range n.Out {
		c.write(in.Out[i], v)
	}
	return nil
}

// end checks what must hold when the segment is over.
func (c *checker) end() error {
	for _, n := range c.lowered.graph.Nodes {
		if !isSource(n) && !n.Op.View && !c.plan.Settings.isWeight(n) && !c.ran[n] {
			return fmt.Errorf("%v%s never runs", n, at(n))
		}
	}
	for _, o := range c.lowered.graph.Outputs {
		place, ok := c.seg.Outputs[o.Name]
		if !ok {
			place, ok = c.lowered.where.output(o.Name)
		}
		if !ok {
			return fmt.Errorf("output %s has no place", o.Name)
		}
		if place.Space == device.Grads && c.plan.Settings.passing() {
			continue // it has left by now; the start of its bucket was checked
		}
		if err := c.holds(place, root(o.Value)); err != nil {
			return fmt.Errorf("output %s: %w", o.Name, err)
		}
	}
	for k := range c.copies {
		return fmt.Errorf("copy %d is never waited for", k)
	}
	for u, arriving := range c.arrival {
		if arriving {
			return fmt.Errorf("unit %d is gathered and never waited for", u)
		}
	}
	switch c.lowered.name {
	case SegmentMicro:
		return c.endMicro()
	case SegmentNorm:
		for i, done := range c.waited {
			if done != (c.plan.Settings.World > 1) {
				return fmt.Errorf("bucket %d: waited for is %v with %d ranks", i, done, c.plan.Settings.World)
			}
		}
	}
	return nil
}

func (c *checker) endMicro() error {
	adds := map[*graph.Node]bool{}
	for i := range c.seg.Instrs {
		if in := &c.seg.Instrs[i]; in.Accum {
			adds[in.Node] = true
		}
	}
	for i, b := range c.plan.Buckets {
		if rounds := c.plan.Rounding(b) != tensor.Invalid; c.rounded[i] != rounds {
			return fmt.Errorf("bucket %d: rounded is %v, want %v", i, c.rounded[i], rounds)
		}
		if c.folded[i] != (c.plan.GradBuffers > 1) || c.started[i] != (c.plan.Settings.World > 1) {
			return fmt.Errorf("bucket %d: folded is %v with %d gradient buffers, started is %v with %d ranks",
				i, c.folded[i], c.plan.GradBuffers, c.started[i], c.plan.Settings.World)
		}
		for _, gr := range b.Grads {
			n := c.lowered.graph.Output(gr.Output()).Def
			if !adds[n] || !n.Op.Accumulates {
				return fmt.Errorf("%s does not add into its accumulator", gr.Output())
			}
			delete(adds, n)
		}
	}
	for n := range adds {
		return fmt.Errorf("%v accumulates but makes no gradient", n)
	}
	return nil
}

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

// span is a range of memory and the value that it holds.
type span struct {
	lo, hi int64
	value  *graph.Value
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

// root looks through views.
func root(v *graph.Value) *graph.Value {
	if v.Def.Op.View {
		return root(v.Def.In[0])
	}
	return v
}

func (c *checker) operand(o device.Operand, v *graph.Value) error {
	size := c.plan.ArenaBytes[o.Space]
	if o.Space == device.Work {
		size = min(size, c.seg.WorkBytes)
	}
	switch {
	case o.DType != v.DType || !o.Shape.Equal(v.Shape):
		return fmt.Errorf("the operand is %v, the value %v is %v", o.Type, v, v.Type)
	case o.Offset < 0 || o.Offset%device.Align != 0 || o.Offset+o.Type.Bytes() > size:
		return fmt.Errorf("%v+%d is not aligned or outside the arena of %d bytes", o.Space, o.Offset, size)
	case (o.Space == device.Grads || o.Space == device.Sums) && c.lowered.name == SegmentNorm && c.plan.Settings.World > 1:
		for i, b := range c.plan.Buckets {
			place := b.Sum
			if b.Unit < 0 {
				place = b.Place
			}
			if overlap(place, o) && !c.waited[i] {
				return fmt.Errorf("bucket %d is used before it was waited for", i)
			}
		}
	}
	return nil
}

// mayWrite checks that a result does not destroy what the instruction still reads or writes.
func (c *checker) mayWrite(in *device.Instr, i int) error {
	o := in.Out[i]
	for k, other := range in.Out {
		if k != i && overlap(o, other) {
			return fmt.Errorf("results %d and %d share memory", i, k)
		}
	}
	for k, read := range in.In {
		if !overlap(o, read) {
			continue
		}
		same := o.Offset == read.Offset && o.DType == read.DType && o.Shape.Equal(read.Shape)
		if !in.Op.InPlace || !same {
			return fmt.Errorf("it is written over input %d", k)
		}
	}
	for k, copying := range c.copies {
		if overlap(copying.from, o) || overlap(copying.to, o) {
			return fmt.Errorf("it changes what copy %d reads or writes", k)
		}
	}
	for b, place := range c.plan.Buckets {
		if c.lowered.name == SegmentMicro && (c.leaving[b] || c.folded[b]) && overlap(place.Place, o) {
			return fmt.Errorf("it changes bucket %d, which has left", b)
		}
	}
	return nil
}

func overlap(a, b device.Operand) bool {
	return a.Space == b.Space && a.Offset < b.Offset+b.Type.Bytes() && b.Offset < a.Offset+a.Type.Bytes()
}

// holds checks that a range holds the whole of a value.
func (c *checker) holds(o device.Operand, v *graph.Value) error {
	lo, hi := o.Offset, o.Offset+o.Type.Bytes()
	m := c.memory[o.Space]
	i, _ := slices.BinarySearchFunc(m, lo, func(s span, lo int64) int { return cmp.Compare(s.hi, lo+1) })
	switch {
	case lo == hi:
		return nil
	case i == len(m) || m[i].lo > lo:
		return fmt.Errorf("%v+%d holds nothing where %v is expected", o.Space, lo, v)
	case !c.same(m[i].value, v) || m[i].lo != lo || m[i].hi != hi:
		return fmt.Errorf("%v+%d holds %v where %v is expected", o.Space, lo, m[i].value, v)
	}
	return nil
}

// same reports whether two values are one, or rounded forms of one parameter.
func (c *checker) same(a, b *graph.Value) bool {
	return a == b || a != nil && c.plan.Settings.isWeight(a.Def) && c.plan.Settings.isWeight(b.Def) && a.Def.In[0] == b.Def.In[0]
}

// write puts a value into a range; what was there before is gone, cut values keep their remains and are never whole again.
func (c *checker) write(o device.Operand, v *graph.Value) {
	lo, hi := o.Offset, o.Offset+o.Type.Bytes()
	if lo == hi {
		return
	}
	var out []span
	for _, s := range c.memory[o.Space] {
		if s.lo < lo {
			out = append(out, span{s.lo, min(s.hi, lo), s.value})
		}
		if s.hi > hi {
			out = append(out, span{max(s.lo, hi), s.hi, s.value})
		}
	}
	out = append(out, span{lo, hi, v})
	slices.SortFunc(out, func(a, b span) int { return cmp.Compare(a.lo, b.lo) })
	c.memory[o.Space] = out
}

// bucket checks a Round, Fold, Start or Wait.
func (c *checker) bucket(in *device.Instr) error {
	if in.Bucket < 0 || in.Bucket >= len(c.plan.Buckets) {
		return fmt.Errorf("there is no bucket %d", in.Bucket)
	}
	b := c.plan.Buckets[in.Bucket]
	when := device.LastOnRank
	if c.plan.Rounds != nil {
		when = device.LastInLane
	}
	switch in.Kind {
	case device.Wait:
		if c.lowered.name == SegmentMicro && c.plan.Rounds != nil && in.When == device.Always {
			c.leaving[in.Bucket] = false
			return nil
		}
		if c.lowered.name != SegmentNorm || c.waited[in.Bucket] {
			return fmt.Errorf("bucket %d is waited for twice, or outside the norm segment", in.Bucket)
		}
		c.waited[in.Bucket] = true
		return nil
	case device.Round:
		if c.rounded[in.Bucket] || c.folded[in.Bucket] || c.started[in.Bucket] || in.When != device.LastInLane {
			return fmt.Errorf("bucket %d is rounded twice or at the wrong moment", in.Bucket)
		}
		c.rounded[in.Bucket] = true
	case device.Fold:
		if c.folded[in.Bucket] || c.started[in.Bucket] || in.When != device.LastInLane {
			return fmt.Errorf("bucket %d is folded twice or at the wrong moment", in.Bucket)
		}
		c.folded[in.Bucket] = true
	case device.Start:
		if c.started[in.Bucket] || in.When != when || c.plan.GradBuffers > 1 && !c.folded[in.Bucket] {
			return fmt.Errorf("bucket %d is started twice or at the wrong moment", in.Bucket)
		}
		c.started[in.Bucket], c.leaving[in.Bucket] = true, true
	}
	for _, gr := range b.Grads {
		if err := c.holds(c.plan.Param(gr.Param).Uses[gr.Use], c.lowered.graph.Output(gr.Output())); err != nil {
			return fmt.Errorf("bucket %d leaves before %s is complete: %w", in.Bucket, gr.Output(), err)
		}
	}
	return nil
}

// gather checks the start and the end of gathering a unit. In between its memory holds nothing.
func (c *checker) gather(in *device.Instr) error {
	if in.Bucket < 0 || in.Bucket >= len(c.plan.Units) || in.Kind == device.Fold || in.When != device.Always {
		return fmt.Errorf("there is no unit %d to gather, or not at that moment", in.Bucket)
	}
	u, o := c.plan.Units[in.Bucket], in.Out[0]
	if c.gone[u.Index] {
		return fmt.Errorf("unit %d is gathered after its update", u.Index)
	}
	if c.arrival[u.Index] != (in.Kind == device.Wait) {
		return fmt.Errorf("unit %d is started or waited for twice", u.Index)
	}
	c.arrival[u.Index] = in.Kind == device.Start
	if c.lowered.name == SegmentUpdate {
		if u.Sharded && in.Group != ReplicaGroup || o.Space != device.Params {
			return fmt.Errorf("unit %d is gathered after the update, where its parameters stay sharded", u.Index)
		}
		return c.gatherUpdated(in.Kind, u)
	}
	if !u.Sharded || o.Space != device.Work || o.Type.Bytes() != int64(u.Elements)*int64(o.DType.Size()) || o.Offset+o.Type.Bytes() > c.seg.WorkBytes {
		return fmt.Errorf("unit %d is whole already, or the place %v for it is wrong", u.Index, o.Type)
	}
	c.write(o, nil)
	if in.Kind == device.Start {
		return nil
	}
	// Under half precision several nodes stand for one rounded parameter; which of them a reader names makes no difference.
	for _, n := range c.lowered.graph.Nodes {
		a, ok := paramAttrs(n)
		if !ok || isSource(n) == c.plan.Settings.half() {
			continue
		}
		if q := c.plan.Param(a.Name); q.Unit == u.Index {
			c.write(c.plan.memberPlace(o, u, q), n.Out[0])
		}
	}
	return nil
}

// gatherUpdated checks that all that this rank owns of a unit was updated before it travels.
func (c *checker) gatherUpdated(kind device.Kind, u *Unit) error {
	for _, m := range u.Members {
		q := c.plan.Param(m.Param)
		if kind == device.Wait || !q.updated() || q.External() && !c.plan.Settings.half() { // which was renewed before the segment
			continue
		}
		after := c.lowered.graph.Output(paramPrefix + q.Name)
		if c.plan.Settings.half() {
			after = c.lowered.graph.Output(weightPrefix + q.Name)
		}
		if err := c.holds(q.OwnedPlace(), after); err != nil {
			return fmt.Errorf("unit %d travels before %s is updated: %w", u.Index, q.Name, err)
		}
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

package plan

import (
	"cmp"
	"fmt"
	"slices"

	"starling/core/device"
	"starling/core/graph"
)

// span is a range of memory and the value that it holds.
type span struct {
	lo, hi int64
	value  *graph.Value
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

package plan

import (
	"fmt"

	"starling/core/device"
	"starling/core/graph"
)

// copyOnItsWay is a copy that has begun: what it reads must stay as it is.
type copyOnItsWay struct {
	from, to device.Operand
	value    *graph.Value
}

// copy checks the beginning and the end of a copy. In between its target holds nothing.
func (c *checker) copy(in *device.Instr) error {
	from, to := in.In[0], in.Out[0]
	k, running := c.copies[in.Bucket]
	if running != (in.Kind == device.Copied) || in.When != device.Always {
		return fmt.Errorf("copy %d begins or is waited for twice, or not always", in.Bucket)
	}
	if in.Kind == device.Copied {
		if k.from.Space != from.Space || k.from.Offset != from.Offset || k.to.Space != to.Space || k.to.Offset != to.Offset {
			return fmt.Errorf("copy %d is waited for at another place than it was made for", in.Bucket)
		}
		delete(c.copies, in.Bucket)
		c.write(to, k.value)
		return nil
	}
	for _, o := range []device.Operand{from, to} {
		size := c.plan.ArenaBytes[o.Space]
		if o.Space == device.Work {
			size = min(size, c.seg.WorkBytes)
		}
		if o.Offset < 0 || o.Offset%device.Align != 0 || o.Offset+o.Type.Bytes() > size || !sameType(from.Type, to.Type) {
			return fmt.Errorf("copy %d: %v+%d is not aligned, outside the arena of %d bytes, or of another type", in.Bucket, o.Space, o.Offset, size)
		}
	}
	v := c.valueAt(from)
	if v == nil {
		return fmt.Errorf("copy %d reads %v+%d, which holds no value", in.Bucket, from.Space, from.Offset)
	}
	for i, other := range c.copies {
		if overlap(other.from, to) || overlap(other.to, to) || overlap(other.to, from) {
			return fmt.Errorf("copies %d and %d meet in one place", in.Bucket, i)
		}
	}
	c.copies[in.Bucket] = copyOnItsWay{from, to, v}
	c.write(to, nil)
	return nil
}

// valueAt is the value that exactly a range holds, or nil.
func (c *checker) valueAt(o device.Operand) *graph.Value {
	for _, s := range c.memory[o.Space] {
		if s.lo == o.Offset && s.hi == o.Offset+o.Type.Bytes() {
			return s.value
		}
	}
	return nil
}

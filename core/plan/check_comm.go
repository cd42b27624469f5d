package plan

import (
	"fmt"

	"starling/core/device"
)

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

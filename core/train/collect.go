package train

import (
	"context"
	"fmt"

	"starling/core/comm"
	"starling/core/device"
	"starling/core/plan"
)

// collector turns the program's start and wait instructions into collectives of the data group. The group's own
// worker runs them while the backward pass goes on.
type collector struct {
	env     *Env
	red     *comm.Reduction
	buckets []bucket
	ctx     context.Context
	trace   *StepTrace
}

// bucket is one range of the gradient: the sums of this rank's subtrees, and where the total goes.
type bucket struct {
	label  string
	own    [][]float32
	dst    []float32
	handle *comm.Handle
}

func newCollector(env *Env, p *plan.Plan, grads []device.Arena) *collector {
	c := &collector{env: env, red: p.Reduction}
	nodes := len(p.Reduction.Nodes(env.Rank))
	for _, b := range p.Buckets {
		k := bucket{label: bucketLabel(p, b)}
		for i := range nodes {
			var mem device.Memory
			mem.Arenas[device.Grads] = grads[i]
			k.own = append(k.own, device.View[float32](mem, b.Place))
		}
		k.dst = k.own[0]
		c.buckets = append(c.buckets, k)
	}
	return c
}

// begin starts a step: no bucket is on its way.
func (c *collector) begin(ctx context.Context, trace *StepTrace) {
	c.ctx, c.trace = ctx, trace
	for i := range c.buckets {
		c.buckets[i].handle = nil
	}
}

// Start hands a finished bucket to the group.
func (c *collector) Start(in *device.Instr) error {
	b := &c.buckets[in.Bucket]
	b.handle = c.env.Group.StartAllReduceTree(b.label, c.red, b.own, b.dst)
	return nil
}

// Wait blocks until a bucket holds the sum over all lanes.
func (c *collector) Wait(in *device.Instr) error {
	return c.waitBucket(c.ctx, &c.buckets[in.Bucket])
}

func (c *collector) waitBucket(ctx context.Context, b *bucket) error {
	if b.handle == nil {
		return nil
	}
	if err := b.handle.Wait(ctx); err != nil {
		return err
	}
	c.trace.Collectives = append(c.trace.Collectives, Span{b.label, b.handle.Started(), b.handle.Finished()})
	b.handle = nil
	return nil
}

// wait blocks until every bucket that was started is done.
func (c *collector) wait(ctx context.Context) error {
	for i := range c.buckets {
		if err := c.waitBucket(ctx, &c.buckets[i]); err != nil {
			return err
		}
	}
	return nil
}

// bucketLabel names a bucket by what is in it, so that a stall names blocks and the recipe's line.
func bucketLabel(p *plan.Plan, b plan.Bucket) string {
	s := fmt.Sprintf("gradient bucket %d (%s)", b.Index, b.Label)
	if q := p.Param(b.Grads[0].Param); q != nil && q.Pos.File != "" {
		s += fmt.Sprintf(", from block %q at %v", q.Block, q.Pos)
	}
	return s
}

package train

import (
	"context"
	"fmt"

	"starling/core/comm"
	"starling/core/device"
	"starling/core/graph"
	"starling/core/plan"
	"starling/core/tensor"
)

// collector turns the program's start and wait instructions into collectives of the data group. The group's own
// worker runs them while the program goes on.
type collector struct {
	env     *Env
	plan    *plan.Plan
	mem     device.Memory
	overlap bool
	buckets []bucket
	units   []unit
	ctx     context.Context
	trace   *StepTrace
	// round is the one that the starts of the running micro segment belong to.
	round int
}

// bucket is one range of the gradient: the sums of this rank's subtrees, and where the total goes.
type bucket struct {
	label   string
	own     [][]float32
	dst     []float32
	chunks  []comm.Range
	handles []*comm.Handle
	// Where gradients are sharded: this rank's part of the sum in each buffer of the stack, what joins two of them, and the round
	// whose sums are on their way.
	sums  [][]float32
	joins map[comm.Add]func()
	round int
}

// unit is a group of parameters that is cut over the ranks.
type unit struct {
	label  string
	chunks []comm.Range // in elements of float32
	own    []byte       // this rank's part, where that is all it keeps
	handle *comm.Handle
}

func newCollector(env *Env, p *plan.Plan, dev device.Device, mem device.Memory, grads, sums []device.Arena) (*collector, error) {
	c := &collector{env: env, plan: p, mem: mem, overlap: !p.Settings.NoOverlap}
	nodes := len(p.Reduction.Nodes(env.Rank))
	if p.Rounds != nil {
		nodes = 1
	}
	for _, b := range p.Buckets {
		k := bucket{label: bucketLabel(p, b)}
		for i := range nodes {
			m := device.Memory{}
			m.Arenas[device.Grads] = grads[i]
			k.own = append(k.own, device.View[float32](m, b.Place))
		}
		k.dst = k.own[0]
		if b.Unit >= 0 {
			k.chunks = p.Units[b.Unit].Chunks
			own := k.chunks[env.Rank]
			k.dst = k.own[0][own.Lo:own.Hi]
		}
		if p.Rounds != nil {
			if err := k.bindSums(dev, b, p.Rounds, sums); err != nil {
				return nil, err
			}
		}
		c.buckets = append(c.buckets, k)
	}
	for _, u := range p.Units {
		k := unit{label: fmt.Sprintf("parameters %d (%s)", u.Index, u.Label)}
		words := u.Place.DType.Size() // a chunk of two-byte elements is moved as pairs of them
		for _, r := range u.Chunks {
			k.chunks = append(k.chunks, comm.Range{Lo: r.Lo * words / 4, Hi: r.Hi * words / 4})
		}
		if u.Sharded {
			k.own = device.View[byte](mem, u.Place)
		}
		c.units = append(c.units, k)
	}
	return c, nil
}

// bindSums finds this rank's part of the bucket in each buffer of sums, and makes the additions that the rounds need.
func (k *bucket) bindSums(dev device.Device, b plan.Bucket, rounds []plan.Round, sums []device.Arena) error {
	for _, a := range sums {
		m := device.Memory{}
		m.Arenas[device.Sums] = a
		k.sums = append(k.sums, device.View[float32](m, b.Sum))
	}
	k.joins = map[comm.Add]func(){}
	place := func(slot int) device.Tensor {
		return device.Tensor{Type: b.Sum.Type, Arena: sums[slot], Offset: b.Sum.Offset}
	}
	for _, r := range rounds {
		for _, a := range r.Adds {
			if k.joins[a] != nil {
				continue
			}
			run := func() {}
			if b.Sum.Shape.Numel() > 0 {
				var err error
				run, err = dev.Bind(device.Call{Op: graph.OpAccumulate, In: []device.Tensor{place(a.Dst), place(a.Src)}, Out: []device.Tensor{place(a.Dst)}})
				if err != nil {
					return err
				}
			}
			k.joins[a] = run
		}
	}
	return nil
}

// begin starts a step or an evaluation: nothing is on its way.
func (c *collector) begin(ctx context.Context, trace *StepTrace) {
	c.ctx, c.trace = ctx, trace
	for i := range c.buckets {
		c.buckets[i].handles = c.buckets[i].handles[:0]
	}
	for i := range c.units {
		c.units[i].handle = nil
	}
}

// Start hands a finished bucket, or a unit of parameters, to the group.
func (c *collector) Start(in *device.Instr) error {
	switch in.Collective {
	case plan.AllReduce:
		b := &c.buckets[in.Bucket]
		b.handles = append(b.handles, c.env.Group.StartAllReduceTree(b.label, c.plan.Reduction, b.own, b.dst))
	case plan.ReduceScatter:
		c.scatter(&c.buckets[in.Bucket])
	case plan.AllGather:
		c.gather(&c.units[in.Bucket], in.Out[0])
	default:
		return fmt.Errorf("the program asks for a collective %q, which the trainer does not know", in.Collective)
	}
	if c.overlap {
		return nil
	}
	return c.Wait(in)
}

// scatter sums a bucket and leaves each rank its chunk: of all lanes at once, or of those of a round.
func (c *collector) scatter(b *bucket) {
	g := c.env.Group
	if c.plan.Rounds == nil {
		b.handles = append(b.handles, g.StartReduceScatterTree(b.label, c.plan.Reduction, b.chunks, b.own, b.dst))
		return
	}
	b.round = c.round
	r := &c.plan.Rounds[c.round]
	lane := r.Lanes.Lo + c.env.Rank
	for _, s := range r.Sums {
		var own [][]float32
		if s.Node.Lo <= lane && lane < s.Node.Hi {
			own = b.own
		}
		b.handles = append(b.handles, g.StartReduceScatterTree(b.label, s.Reduction, b.chunks, own, b.sums[s.Slot]))
	}
}

// gather completes a unit of parameters at a place.
func (c *collector) gather(u *unit, o device.Operand) {
	whole := c.mem.Arenas[o.Space].Bytes()[o.Offset : o.Offset+o.Type.Bytes()]
	if u.own != nil {
		copy(whole[4*u.chunks[c.env.Rank].Lo:], u.own)
	}
	u.handle = c.env.Group.StartAllGather(u.label, u.chunks, tensor.View[float32](whole))
}

// Wait blocks until a bucket holds its sum, or a unit is whole.
func (c *collector) Wait(in *device.Instr) error {
	if in.Collective == plan.AllGather {
		u := &c.units[in.Bucket]
		err := c.await(c.ctx, u.label, u.handle)
		u.handle = nil
		return err
	}
	return c.waitBucket(c.ctx, &c.buckets[in.Bucket])
}

func (c *collector) waitBucket(ctx context.Context, b *bucket) error {
	if len(b.handles) == 0 {
		return nil
	}
	for _, h := range b.handles {
		if err := c.await(ctx, b.label, h); err != nil {
			return err
		}
	}
	b.handles = b.handles[:0]
	if b.joins != nil {
		for _, a := range c.plan.Rounds[b.round].Adds {
			b.joins[a]()
		}
	}
	return nil
}

func (c *collector) await(ctx context.Context, label string, h *comm.Handle) error {
	if h == nil {
		return nil
	}
	if err := h.Wait(ctx); err != nil {
		return err
	}
	c.trace.Collectives = append(c.trace.Collectives, Span{label, h.Started(), h.Finished()})
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

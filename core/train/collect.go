package train

import (
	"context"
	"fmt"

	"starling/core/comm"
	"starling/core/device"
	"starling/core/plan"
	"starling/core/tensor"
)

// collector turns the program's start and wait instructions into collectives of the data group, which are prepared once and
// allocate nothing afterwards. The group's own worker runs them while the program goes on.
type collector struct {
	env     *Env
	mem     device.Memory
	overlap bool
	lossy   *compression // nil where gradients travel as they are
	buckets []exchange
	units   []unit
	// groups are those of ranks by the names that the program has for them, beside the data group.
	groups map[string]*comm.Group
	ctx    context.Context
	trace  *StepTrace
	// round is the one that the starts of the running micro segment belong to.
	round int
	// announce, if set, is called once, before the next gradient bucket is handed over that is not in front of bucket announceAt.
	announce   func()
	announceAt int
}

// unit is a group of parameters that is cut over the ranks.
type unit struct {
	label  string
	chunks []comm.Range // of the members of the group that completes it, in elements of float32
	own    []byte       // this rank's part, where that is all it keeps
	// replicas are the chunks of own that this rank's replicas have updated, where there are any.
	replicas []comm.Range
	// gathers are the collectives that complete it, by the place at which they do; they are prepared as places come up.
	gathers map[place]*comm.Collective
	handle  *comm.Handle
}

// place is where a unit is completed.
type place struct {
	space  device.Space
	offset int64
}

func newCollector(mesh Mesh, env *Env, p *plan.Plan, dev device.Device, mem device.Memory, grads, sums []device.Arena, lossy *compression) (*collector, error) {
	c := &collector{env: env, mem: mem, overlap: !p.Settings.NoOverlap, lossy: lossy, groups: map[string]*comm.Group{}}
	if env.World == 1 {
		return c, nil
	}
	if err := c.formGroups(p); err != nil {
		c.close()
		return nil, err
	}
	nodes := len(p.Reduction.Nodes(env.Rank))
	if p.Rounds != nil {
		nodes = 1
	}
	for _, b := range p.Buckets {
		k := bucketParts{label: bucketLabel(p, b)}
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
		for _, a := range sums {
			m := device.Memory{}
			m.Arenas[device.Sums] = a
			k.sums = append(k.sums, device.View[float32](m, b.Sum))
		}
		x, err := newExchange(mesh, env, p, dev, b, k, sums, lossy)
		if err != nil {
			c.close()
			return nil, fmt.Errorf("%s: %w", k.label, err)
		}
		c.buckets = append(c.buckets, x)
	}
	for _, u := range p.Units {
		k := unit{label: unitLabel(p, u), gathers: map[place]*comm.Collective{}}
		size := u.Place.DType.Size()
		k.chunks = inWords(u.Chunks, size)
		if u.Sharded {
			k.own = device.View[byte](mem, u.Place)
			k.chunks, k.replicas = inWords(p.Parts(u), size), inWords(p.ReplicaChunks(u), size)
		}
		c.units = append(c.units, k)
	}
	return c, nil
}

// inWords turns ranges of elements of some bytes each into ranges of float32: a chunk of two-byte elements is moved as pairs of them.
func inWords(chunks []comm.Range, bytes int) []comm.Range {
	out := make([]comm.Range, len(chunks))
	for i, r := range chunks {
		out[i] = comm.Range{Lo: r.Lo * bytes / 4, Hi: r.Hi * bytes / 4}
	}
	return out
}

// formGroups makes the groups of ranks inside which parameters are sharded, and between which they are replicated, and that of all in which
// updated parameters travel while gradients still do. What a group carries need not wait for what another does.
func (c *collector) formGroups(p *plan.Plan) (err error) {
	groups := map[string][]int{}
	for _, u := range p.Units {
		switch {
		case u.Sharded:
			groups[plan.ShardGroup] = p.Settings.ShardRanks()
			if p.Settings.Hybrid() {
				groups[plan.ReplicaGroup] = p.Settings.ReplicaRanks()
			}
		case u.Trained && p.Renewals != nil:
			groups[plan.UpdatedGroup] = p.Settings.AllRanks()
		}
	}
	for name, ranks := range groups {
		if c.groups[name], err = c.env.Group.Subgroup(name, ranks); err != nil {
			return err
		}
	}
	return nil
}

// close ends the groups that the collector has made.
func (c *collector) close() {
	for _, g := range c.groups {
		if g != nil {
			_ = g.Close() // nothing is on its way any more
		}
	}
}

// begin starts a step or an evaluation: nothing is on its way.
func (c *collector) begin(ctx context.Context, trace *StepTrace) {
	c.ctx, c.trace, c.announce = ctx, trace, nil
	for _, b := range c.buckets {
		b.forget()
	}
	for i := range c.units {
		c.units[i].handle = nil
	}
}

// Start hands a finished bucket, or a unit of parameters, to the group.
func (c *collector) Start(in *device.Instr) error {
	switch in.Collective {
	case plan.AllReduce, plan.ReduceScatter:
		if c.announce != nil && in.Bucket >= c.announceAt {
			c.announce()
			c.announce = nil
		}
		b := c.buckets[in.Bucket]
		if !c.lossy.takes(in.Bucket) {
			b.start(c.round)
			break
		}
		c.lossy.start(in.Bucket, b, c.round)
		if err := c.lossy.release(c.ctx); err != nil {
			return err
		}
	case plan.AllGather:
		if err := c.gather(&c.units[in.Bucket], in.Group, in.Out[0]); err != nil {
			return err
		}
	default:
		return fmt.Errorf("the program asks for a collective %q, which the trainer does not know", in.Collective)
	}
	if c.overlap {
		return nil
	}
	return c.Wait(in)
}

// gather completes a unit of parameters at a place, or what a rank keeps of it.
func (c *collector) gather(u *unit, name string, o device.Operand) error {
	whole := c.mem.Arenas[o.Space].Bytes()[o.Offset : o.Offset+o.Type.Bytes()]
	g, chunks := c.env.Group, u.chunks
	if own := c.groups[name]; own != nil {
		g = own
	}
	switch {
	case name == plan.ReplicaGroup:
		chunks = u.replicas
	case u.own != nil:
		copy(whole[4*chunks[g.Rank()].Lo:], u.own)
	}
	at := place{o.Space, o.Offset}
	if u.gathers[at] == nil {
		k, err := g.PrepareAllGather(u.label, chunks, tensor.View[float32](whole))
		if err != nil {
			return fmt.Errorf("%s: %w", u.label, err)
		}
		u.gathers[at] = k
	}
	u.handle = u.gathers[at].Start()
	return nil
}

// Wait blocks until a bucket holds its sum, or a unit is whole.
func (c *collector) Wait(in *device.Instr) error {
	if in.Collective != plan.AllGather {
		return c.buckets[in.Bucket].wait(c.ctx, c.trace)
	}
	u := &c.units[in.Bucket]
	if u.handle == nil {
		return nil
	}
	h := u.handle
	u.handle = nil
	return c.trace.await(c.ctx, h)
}

// wait blocks until every bucket that was started is done.
func (c *collector) wait(ctx context.Context) error {
	for _, b := range c.buckets {
		if err := b.wait(ctx, c.trace); err != nil {
			return err
		}
	}
	return nil
}

package train

import (
	"context"
	"time"

	"starling/core/comm"
	"starling/core/device"
	"starling/core/graph"
	"starling/core/plan"
	"starling/core/tensor"
)

// exchange is how the sums of one gradient bucket travel between ranks. It is prepared once and started every step; the
// collector knows no more of it than this, so another way of travelling is another exchange.
type exchange interface {
	// start hands over what this rank has summed of its lanes, in a round of them (0 where the plan has no rounds). It does not
	// wait for other ranks. The bucket's gradient belongs to the exchange until wait has returned.
	start(round int)
	// wait blocks until the sum over all ranks is where the plan wants it, and adds what has run to the trace. It does nothing
	// where nothing was started.
	wait(ctx context.Context, trace *StepTrace) error
	// arrived reports whether wait would not block.
	arrived() bool
	// forget drops what was started: a step that failed will not wait for it.
	forget()
	// way names the algorithm.
	way() string
}

// bucketParts is what an exchange works on.
type bucketParts struct {
	label string
	own   [][]float32 // this rank's sums over its maximal subtrees of lanes, or of its lane where there are rounds
	dst   []float32   // where the sum goes: the whole bucket, or this rank's chunk of it
	// chunks are those of the owners where each rank keeps a part, else nil.
	chunks []comm.Range
	// sums are this rank's chunk in each slot of Sums, where there are rounds.
	sums [][]float32
}

// newExchange chooses how a bucket travels.
func newExchange(m Mesh, env *Env, p *plan.Plan, dev device.Device, b plan.Bucket, k bucketParts, sums []device.Arena, lossy *compression) (exchange, error) {
	prepare := plainSum(env.Group)
	if lossy.takes(b.Index) {
		prepare = lossy.sum(env.Group, b, k)
	}
	if p.Rounds != nil {
		return newRoundSums(env, p, dev, b, k, sums, prepare)
	}
	a, fast, err := m.algorithm()
	if fast || err != nil {
		if err != nil {
			return nil, err
		}
		return newFastSums(env.Group, a, k)
	}
	c, err := prepare(k.label, p.ReductionFor(b, p.Reduction), k.chunks, k.own, k.dst)
	return &treeSums{turns: []turn{{collectives: []*comm.Collective{c}}}}, err
}

// preparer prepares the sum of what ranks hold of a vector: all of it into dst on every rank, or with chunks each rank's chunk.
type preparer func(label string, red *comm.Reduction, chunks []comm.Range, own [][]float32, dst []float32) (*comm.Collective, error)

func plainSum(g *comm.Group) preparer {
	return func(label string, red *comm.Reduction, chunks []comm.Range, own [][]float32, dst []float32) (*comm.Collective, error) {
		if chunks == nil {
			return g.PrepareAllReduceTree(label, red, own, dst)
		}
		return g.PrepareReduceScatterTree(label, red, chunks, own, dst)
	}
}

// treeSums is the canonical sum by collectives of the data group.
type treeSums struct {
	turns   []turn // by round
	round   int    // of what is on its way
	handles []*comm.Handle
}

// turn is what one round needs: a collective for each subtree of its lanes, then what joins sums of this and earlier rounds.
type turn struct {
	collectives []*comm.Collective
	joins       []func()
}

// newRoundSums prepares the sums of a bucket that is reduced in rounds.
func newRoundSums(env *Env, p *plan.Plan, dev device.Device, b plan.Bucket, k bucketParts, sums []device.Arena, prepare preparer) (exchange, error) {
	t := &treeSums{}
	place := func(slot int) device.Tensor {
		return device.Tensor{Type: b.Sum.Type, Arena: sums[slot], Offset: b.Sum.Offset}
	}
	bound := map[comm.Add]func(){}
	for _, r := range p.Rounds {
		var n turn
		lane := r.Lanes.Lo + env.Rank
		for _, s := range r.Sums {
			var own [][]float32
			if s.Node.Lo <= lane && lane < s.Node.Hi {
				own = k.own
			}
			c, err := prepare(k.label, p.ReductionFor(b, s.Reduction), k.chunks, own, k.sums[s.Slot])
			if err != nil {
				return nil, err
			}
			n.collectives = append(n.collectives, c)
		}
		for _, a := range r.Adds {
			if b.Sum.Shape.Numel() == 0 {
				continue
			}
			if bound[a] == nil {
				run, err := dev.Bind(device.Call{Op: graph.OpAccumulate, In: []device.Tensor{place(a.Dst), place(a.Src)}, Out: []device.Tensor{place(a.Dst)}})
				if err != nil {
					return nil, err
				}
				if to := p.Rounding(b); to != tensor.Invalid {
					sum := run
					round, err := dev.Bind(device.Call{Op: graph.OpRoundTo, Attrs: graph.RoundAttrs{To: to}, In: []device.Tensor{place(a.Dst)}, Out: []device.Tensor{place(a.Dst)}})
					if err != nil {
						return nil, err
					}
					run = func() { sum(); round() }
				}
				bound[a] = run
			}
			n.joins = append(n.joins, bound[a])
		}
		t.turns = append(t.turns, n)
	}
	return t, nil
}

func (t *treeSums) start(round int) {
	t.round = round
	for _, c := range t.turns[round].collectives {
		t.handles = append(t.handles, c.Start())
	}
}

func (t *treeSums) wait(ctx context.Context, trace *StepTrace) error {
	if len(t.handles) == 0 {
		return nil
	}
	for _, h := range t.handles {
		if err := trace.await(ctx, h); err != nil {
			return err
		}
	}
	t.handles = t.handles[:0]
	for _, join := range t.turns[t.round].joins {
		join()
	}
	return nil
}

func (t *treeSums) arrived() bool {
	for _, h := range t.handles {
		if !h.Over() {
			return false
		}
	}
	return true
}

func (t *treeSums) forget() { t.handles = t.handles[:0] }

func (t *treeSums) way() string { return t.turns[0].collectives[0].Way() }

// await waits for a collective and notes when it ran.
func (t *StepTrace) await(ctx context.Context, h *comm.Handle) error {
	begun := time.Now()
	if err := h.Wait(ctx); err != nil {
		return err
	}
	t.Waits = append(t.Waits, Span{h.Label(), begun, time.Now()})
	if at := h.Issued(); t.FirstIssued.IsZero() || at.Before(t.FirstIssued) {
		t.FirstIssued = at
	}
	t.Collectives = append(t.Collectives, Span{h.Label(), h.Started(), h.Finished()})
	return nil
}

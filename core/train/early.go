package train

import (
	"context"
	"fmt"
	"math"

	"starling/core/comm"
	"starling/core/device"
	"starling/core/tensor"
)

// early is the update of a step whose plan has Renewals: a bucket's parameters are updated when it has arrived, while the backward pass or
// other buckets are still on their way. The backward pass waits for nothing: it looks between its instructions. The weight of the step, which the update needs, is known once every rank's last forward pass is over,
// so the figures of all micro-batches travel ahead of the last lane's first bucket.
type early struct {
	e      *engine
	all    []float64    // the figures of all ranks
	parts  []comm.Range // each rank's
	gather *comm.Collective
	// Of the running step:
	ctx    context.Context
	in     stepIn
	handle *comm.Handle // of the figures on their way
	known  bool         // they are there
	out    stepOut
	next   int // the bucket whose update is next
	ready  int // in front of which buckets may be updated
	env    device.Env
}

// newEarly prepares the updates of an engine's plan, or returns nil where the whole gradient must be known first.
func newEarly(e *engine) (*early, error) {
	if e.plan.Renewals == nil {
		return nil, nil
	}
	s := &early{e: e}
	var words []comm.Range
	for r := range e.env.World {
		n := figuresOf(len(e.plan.Schedule(r)))
		at := len(s.all)
		s.all = append(s.all, make([]float64, n)...)
		s.parts = append(s.parts, comm.Range{Lo: at, Hi: at + n})
		words = append(words, comm.Range{Lo: 2 * at, Hi: 2 * (at + n)})
	}
	e.figures = s.all[s.parts[e.env.Rank].Lo:s.parts[e.env.Rank].Hi] // which are gathered where they are
	var err error
	s.gather, err = e.env.Group.PrepareAllGather(e.labels.figures, words, tensor.View[float32](tensor.Bytes(s.all)))
	return s, err
}

// begin starts a step.
func (s *early) begin(ctx context.Context, in stepIn) {
	if s == nil {
		return
	}
	s.ctx, s.in, s.handle, s.known, s.next, s.ready = ctx, in, nil, false, 0, 0
	s.out = stepOut{}
	s.env = device.Env{LastInLane: true, LastOnRank: true, Comm: s.e.collect}
}

// announce sends this rank's figures, whose last forward pass is over. Every rank calls it before it hands over the first bucket of its last run.
func (s *early) announce() {
	s.e.noteRunning()
	s.e.running = -1 // its figures belong to the gathering from now on
	s.e.noteRank(s.in.stop)
	s.handle = s.gather.Start()
}

// know waits for the figures of all ranks and makes what the update needs of them.
func (s *early) know() error {
	if s.known {
		return nil
	}
	if s.handle == nil {
		return fmt.Errorf("step %d: broken invariant: an update before the losses are known", s.in.step)
	}
	e := s.e
	if err := s.handle.Wait(s.ctx); err != nil {
		return err
	}
	var all [][]float64
	for _, p := range s.parts {
		all = append(all, s.all[p.Lo:p.Hi])
	}
	e.tally(all, &s.out)
	s.known = true
	if err := e.checkWeight(s.in, &s.out); err != nil || s.out.weight == 0 {
		return err
	}
	e.setHyper(s.in, e.meanScale(s.out.weight))
	return nil
}

// allow says that a bucket may be updated from now on.
func (s *early) allow(bucket int) { s.ready = bucket + 1 }

// advance updates what may be updated and has arrived, in the order of buckets.
func (s *early) advance() error {
	for s.next < s.ready && (s.known || s.handle != nil && s.handle.Over()) && s.e.collect.buckets[s.next].arrived() {
		if err := s.renew(s.next); err != nil {
			return err
		}
	}
	return nil
}

// renew waits for a bucket and updates what it completes. Where nothing in the batch counts, parameters and optimizer stay.
func (s *early) renew(bucket int) error {
	if err := s.know(); err != nil {
		return err
	}
	s.next = bucket + 1
	r := s.e.plan.Renewals[bucket]
	if s.out.weight == 0 {
		return s.e.collect.buckets[bucket].wait(s.ctx, &s.e.trace)
	}
	if err := s.e.norm.RunPart(&s.env, r.Norm.Lo, r.Norm.Hi); err != nil {
		return err
	}
	return s.e.update.RunPart(&s.env, r.Update.Lo, r.Update.Hi)
}

// finish updates what is left, waits until every rank is whole, and joins the norm. A gradient that is not finite is told after the
// update: the run ends then, and nothing of the step is kept.
func (s *early) finish() (stepOut, error) {
	e := s.e
	if s.handle == nil { // no bucket left behind the loss
		s.announce()
	}
	for s.next < len(e.plan.Buckets) {
		if err := s.renew(s.next); err != nil {
			return s.out, err
		}
	}
	if s.out.weight == 0 {
		return s.out, nil
	}
	rest := e.plan.Renewals[len(e.plan.Buckets)]
	if err := e.norm.RunPart(&s.env, rest.Norm.Lo, rest.Norm.Hi); err != nil {
		return s.out, err
	}
	if err := e.update.RunPart(&s.env, rest.Update.Lo, rest.Update.Hi); err != nil {
		return s.out, err
	}
	s.out.trace = e.trace
	norm, bad, err := e.gradientNorm(s.ctx)
	if err != nil {
		return s.out, err
	}
	s.out.norm, s.out.overflow = float64(e.meanScale(s.out.weight)*norm), bad
	return s.out, nil
}

// figuresOf is the length of the figures of a rank with so many micro-batches: loss, weight and tokens of each, how long the rank has
// waited for others, and whether it was asked to stop.
func figuresOf(microBatches int) int { return 3*microBatches + 2 }

// noteRunning notes loss and weight of the running micro-batch, whose forward pass is over.
func (e *engine) noteRunning() {
	if at := e.running; at >= 0 {
		e.figures[3*at], e.figures[3*at+1] = float64(e.loss[0]), float64(e.weight[0])
	}
}

// noteRank notes what a rank tells of itself.
func (e *engine) noteRank(stop bool) {
	flag := &e.figures[len(e.figures)-1]
	*flag = 0
	if stop {
		*flag = 1
	}
	if e.env.Waited != nil {
		e.figures[len(e.figures)-2] = e.env.Waited().Seconds()
	}
}

// meanScale is what makes the exact mean of a gradient: the backward pass was seeded with the loss's scale over the nominal weight. (The conversions
// keep compilers from fusing a product with a sum, which would give other bits on some architectures.)
func (e *engine) meanScale(weight float64) float64 { return 1 / float64(float64(e.seed[0])*weight) }

// checkWeight refuses a weight that no batch can have.
func (e *engine) checkWeight(in stepIn, out *stepOut) error {
	if !(out.weight >= 0) || math.IsInf(out.weight, 0) {
		return e.spec.errorf("train", "step %d: the weight of the loss is %v; a weight counts what the loss sums over, so it must be a finite number of at least 0", in.step, out.weight)
	}
	return nil
}

// setHyper fills the table of hyper-parameters.
func (e *engine) setHyper(in stepIn, scale float64) {
	optimizer := e.spec.applied()
	for g, row := range e.hyper {
		optimizer.Hyper(row, g, in.taken, in.rate, scale)
	}
}

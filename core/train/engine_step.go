package train

import (
	"context"
	"fmt"
	"time"

	"starling/core/comm"
	"starling/core/data"
	"starling/core/device"
	"starling/core/optim"
	"starling/core/plan"
)

// stepOut is what one step gives, equal on all ranks but for the trace.
type stepOut struct {
	loss, lossSum, weight, norm float64
	tokens                      int64
	stop                        bool
	waited                      []float64 // by rank: seconds that it has waited for others so far; valid until the next step
	// overflow, if set, is the first parameter in name order whose gradient is not finite: the step was not taken.
	overflow *plan.Param
	trace    StepTrace
}

// stepIn is what a step is told.
type stepIn struct {
	step  int // tried so far, which address data and random numbers
	taken int // updates so far, which the optimizer counts
	rate  float64
	scale float64 // of the loss
	stop  bool
}

// step runs the micro-batches of this rank, waits for the gradients of all ranks, and updates the parameters.
func (e *engine) step(ctx context.Context, loader *data.Loader, in stepIn) (stepOut, error) {
	e.trace.begin(in.step)
	e.collect.begin(ctx, &e.trace)
	e.seed[0] = float32(in.scale / e.nominal)
	e.lossy.begin(in.taken, in.scale, float64(e.seed[0]))
	e.done, e.running = 0, -1
	e.early.begin(ctx, in)
	i := 0
	for k, lane := range e.lanes {
		e.collect.round = lane.Round
		for n := range lane.Idle {
			last := lane.Lane < 0 && n == lane.Idle-1
			e.run = device.Env{Idle: true, FirstInLane: n == 0, LastInLane: last, LastOnRank: last && k == len(e.lanes)-1, Comm: e.collect}
			e.prepareLast()
			if err := e.micro[0].Run(&e.run); err != nil {
				return stepOut{}, err
			}
		}
		for m := lane.MicroBatches.Lo; m < lane.MicroBatches.Hi; m++ {
			last := m == lane.MicroBatches.Hi-1
			e.run = device.Env{FirstInLane: m == lane.MicroBatches.Lo, LastInLane: last, LastOnRank: last && k == len(e.lanes)-1,
				Merges: lane.Merges, Comm: e.collect}
			e.prepareLast()
			if err := e.microBatch(ctx, loader, in.step, m, i, lane.Buffer); err != nil {
				return stepOut{}, err
			}
			i++
		}
	}
	e.trace.BackwardEnd = time.Now()
	return e.finishStep(ctx, in)
}

// microBatch loads one micro-batch into IO and runs forward and backward on it.
func (e *engine) microBatch(ctx context.Context, loader *data.Loader, step, index, at, buffer int) error {
	b, err := loader.Next(ctx)
	if err != nil {
		return err
	}
	for _, in := range e.inputs {
		copy(in.dst, b.Column(in.name).Bytes())
	}
	weighRows(e.weights, b)
	e.figures[3*at+2] = float64(b.Weight)
	b.Release()
	if e.rng != nil {
		e.rng[0], e.rng[1], e.rng[2], e.rng[3] = uint32(e.spec.Seed), uint32(e.spec.Seed>>32), uint32(step), uint32(index)
	}
	e.running = at
	err = e.micro[buffer].Run(&e.run)
	e.noteRunning()
	e.done, e.running = at+1, -1
	return err
}

// prepareLast readies the last run of a step for what happens beside its backward pass.
func (e *engine) prepareLast() {
	if e.early != nil && e.run.LastOnRank {
		e.collect.announce, e.collect.announceAt = e.early.announce, e.plan.Announce
		e.run.Renew, e.run.Between = e.early.allow, e.early.advance
	}
}

// weightSoFar is the weight of this rank's micro-batches, that of the running one included, whose forward pass is over.
func (e *engine) weightSoFar() float64 {
	sum := float64(e.weight[0])
	for i := range e.done {
		sum += e.figures[3*i+1]
	}
	return sum
}

// weighRows writes the weights of a batch's rows, if there is a place for them: 1 for a sample, 0 for padding.
func weighRows(dst []float32, b *data.Batch) {
	for i := range dst {
		dst[i] = 0
		if b.Indices()[i] >= 0 {
			dst[i] = 1
		}
	}
}

// finishStep exchanges the micro-batches' figures, computes the norm and updates.
func (e *engine) finishStep(ctx context.Context, in stepIn) (stepOut, error) {
	if e.early != nil {
		return e.early.finish()
	}
	var out stepOut
	e.noteRank(in.stop)
	figures := e.tellFigures()
	if e.lossy == nil { // the figures travel behind the last bucket: meanwhile each bucket that is there adds to the norm
		if err := e.takeNorm(); err != nil {
			return out, err
		}
	}
	if err := e.hearFigures(ctx, figures, &out); err != nil {
		return out, err
	}
	if err := e.checkWeight(in, &out); err != nil {
		return out, err
	}
	if out.weight == 0 { // nothing in this batch counts: parameters and optimizer stay
		if err := e.collect.wait(ctx); err != nil {
			return out, err
		}
		e.lossy.takeBack()
		return out, nil
	}
	if e.lossy != nil {
		e.lossy.alone(out.weight)
		if err := e.takeNorm(); err != nil {
			return out, err
		}
	}
	out.trace = e.trace
	scale := e.meanScale(out.weight)
	if e.lossy != nil { // which has done that, or for rounds of lanes divided by the loss's scale
		scale = e.lossy.remaining(scale)
	}
	norm, bad, err := e.gradientNorm(ctx)
	if err != nil {
		return out, err
	}
	if bad != nil {
		out.overflow = bad
		return out, nil
	}
	out.norm = float64(scale * norm)
	if scale, err = e.clipped(scale, out.norm); err != nil {
		return out, err
	}
	e.lossy.commit() // the step is taken, however its update ends
	err = e.renew(ctx, in, scale, out)
	out.trace = e.trace
	return out, err
}

// renew updates the parameters with the gradients that are there.
func (e *engine) renew(ctx context.Context, in stepIn, scale float64, out stepOut) error {
	e.setHyper(in, scale)
	// The update segment ends with what makes every rank whole again, so plugins come first.
	if err := e.runPlugins(ctx, in, scale, out); err != nil {
		return err
	}
	return e.update.Run(&device.Env{Comm: e.collect})
}

// takeNorm waits for the buckets, one after another, and computes the partial results of the norm.
func (e *engine) takeNorm() error {
	return e.norm.Run(&device.Env{LastInLane: true, LastOnRank: true, Comm: e.collect})
}

// tellFigures sends the figures of this rank's micro-batches to the others; nil if there are none.
func (e *engine) tellFigures() *comm.Gathering[float64] {
	if e.env.World == 1 {
		return nil
	}
	return e.env.Group.StartAllGatherFloat64(e.labels.figures, e.figures)
}

// hearFigures waits for those of the others and sums the figures of all micro-batches in their order, on every rank alike.
func (e *engine) hearFigures(ctx context.Context, told *comm.Gathering[float64], out *stepOut) error {
	all := [][]float64{e.figures}
	if told != nil {
		var err error
		if all, err = told.Values(ctx); err != nil {
			return err
		}
	}
	e.tally(all, out)
	return nil
}

// tally sums the figures of all ranks.
func (e *engine) tally(all [][]float64, out *stepOut) {
	for _, o := range e.order {
		f := all[o.rank][3*o.at:]
		out.lossSum += f[0]
		out.weight += f[1]
		out.tokens += int64(f[2])
	}
	e.waited = e.waited[:0]
	for _, f := range all {
		out.stop = out.stop || f[len(f)-1] != 0
		e.waited = append(e.waited, f[len(f)-2])
	}
	out.waited = e.waited
	out.loss = ratio(out.lossSum, out.weight)
}

// notFinite is the error of a gradient that is not finite, of the first such parameter in name order. Every rank sees the same
// gradient, so every rank stops.
func notFinite(step int, p *plan.Param, scale optim.ScaleState, scaled bool) error {
	where := ""
	if p.Block != "" {
		where = " (block " + p.Block + ")"
	}
	if p.Pos.File != "" {
		where += " (" + p.Pos.String() + ")"
	}
	advice := "Lower the learning rate, clip the gradient (clip_norm), look for a division or logarithm of 0 in the loss, or for a target that is none of the classes"
	if scaled {
		advice = fmt.Sprintf("The loss scale is %v and cannot go down any further. ", scale.Scale) + advice
	}
	return fmt.Errorf("step %d: the gradient of %s%s is not finite (NaN or infinity), the first of the parameters in name order; "+
		"no weights of this step are kept. %s", step, p.Name, where, advice)
}

package train

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"starling/core/data"
	"starling/core/device"
	"starling/core/optim"
	"starling/core/plan"
)

// engine holds a rank's programs, bound to its memory, and runs one step of them.
type engine struct {
	spec  *Spec
	env   *Env
	plan  *plan.Plan
	dev   device.Device
	mem   device.Memory
	grads []device.Arena
	sums  []device.Arena

	micro    []*device.Bound // one for each gradient buffer
	norm     *device.Bound
	clip     *device.Bound // nil where single elements are not bounded
	update   *device.Bound
	external *externals
	files    map[device.Arena]*os.File // of the arenas that plugins map
	lanes    []plan.LaneStep
	schedule []int // the micro-batches of this rank, ascending

	inputs  []ioField
	weights []float32 // of the rows; nil where the model does not ask for them
	rng     []uint32  // nil where the model draws no random numbers
	seed    []float32
	loss    []float32
	weight  []float32
	limit   []float64 // of the clip segment
	hyper   [][]float64
	nominal float64 // the largest weight a step can have; the backward pass is seeded with its inverse

	collect *collector
	early   *early       // nil where the whole gradient must be known before the update
	lossy   *compression // of gradients, or nil
	run     device.Env
	waited  []float64 // of all ranks, see stepOut
	figures []float64 // loss, weight, tokens of each micro-batch of this rank, then how long it has waited for others, then the stop flag
	done    int       // micro-batches of this step
	running int       // the place of the one that runs, -1 where none does
	order   []figureAt
	norms   []float64 // partial results of the norm of this rank's part of the gradient
	trace   StepTrace
}

// figureAt is where a micro-batch's figures are: at place at of rank.
type figureAt struct{ rank, at int }

// ioField is a batch field and the place in IO that it is copied to.
type ioField struct {
	name string
	dst  []byte
}

// newEngine traces, plans, allocates and binds.
func newEngine(s *Spec, env *Env) (*engine, error) {
	if env.World > 1 {
		if err := s.Mesh.reachable(env.Group); err != nil {
			return nil, s.errorf("mesh", "%v", err)
		}
	}
	perHost := 1
	if env.World > 1 {
		perHost = env.Group.Hosting().Each
	}
	p, err := planOn(s, env.World, env.Rank, perHost)
	if err != nil {
		return nil, err
	}
	if err := s.Fits(p, 0); err != nil { // before anything is allocated; what kernels need beside comes later
		return nil, err
	}
	e := &engine{spec: s, env: env, plan: p, dev: env.Device, files: map[device.Arena]*os.File{}}
	if err := e.allocate(); err != nil {
		e.close()
		return nil, err
	}
	if err := e.bind(); err != nil {
		e.close()
		return nil, err
	}
	if e.external, err = newExternals(e, nil); err != nil {
		e.close()
		return nil, err
	}
	e.lanes, e.schedule = p.LaneSteps(), p.Schedule(env.Rank)
	e.order = make([]figureAt, s.Data.MicroBatches())
	for r := range env.World {
		for at, m := range p.Schedule(r) {
			e.order[m] = figureAt{r, at}
		}
	}
	e.figures = make([]float64, figuresOf(len(e.schedule)))
	e.nominal = float64(s.Data.GlobalBatch)
	targets := 0
	for _, f := range s.Data.Source.Fields() {
		if f.Role == data.Target {
			targets += f.Elements()
		}
	}
	if targets > 0 {
		e.nominal *= float64(targets)
	}
	if e.lossy, err = newCompression(env, e.plan, e.grads, e.weightSoFar, s.pluginTimeout()); err != nil {
		e.close()
		return nil, err
	}
	if e.collect, err = newCollector(s.Mesh, env, e.plan, e.dev, e.memory(0), e.grads, e.sums, e.lossy); err != nil {
		e.close()
		return nil, err
	}
	if e.early, err = newEarly(e); err != nil {
		e.close()
		return nil, err
	}
	if env.World > 1 && env.Rank == 0 {
		env.Observe(Event{Kind: EventNote, Text: reductionNote(s.Mesh, e.collect.buckets, e.collect.lossy)})
	}
	return e, nil
}

// allocate makes every arena; nothing is allocated after it.
func (e *engine) allocate() error {
	shared := usesPlugins(e.plan)
	for s := range device.NumSpaces {
		if s == device.Grads || s == device.Sums {
			continue
		}
		a, err := e.allocArena(s, shared && (s == device.Params || s == device.State))
		if err != nil {
			return fmt.Errorf("allocating %d bytes for %v: %w", e.plan.ArenaBytes[s], s, err)
		}
		e.mem.Arenas[s] = a
	}
	for i := range e.plan.GradBuffers {
		a, err := e.allocSummed(fmt.Sprintf("grads %d", i), e.plan.ArenaBytes[device.Grads], shared && i == 0)
		if err != nil {
			return fmt.Errorf("allocating %d bytes for gradient buffer %d of %d: %w", e.plan.ArenaBytes[device.Grads], i+1, e.plan.GradBuffers, err)
		}
		e.grads = append(e.grads, a)
	}
	for i := range e.plan.SumBuffers {
		a, err := e.alloc(fmt.Sprintf("sums %d", i), e.plan.ArenaBytes[device.Sums], shared && i == 0)
		if err != nil {
			return fmt.Errorf("allocating %d bytes for partial sums %d of %d: %w", e.plan.ArenaBytes[device.Sums], i+1, e.plan.SumBuffers, err)
		}
		e.sums = append(e.sums, a)
	}
	return nil
}

// memory returns the arenas with gradient buffer k as the one written.
func (e *engine) memory(k int) device.Memory {
	m := e.mem
	m.Arenas[device.Grads] = e.grads[k]
	m.Stack = e.grads[:k+1]
	if len(e.sums) > 0 {
		m.Arenas[device.Sums] = e.sums[0]
	}
	return m
}

func (e *engine) bind() error {
	micro := e.plan.Segments[plan.SegmentMicro]
	for k := range e.grads {
		b, err := device.Bind(e.dev, micro, e.memory(k))
		if err != nil {
			return err
		}
		e.micro = append(e.micro, b)
	}
	var err error
	if e.norm, err = device.Bind(e.dev, e.plan.Segments[plan.SegmentNorm], e.memory(0)); err != nil {
		return err
	}
	if e.update, err = device.Bind(e.dev, e.plan.Segments[plan.SegmentUpdate], e.memory(0)); err != nil {
		return err
	}
	mem := e.memory(0)
	if clip := e.plan.Segments[plan.SegmentClip]; clip != nil {
		if e.clip, err = device.Bind(e.dev, clip, mem); err != nil {
			return err
		}
		e.limit = device.View[float64](mem, clip.Inputs[plan.InputLimit])
	}
	for _, f := range e.spec.Data.Source.Fields() {
		if o, ok := micro.Inputs[f.Name]; ok {
			e.inputs = append(e.inputs, ioField{f.Name, device.View[byte](mem, o)})
		}
	}
	if o, ok := micro.Inputs[InputWeight]; ok {
		e.weights = device.View[float32](mem, o)
	}
	if o, ok := micro.Inputs[InputRNG]; ok {
		e.rng = device.View[uint32](mem, o)
	}
	e.seed = device.View[float32](mem, micro.Inputs[plan.InputSeed])
	e.loss = device.View[float32](mem, micro.Outputs[plan.OutputLoss])
	e.weight = device.View[float32](mem, micro.Outputs[plan.OutputWeight])
	hyper := device.View[float64](mem, e.plan.Segments[plan.SegmentUpdate].Inputs[plan.InputHyper])
	for g := range e.plan.Groups {
		e.hyper = append(e.hyper, hyper[g*plan.HyperLen:(g+1)*plan.HyperLen])
	}
	return nil
}

// together reports whether every rank must take part whenever the model runs, because each holds a part of its parameters.
func (e *engine) together() bool {
	return slices.ContainsFunc(e.plan.Units, func(u *plan.Unit) bool { return u.Sharded })
}

// forward runs a segment without gradients; idle, this rank only hands its part of the parameters to the others.
func (e *engine) forward(ctx context.Context, b *device.Bound, idle bool) error {
	e.collect.begin(ctx, &StepTrace{})
	e.run = device.Env{Idle: idle, Comm: e.collect}
	return b.Run(&e.run)
}

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

// finishStep exchanges the micro-batches' figures, then computes the norm and updates.
func (e *engine) finishStep(ctx context.Context, in stepIn) (stepOut, error) {
	if e.early != nil {
		return e.early.finish()
	}
	var out stepOut
	e.noteRank(in.stop)
	if err := e.exchange(ctx, &out); err != nil {
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
	e.lossy.alone(out.weight)
	if err := e.norm.Run(&device.Env{LastInLane: true, LastOnRank: true, Comm: e.collect}); err != nil {
		return out, err
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

// exchange sums the figures of all micro-batches in their order, on every rank alike.
func (e *engine) exchange(ctx context.Context, out *stepOut) error {
	all := [][]float64{e.figures}
	if e.env.World > 1 {
		var err error
		if all, err = e.env.Group.AllGatherFloat64(ctx, "losses and weights", e.figures); err != nil {
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

func (e *engine) close() {
	if e.external != nil {
		e.external.close()
	}
	if e.collect != nil {
		e.collect.close()
	}
	e.lossy.close()
	for _, a := range e.mem.Arenas {
		if a != nil {
			a.Free()
		}
	}
	for _, a := range slices.Concat(e.grads, e.sums) {
		a.Free()
	}
}

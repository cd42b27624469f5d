package train

import (
	"context"
	"fmt"
	"os"
	"slices"

	"starling/core/data"
	"starling/core/device"
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
	labels  stepLabels
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
	e := &engine{spec: s, env: env, plan: p, dev: env.Device, labels: newStepLabels(s), files: map[device.Arena]*os.File{}}
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
	if e.lossy, err = newCompression(s, env, e.plan, e.grads, e.weightSoFar); err != nil {
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

package train

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"starling/core/comm"
	"starling/core/data"
	"starling/core/device"
	"starling/core/plan"
	"starling/core/plugin"
)

// Env is what the surroundings of one rank give the trainer.
type Env struct {
	Rank, World int
	// Group is the data-parallel group; nil where World is 1.
	Group *comm.Group
	// NewGroup makes a further group of the same ranks; nil where World is 1. Checkpoints that several ranks write are put
	// together over one of their own, because they are written while the data group works.
	NewGroup func(name string) (*comm.Group, error)
	// SentBytes, if set, counts the payload bytes that this rank has sent so far.
	SentBytes func() int64
	// SentTo, if set, counts those to one rank, by the kind of link.
	SentTo func(rank int) comm.Traffic
	// Waited, if set, counts how long this rank has waited for others to enter its collectives.
	Waited  func() time.Duration
	Device  device.Device
	Threads int
	// RunDir is the run's folder; rank 0 writes to it. Empty: nothing is written.
	RunDir string
	Resume bool
	// Digest identifies what the recipe computes.
	Digest string
	// Arithmetic names what else decides the run's bits, the same on all ranks: in bf16 how the processor multiplies.
	Arithmetic string
	// DigestAs, if set, is what Digest would be with optimizer plugins of other versions; a run that those began can be resumed if the
	// plugins can upgrade their state.
	DigestAs func(was plugin.Versions) (string, error)
	// Started is when the process that the user started began.
	Started time.Time
	// Stop asks for a graceful end: a checkpoint is written and Run returns ErrInterrupted.
	Stop <-chan struct{}
	// Observe receives events; never nil.
	Observe Observer
	// Status is told in a word or two what the rank is doing, for whoever has to explain its death.
	Status func(string)
	// OnTrace, if set, is told how each step's instructions and collectives lay in time.
	OnTrace func(StepTrace)
	// Quiesce, needed where World is above 1, ends this rank's part in all communication because of an error, and returns
	// once no collective touches this rank's memory any more.
	Quiesce func(error)
}

// ErrInterrupted is returned by Run after a graceful stop that left a checkpoint to resume from.
var ErrInterrupted = errors.New("interrupted; the run can be resumed")

// Run trains on one rank until the spec's last step. Every rank returns the same result but for
// its own memory figures.
func Run(ctx context.Context, spec *Spec, env Env) (*Result, error) {
	if env.Status == nil {
		env.Status = func(string) {}
	}
	env.Status("reading data")
	l := &loop{spec: spec, env: env}
	r, err := l.run(ctx)
	if err != nil && !errors.Is(err, ErrInterrupted) && env.Quiesce != nil {
		env.Quiesce(err) // collectives on their way would write into memory that is freed next
	}
	l.close()
	return r, err
}

func (l *loop) run(ctx context.Context) (*Result, error) {
	if err := l.prepare(ctx); err != nil {
		return nil, err
	}
	if err := l.train(ctx); err != nil {
		return nil, err
	}
	return l.finish(ctx)
}

// loop is one rank's run.
type loop struct {
	spec   *Spec
	env    Env
	corpus Corpus

	sampler *data.Sampler
	loader  *data.Loader
	engine  *engine
	eval    *evaluator
	samples []*textSampler
	saver   *saver
	log     *recorder

	state       State
	total       int // steps of the whole run
	indexSecs   float64
	firstStep   float64
	resumedAt   int
	interrupted bool
	completed   Metrics // of a step that was finished at the resume
	sentPerStep int64
	hidden      overlap
	late        lateness
	traffic     traffic
	report      every
}

// prepare reads the data, plans, allocates, and loads a checkpoint if the run is resumed.
func (l *loop) prepare(ctx context.Context) error {
	t0 := time.Now()
	s := l.spec
	l.corpus = s.Data.Source.Corpus()
	stopped, err := l.loadAll(ctx)
	if err != nil {
		return err
	}
	l.indexSecs = time.Since(t0).Seconds()
	if err := l.sameData(ctx, stopped); err != nil {
		return err
	}
	train, err := s.Data.Source.Dataset()
	if err != nil {
		return &Error{s.Positions["data"], err.Error()}
	}
	l.sampler, err = data.NewSampler(data.SamplerConfig{Samples: train.Len(), GlobalBatch: s.Data.GlobalBatch,
		MicroBatch: s.Data.MicroBatch, Seed: s.Seed, Shuffle: s.Data.Shuffle})
	if err != nil {
		return &Error{s.Positions["data"], err.Error()}
	}
	l.total = s.Steps
	if s.Epochs > 0 {
		if n := l.sampler.StepsPerEpoch(); int64(s.Epochs) > maxSteps/n {
			return s.errorf("train", "train: epochs = %d of %d steps each are more than %d steps", s.Epochs, n, int64(maxSteps))
		}
		l.total = s.Epochs * int(l.sampler.StepsPerEpoch())
	}
	l.env.Status("planning")
	if l.engine, err = newEngine(s, &l.env); err != nil {
		return err
	}
	l.env.Status("starting plugins")
	if err := l.engine.external.start(ctx); err != nil {
		return s.place("optimizer", err)
	}
	if err := l.engine.lossy.startPlugin(ctx); err != nil {
		return s.place("mesh", err)
	}
	if err := s.Fits(l.engine.plan, l.env.Device.ScratchBytes()); err != nil {
		return err
	}
	if l.env.Rank == 0 {
		m := PlanMemory(s, l.engine.plan, l.env.Device.ScratchBytes())
		l.env.Observe(Event{Kind: EventPlan, Text: fmt.Sprintf("%s; with data and buffers %s on this rank", l.engine.plan.Summary().Line(), m.Text())})
		for _, note := range l.engine.plan.Notes {
			l.env.Observe(Event{Kind: EventWarning, Text: note})
		}
	}
	if s.Evaluate != nil {
		if l.eval, err = newEvaluator(s, &l.env, l.engine); err != nil {
			return err
		}
	}
	for i := range s.Samples {
		t, err := newTextSampler(&s.Samples[i], s.Seed, l.engine, l.engine.memory(0), i)
		if err != nil {
			return err
		}
		l.samples = append(l.samples, t)
	}
	if l.saver, err = newSaver(s, &l.env, l.engine); err != nil {
		return err
	}
	l.state.Scale = s.LossScale.Start()
	l.state.Digest, l.state.Data, l.state.Arithmetic = l.env.Digest, l.fingerprint(), l.env.Arithmetic
	l.state.Plugins = plugin.VersionsOf(s.Optimizer)
	if l.env.Resume {
		if err := l.resume(ctx); err != nil {
			return err
		}
	} else if err := l.engine.initialise(s.Seed); err != nil {
		return err
	}
	l.resumedAt = l.state.Step
	if l.env.Rank == 0 && l.env.RunDir != "" {
		if l.log, err = openRecorder(l.env.RunDir, l.state.Step, l.state.Due != nil); err != nil {
			return err
		}
		if err := l.openSinks(ctx); err != nil {
			return err
		}
	}
	if l.state.Step >= l.total {
		return nil
	}
	l.loader, err = data.NewLoader(ctx, data.LoaderConfig{Dataset: train, Sampler: l.sampler, Schedule: l.engine.schedule,
		Start: int64(l.state.Step), Steps: int64(l.total - l.state.Step), Workers: s.Data.Workers, Prefetch: s.Data.Prefetch})
	return err
}

// loadAll reads the run's data. stopped says that it was given up because the run was asked to stop.
func (l *loop) loadAll(ctx context.Context) (stopped bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-l.env.Stop:
			cancel(ErrInterrupted)
		case <-ctx.Done():
		}
	}()
	err = l.load(ctx, l.corpus)
	if e := l.spec.Evaluate; err == nil && e != nil && e.Source.Corpus() != l.corpus {
		err = l.load(ctx, e.Source.Corpus())
	}
	if err != nil && errors.Is(context.Cause(ctx), ErrInterrupted) {
		return true, nil
	}
	return false, err
}

func (l *loop) load(ctx context.Context, c Corpus) error {
	progress := func(p data.Progress) {
		if l.env.Rank == 0 {
			l.env.Observe(Event{Kind: EventIndex, Name: "reading the data", Done: p.Bytes, Of: p.TotalBytes})
		}
	}
	if err := c.Scan(ctx); err != nil {
		return &Error{l.spec.Positions["data"], err.Error()}
	}
	if err := c.Load(ctx, progress); err != nil {
		return &Error{l.spec.Positions["data"], err.Error()}
	}
	return nil
}

// sameData refuses ranks that read different data: each would train on its own, and nobody would notice.
func (l *loop) sameData(ctx context.Context, stopped bool) error {
	mine := l.fingerprint()
	if stopped {
		mine = "" // every rank leaves here, so that none waits for one that has left
	}
	all := [][]byte{[]byte(mine)}
	if l.env.World > 1 {
		var err error
		if all, err = l.env.Group.AllGatherBytes(ctx, "data fingerprint", []byte(mine)); err != nil {
			return err
		}
	}
	if slices.ContainsFunc(all, func(f []byte) bool { return len(f) == 0 }) {
		return ErrInterrupted
	}
	for r, f := range all {
		if string(f) != string(all[0]) {
			return &Error{l.spec.Positions["data"], fmt.Sprintf("rank %d read other data than rank 0 (fingerprints %.12s and %.12s): give every rank the same files", r, f, all[0])}
		}
	}
	return nil
}

// fingerprint identifies the content of all of the run's data.
func (l *loop) fingerprint() string {
	f := l.corpus.Fingerprint()
	if e := l.spec.Evaluate; e != nil && e.Source.Corpus() != l.corpus {
		f += " " + e.Source.Corpus().Fingerprint()
	}
	return f
}

// train is the loop over steps.
func (l *loop) train(ctx context.Context) error {
	l.report.gap = 200 * time.Millisecond
	if m := l.state.Due; m != nil {
		l.state.Due = nil
		best, save, err := l.afterStep(ctx, m)
		if err != nil {
			return err
		}
		if best || save {
			if err := l.saver.save(ctx, &l.state, best); err != nil {
				return err
			}
		}
	}
	if m := l.completed; m != nil {
		if err := l.log.write("step", l.state.Step, m); err != nil {
			l.env.Observe(Event{Kind: EventWarning, Text: err.Error()})
		}
		m["step"] = float64(l.state.Step)
		if err := l.due(ctx, m, false); err != nil {
			return err
		}
	}
	for !l.over() {
		m, stop, err := l.step(ctx)
		if err != nil {
			return err
		}
		if err := l.due(ctx, m, stop); err != nil {
			return err
		}
		if stop && !l.over() {
			l.interrupted = true
			break
		}
	}
	if err := l.saver.wait(ctx); err != nil {
		return err
	}
	if l.interrupted {
		return ErrInterrupted
	}
	return nil
}

// stopAsked reports whether this rank was asked to stop.
func (l *loop) stopAsked() bool {
	select {
	case <-l.env.Stop:
		return true
	default:
		return false
	}
}

// measured are the figures of a step that ranks measure for themselves.
var measured = []string{"sent_bytes", "sent_memory_bytes", "sent_host_bytes", "sent_network_bytes", "tokens_per_s", "comm_s", "comm_window_s", "comm_hidden"}

// step runs one optimizer step and records it. stop says that some rank was asked to stop; every rank gets the
// same answer, so that all leave after the same step.
func (l *loop) step(ctx context.Context) (m Metrics, stop bool, err error) {
	l.env.Status(fmt.Sprintf("step %d", l.state.Step))
	t0 := time.Now()
	sent0 := l.sent()
	links0 := l.env.sentByKind()
	epoch, _ := l.sampler.Position(int64(l.state.Step))
	st := &l.state
	taken := st.Step - st.Skipped
	in := stepIn{step: st.Step, taken: taken, rate: st.rate(l.spec.Optimizer.Rate(taken)), scale: st.Scale.Scale, stop: l.stopAsked()}
	out, err := l.engine.step(ctx, l.loader, in)
	var unfinished *unfinishedError
	if errors.As(err, &unfinished) {
		return nil, false, l.saveUnfinished(ctx, unfinished)
	}
	if err != nil {
		return nil, false, err
	}
	if err := l.rescale(out.overflow); err != nil {
		return nil, false, err
	}
	now := time.Now()
	l.sentPerStep = l.sent() - sent0
	lay := out.trace.overlap()
	l.hidden.add(lay)
	if l.env.OnTrace != nil {
		l.env.OnTrace(out.trace)
	}
	st.took(out)
	st.Seconds += now.Sub(t0).Seconds()
	if l.firstStep == 0 {
		l.firstStep = now.Sub(l.env.Started).Seconds()
	}
	loss := out.loss
	if math.IsNaN(loss) || math.IsInf(loss, 0) { // of a step that was not taken
		loss = float64(st.TrainLoss)
	}
	m = l.stepMetrics(epoch, loss, in, out)
	m["tokens_per_s"] = float64(out.tokens) / now.Sub(t0).Seconds()
	if l.env.World > 1 {
		m["comm_s"], m["comm_window_s"], m["comm_hidden"] = lay.comm.Seconds(), lay.window.Seconds(), lay.fraction()
	}
	if l.env.SentBytes != nil {
		m["sent_bytes"] = float64(l.sentPerStep) // of this rank, rank 0
	}
	if l.env.SentTo != nil && l.env.Rank == 0 {
		for kind, n := range kinds(l.env.sentByKind().Sub(links0)) {
			m["sent_"+kind+"_bytes"] = float64(n)
		}
	}
	if err := l.log.write("step", st.Step, m); err != nil {
		l.env.Observe(Event{Kind: EventWarning, Text: err.Error()})
	}
	l.watchLateness(now, out.waited)
	l.watchTraffic(now)
	if l.env.Rank == 0 && (l.report.due(now) || st.Step == l.total || st.Step == 1) {
		l.env.Observe(Event{Kind: EventStep, Step: st.Step, Total: l.total, Vals: m})
	}
	m["step"] = float64(st.Step)
	for _, k := range measured { // a hook decides on every rank alike, so it sees nothing that ranks measure for themselves
		delete(m, k)
	}
	return m, out.stop, nil
}

// stepMetrics are the figures of a step that are equal on all ranks and at every placement.
func (l *loop) stepMetrics(epoch int64, loss float64, in stepIn, out stepOut) Metrics {
	m := Metrics{"epoch": float64(epoch), "loss": loss, "lr": in.rate, "grad_norm": out.norm, "tokens": float64(l.state.Tokens)}
	if l.spec.LossScale.Active() {
		m["loss_scale"], m["skipped"] = in.scale, float64(l.state.Skipped)
	}
	return m
}

// rescale moves the loss scale on after a step, and counts one that was not taken.
func (l *loop) rescale(overflow *plan.Param) error {
	st := &l.state
	before := st.Scale.Scale
	next, err := l.spec.LossScale.Next(st.Scale, overflow != nil)
	if err != nil {
		return notFinite(st.Step, overflow, st.Scale, l.spec.LossScale.Active())
	}
	st.Scale = next
	if overflow == nil {
		return nil
	}
	st.Skipped++
	if l.env.Rank == 0 {
		l.env.Observe(Event{Kind: EventNote, Step: st.Step, Text: fmt.Sprintf("step %d is skipped: with a loss scale of %v the gradient of %s overflows; the scale is now %v",
			st.Step, before, overflow.Name, next.Scale)})
	}
	return nil
}

func (l *loop) sent() int64 {
	if l.env.SentBytes == nil {
		return 0
	}
	return l.env.SentBytes()
}

// due does what follows a step: the epoch's mean, evaluation, hooks, sample, checkpoint.
func (l *loop) due(ctx context.Context, m Metrics, stop bool) error {
	st := &l.state
	if n := int(l.sampler.StepsPerEpoch()); st.Step%n == 0 {
		mean := Metrics{"epoch": float64(st.Step/n - 1), "epoch_loss": ratio(float64(st.EpochLoss), st.EpochWeight)}
		st.EpochLoss, st.EpochWeight = 0, 0
		if err := l.log.write("epoch", st.Step, mean); err != nil {
			l.env.Observe(Event{Kind: EventWarning, Text: err.Error()})
		}
		if l.env.Rank == 0 {
			l.env.Observe(Event{Kind: EventEpoch, Step: st.Step, Total: l.total, Vals: mean})
		}
	}
	save := stop
	if h := l.spec.OnStep; h != nil {
		a, err := h(m)
		if err != nil {
			return err
		}
		st.apply(a)
		save = save || a.Save
	}
	last := l.over()
	best := false
	if stop && !last {
		// A request to stop is answered soon: what is due now is done first thing after the resume.
		st.Due = m
	} else {
		b, again, err := l.afterStep(ctx, m)
		if err != nil {
			return err
		}
		best, save = b, save || again
	}
	// Without checkpoint(…) in the recipe what was trained is still kept.
	if c := l.spec.Checkpoint; l.over() || c != nil && c.Every > 0 && st.Step%c.Every == 0 {
		save = true
	}
	if save || best {
		return l.saver.save(ctx, st, best)
	}
	return nil
}

// over reports whether the last step has been taken.
func (l *loop) over() bool { return l.state.Step >= l.total || l.state.Stopped }

// afterStep evaluates and draws samples where that is due after the step whose metrics are m.
func (l *loop) afterStep(ctx context.Context, m Metrics) (best, save bool, err error) {
	st := &l.state
	if e := l.spec.Evaluate; e != nil && (l.over() || e.Every > 0 && st.Step%e.Every == 0) {
		if best, save, err = l.evaluate(ctx, m); err != nil {
			return false, false, err
		}
	}
	for _, s := range l.samples {
		if !l.over() && (s.spec.Every == 0 || st.Step%s.spec.Every != 0) {
			continue
		}
		if l.env.Rank == 0 || l.engine.together() {
			text, err := s.draw(ctx, st.Step)
			if err != nil {
				return false, false, err
			}
			if l.env.Rank == 0 {
				l.env.Observe(Event{Kind: EventSample, Step: st.Step, Text: text})
			}
		}
		if err := l.together(ctx, "rank 0's sample"); err != nil {
			return false, false, err
		}
	}
	return best, save, nil
}

// together waits until every rank has come here, however long the one that had more to do takes, as long as it lives.
func (l *loop) together(ctx context.Context, why string) error {
	if l.env.World == 1 {
		return nil
	}
	return l.env.Group.BarrierPatient(ctx, why)
}

// evaluate runs the evaluation, keeps the score and calls the hook.
func (l *loop) evaluate(ctx context.Context, step Metrics) (best, save bool, err error) {
	st := &l.state
	l.env.Status(fmt.Sprintf("evaluation after step %d", st.Step))
	m, err := l.eval.run(ctx)
	if err != nil {
		return false, false, err
	}
	st.Eval, st.EvalStep = m, st.Step
	if err := l.log.write("eval", st.Step, m); err != nil {
		l.env.Observe(Event{Kind: EventWarning, Text: err.Error()})
	}
	if l.env.Rank == 0 {
		l.env.Observe(Event{Kind: EventEval, Step: st.Step, Total: l.total, Vals: m})
	}
	if key, sign := l.spec.Evaluate.best(); key != "" {
		v := m[key]
		if !math.IsNaN(v) && !math.IsInf(v, 0) && (st.BestStep == 0 || sign*v < sign*st.Best) {
			st.Best, st.BestStep, best = v, st.Step, true
		}
	}
	if h := l.spec.OnEval; h != nil {
		seen := Metrics{}
		for k, v := range step {
			seen[k] = v
		}
		for k, v := range m {
			seen[k] = v
		}
		a, err := h(seen)
		if err != nil {
			return false, false, err
		}
		st.apply(a)
		save = a.Save
	}
	return best, save, nil
}

// best returns the metric that decides which checkpoint is best, and 1 or -1 to make smaller better.
func (e *Evaluate) best() (key string, sign float64) {
	sign = 1
	if e.BestMode == "max" {
		sign = -1
	}
	if e.Best == "loss" {
		return "eval_loss", sign
	}
	return e.Best, sign
}

func ratio(sum, weight float64) float64 {
	if weight == 0 {
		return 0
	}
	return sum / weight
}

// finish makes the result. The last collective gathers the largest memory figures.
func (l *loop) finish(ctx context.Context) (*Result, error) {
	l.env.Status("finishing")
	hash, err := l.engine.hash(ctx)
	if err != nil {
		return nil, err
	}
	st := &l.state
	r := &Result{Recipe: l.spec.Name, Steps: st.Step, Tokens: st.Tokens, Seconds: st.Seconds, TokensPerS: ratio(float64(st.Tokens), st.Seconds),
		FirstStepS: l.firstStep, DataIndexS: l.indexSecs, Ranks: l.env.World, Threads: l.env.Threads, Kernels: l.env.Device.KernelSet(),
		DataFingerprint: l.corpus.Fingerprint(), TrainLoss: st.TrainLoss, Eval: st.Eval, Digest: l.env.Digest,
		Parameters: l.engine.plan.Summary().Parameters, SentBytes: l.sentPerStep, Overlap: l.hidden.fraction(),
		WeightsSHA256: hash, Skipped: st.Skipped}
	if l.spec.LossScale.Active() {
		r.LossScale = st.Scale.Scale
	}
	if st.Step > 0 {
		e, _ := l.sampler.Position(int64(st.Step - 1))
		r.Epoch = int(e)
	}
	if v, ok := st.Eval["eval_loss"]; ok {
		loss := Figure(v)
		r.EvalLoss = &loss
	}
	if st.BestStep > 0 {
		b := st.Best
		r.BestEvalLoss = &b
	}
	if st.Stopped {
		r.Stopped = "hook"
	}
	planned, host, used := l.memory()
	var foreign int64
	if l.env.Group != nil {
		foreign = l.env.Group.Foreign()
	}
	figures := []float64{float64(planned), float64(used), float64(peakRSS(foreign)), float64(host)}
	if l.env.World > 1 {
		all, err := l.env.Group.AllGatherFloat64(ctx, "memory figures", figures)
		if err != nil {
			return nil, err
		}
		for _, f := range all {
			for i := range figures {
				figures[i] = max(figures[i], f[i])
			}
		}
	}
	r.PlannedPeak, r.Peak, r.PeakRSS, r.PlannedHost = int64(figures[0]), int64(figures[1]), int64(figures[2]), int64(figures[3])
	return r, nil
}

func (l *loop) close() {
	if l.loader != nil {
		l.loader.Close()
	}
	if l.saver != nil {
		l.saver.close()
	}
	if l.engine != nil {
		l.engine.close()
	}
	if l.log != nil {
		l.log.close()
	}
	if l.corpus != nil {
		l.corpus.Close()
	}
	if e := l.spec.Evaluate; e != nil {
		e.Source.Corpus().Close()
	}
}

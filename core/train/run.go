package train

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"starling/core/comm"
	"starling/core/data"
	"starling/core/device"
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
	if err != nil && !errors.Is(err, ErrInterrupted) { // collectives on their way would touch memory that is freed next
		if env.Quiesce != nil {
			env.Quiesce(err)
		}
		if env.Group != nil {
			_ = env.Group.Close()
		}
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
		return l.spec.place("data", err)
	}
	if err := c.Load(ctx, progress); err != nil {
		return l.spec.place("data", err)
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
		if all, err = l.env.Group.AllGatherBytes(ctx, l.spec.label("data fingerprint", "data"), []byte(mine)); err != nil {
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

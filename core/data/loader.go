package data

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
)

// Defaults of LoaderConfig, as a recipe's loader() documents them.
const (
	DefaultWorkers  = 4
	DefaultPrefetch = 2
)

// LoaderConfig says which micro-batches a loader prepares, and how far ahead.
type LoaderConfig struct {
	Dataset Dataset
	Sampler *Sampler

	// Schedule lists the micro-batch numbers that are delivered in each step, in
	// that order: those of the lanes this rank runs. It must not be empty.
	Schedule []int

	// Start is the first step. Steps is the number of steps to deliver from there;
	// 0 goes on for ever.
	Start, Steps int64

	// Workers fill batches at the same time; 0 means DefaultWorkers. Each keeps up to
	// Prefetch of them ready (0 means DefaultPrefetch), so Workers × Prefetch
	// micro-batches are ahead of the one being used. Neither changes what is
	// delivered.
	Workers, Prefetch int
}

func (c LoaderConfig) withDefaults() LoaderConfig {
	if c.Workers == 0 {
		c.Workers = DefaultWorkers
	}
	if c.Prefetch == 0 {
		c.Prefetch = DefaultPrefetch
	}
	return c
}

// Validate reports the first field that cannot work.
func (c LoaderConfig) Validate() error {
	switch {
	case c.Dataset == nil || c.Sampler == nil:
		return errors.New("data: a loader needs a dataset and a sampler")
	case c.Sampler.domain != c.Dataset.Len():
		return fmt.Errorf("data: the sampler ranges over %d samples, the dataset has %d", c.Sampler.domain, c.Dataset.Len())
	case len(c.Schedule) == 0:
		return errors.New("data: a loader's schedule is empty; give it at least one micro-batch number")
	case c.Start < 0 || c.Steps < 0:
		return fmt.Errorf("data: a loader cannot start at step %d for %d steps", c.Start, c.Steps)
	case c.Workers < 0:
		return fmt.Errorf("data: workers = %d must be at least 1", c.Workers)
	case c.Prefetch < 0:
		return fmt.Errorf("data: prefetch = %d must be at least 1", c.Prefetch)
	}
	for _, m := range c.Schedule {
		if m < 0 || m >= c.Sampler.MicroBatches() {
			return fmt.Errorf("data: a loader's schedule asks for micro-batch %d, a step has 0 to %d", m, c.Sampler.MicroBatches()-1)
		}
	}
	return nil
}

// LoaderBytes is exactly what the batches of a loader with these fields hold: one
// in use and workers × prefetch ahead (zeros mean the defaults). The dataset's own
// memory is not in it.
func LoaderBytes(fields []Field, microBatch, workers, prefetch int) int64 {
	c := LoaderConfig{Workers: workers, Prefetch: prefetch}.withDefaults()
	return int64(c.Workers*c.Prefetch+1) * BatchBytes(fields, microBatch)
}

// Loader prepares micro-batches in the background and delivers them in the order
// of its schedule. Next may be called by one goroutine at a time.
//
// Micro-batch number q of the run lives in slot q mod len(slots). A slot is owned
// by whoever took its token: a worker takes it from free, fills the batch and hands
// it on through ready; Next takes it from there, and Release returns it to free.
type Loader struct {
	cfg    LoaderConfig
	total  int64 // micro-batches to deliver, -1 without end
	slots  []slot
	turn   chan int64   // holds the next number to be claimed; receiving it is the claim
	next   int64        // the number that Next delivers
	failed error        // what Next returned, for good
	held   atomic.Int64 // batches delivered and not released

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

type slot struct {
	batch *Batch
	free  chan struct{}
	ready chan error
}

// NewLoader starts the workers. They end when ctx is cancelled, when Close is
// called, or after the last micro-batch.
func NewLoader(ctx context.Context, cfg LoaderConfig) (*Loader, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	l := &Loader{
		cfg:   cfg,
		total: -1,
		slots: make([]slot, cfg.Workers*cfg.Prefetch+1),
		turn:  make(chan int64, 1),
	}
	if cfg.Steps > 0 {
		l.total = cfg.Steps * int64(len(cfg.Schedule))
	}
	for i := range l.slots {
		b := NewBatch(cfg.Dataset.Fields(), cfg.Sampler.MicroBatch())
		free := make(chan struct{}, 1)
		free <- struct{}{}
		b.release = func() {
			select {
			case free <- struct{}{}:
				l.held.Add(-1)
			default:
				panic("data: a batch was released twice")
			}
		}
		l.slots[i] = slot{batch: b, free: free, ready: make(chan error, 1)}
	}
	l.ctx, l.cancel = context.WithCancel(ctx)
	l.turn <- 0
	for range cfg.Workers {
		l.wg.Go(l.work)
	}
	return l, nil
}

// at is the step and the micro-batch number of delivery q.
func (l *Loader) at(q int64) (step int64, index int) {
	n := int64(len(l.cfg.Schedule))
	return l.cfg.Start + q/n, l.cfg.Schedule[q%n]
}

func (l *Loader) work() {
	for {
		var q int64
		select {
		case q = <-l.turn:
		case <-l.ctx.Done():
			return
		}
		if q == l.total {
			l.turn <- q
			return
		}
		// The turn is passed on only after the slot is owned, so that two workers never
		// wait for the same slot and its batches cannot change places.
		s := &l.slots[q%int64(len(l.slots))]
		select {
		case <-s.free:
		case <-l.ctx.Done():
			return
		}
		l.turn <- q + 1
		step, index := l.at(q)
		s.ready <- s.batch.Fill(l.cfg.Dataset, l.cfg.Sampler, step, index)
	}
}

// Next waits for the next micro-batch. The caller owns it until it calls Release.
// There is room for one batch in use besides those ahead; holding more leaves fewer
// ahead, and asking for another with every one of them held is an error.
//
// After the last micro-batch it returns io.EOF, after Close or cancellation an
// error that says so, and after a sample that cannot be read that sample's error, at
// the place where the sample would have come and at every call after it.
func (l *Loader) Next(ctx context.Context) (*Batch, error) {
	if l.failed != nil {
		return nil, l.failed
	}
	if l.next == l.total {
		return nil, io.EOF
	}
	if l.held.Load() == int64(len(l.slots)) {
		return nil, fmt.Errorf("data: all %d batches of the loader are in use; release one before asking for the next, or raise prefetch", len(l.slots))
	}
	s := &l.slots[l.next%int64(len(l.slots))]
	select {
	case err := <-s.ready:
		if err != nil {
			l.failed = err
			return nil, err
		}
		l.next++
		l.held.Add(1)
		return s.batch, nil
	case <-ctx.Done():
		return nil, l.stopped(ctx)
	case <-l.ctx.Done():
		return nil, l.stopped(l.ctx)
	}
}

func (l *Loader) stopped(ctx context.Context) error {
	step, index := l.at(l.next)
	return fmt.Errorf("data: waiting for micro-batch %d of step %d: %w", index, step, context.Cause(ctx))
}

// Close stops the workers and waits for them. Batches still held stay readable and
// may be released. It may be called more than once.
func (l *Loader) Close() {
	l.cancel()
	l.wg.Wait()
}

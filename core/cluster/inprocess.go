package cluster

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"starling/core/comm"
)

// InProcess runs f as every rank of a job, each on its own goroutine with its own Worker, connected through memory. It
// returns the ranks' results (nil for a rank that did not call Done), or the *RankError of the first that failed: an error
// or panic of one rank ends the collectives and the contexts of all the others. Requests to stop work as in Launch. A rank
// that does not return within Config.Grace of a failure cannot be killed; it is named in the error and left behind.
func InProcess(ctx context.Context, cfg Config, f func(ctx context.Context, w *Worker) error) ([][]byte, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	cfg.Silence = time.Duration(1<<63 - 1) // the ranks are this process
	p := &inProcess{workers: make([]*Worker, cfg.Ranks), errs: make([]error, cfg.Ranks), events: make(chan event), over: make(chan struct{}), left: map[int]bool{}}
	j := newJob(cfg, time.Now())
	transports := comm.NewInProcess(cfg.Ranks)
	if len(cfg.Hosts) > 0 {
		transports = comm.NewInProcessOn(cfg.Hosts)
	}
	base := context.WithoutCancel(ctx) // the job's failure, not the caller's context, ends the ranks, so that all learn one cause
	for r := range p.workers {
		w := newWorker(base, r, cfg.Ranks, func(m message) error { p.post(event{rank: r, kind: said, msg: m}); return nil })
		w.transport = transports[r]
		p.workers[r] = w
	}
	for r, w := range p.workers {
		go p.run(r, w, f)
	}
	supervise(ctx, j, p.events, p)
	close(p.over)
	results, err := j.outcome(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	var first *RankError
	if errors.As(err, &first) {
		first.Err = p.errs[first.Rank]
	}
	for r := range p.workers {
		if p.left[r] {
			err = errors.Join(err, fmt.Errorf("cluster: rank %d did not return within %v and still runs", r, cfg.Grace))
		}
	}
	return results, err
}

// inProcess carries out a job's orders on goroutines.
type inProcess struct {
	workers []*Worker
	events  chan event
	over    chan struct{} // nobody takes events any more

	mu   sync.Mutex
	errs []error
	left map[int]bool // ranks given up
}

func (p *inProcess) post(e event) {
	select {
	case p.events <- e:
	case <-p.over:
	}
}

// run is one rank's life.
func (p *inProcess) run(rank int, w *Worker, f func(context.Context, *Worker) error) {
	p.post(event{rank: rank, kind: said, msg: message{Kind: kindListening, Text: "in process"}})
	p.post(event{rank: rank, kind: said, msg: message{Kind: kindConnected}})
	err := errors.New("its goroutine ended before its function returned (runtime.Goexit)")
	defer func() {
		p.mu.Lock()
		p.errs[rank] = err
		p.mu.Unlock()
		if err != nil {
			_ = w.Fail(err)
		} else if !w.isOver() {
			_ = w.Done(nil) // an in-process link and transport do not fail
		}
		p.post(event{rank: rank, kind: exited})
	}()
	err = protect(func() error { return f(w.ctx, w) })
}

func (w *Worker) isOver() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ended
}

// protect turns a panic into an error with its stack.
func protect(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v\n%s", v, debug.Stack())
		}
	}()
	return f()
}

// send hands the message over on a goroutine of its own: ending collectives may wait for the ranks, which may be posting.
func (p *inProcess) send(rank int, m message) { go p.workers[rank].take(m) }

// kill gives a rank up.
func (p *inProcess) kill(rank int) {
	p.mu.Lock()
	p.left[rank] = true
	p.mu.Unlock()
	go p.post(event{rank: rank, kind: exited, cause: "was given up"})
}

package cpu

import (
	"sync"
	"sync/atomic"
	"time"

	"starling/sdk/vec"
)

// spinFor bounds how long an idle thread burns its core before it parks. The gap between two kernels of a program is a few µs, that
// between two steps up to a millisecond. A parked thread takes about 100 µs to wake, but what costs more is where: the system may wake it on the core
// that the other thread computes on, and lets the second core idle for milliseconds before it moves one of them.
const spinFor = 2 * time.Millisecond

// pool is a set of persistent workers that run jobs together with the goroutine that submits them. One
// job runs at a time. The submitter takes part, so that a job finishes even if no worker ever gets a core, and it
// waits for tasks that were taken, never for workers that took none.
type pool struct {
	threads int
	spin    time.Duration
	current atomic.Pointer[job]
	epoch   atomic.Uint64 // counts submissions; what idle workers watch
	closing atomic.Bool
	workers []worker
	ended   sync.WaitGroup
	_       [64]byte
	waiting atomic.Bool   // the submitter has parked, or is about to
	done    chan struct{} // wakes it

	measured bool          // note how long threads work and wait; does not change while jobs run
	waited   time.Duration // by the submitter, for tasks that others had taken
}

// worker is one thread's parking place.
type worker struct {
	parked atomic.Bool
	wake   chan struct{}
	_      [64]byte
	worked atomic.Int64 // nanoseconds in tasks, where the pool is measured
	_      [64]byte
}

// job is work cut into n tasks, made once and run any number of times. A worker that comes late to a job that was
// submitted again simply takes a task of the new run: everything but the counters is constant.
type job struct {
	fn   func(thread, task int)
	n    int64
	_    [64]byte
	next atomic.Int64 // the next task to take; past n once all are taken
	_    [64]byte
	left atomic.Int64 // tasks not yet finished
	_    [64]byte
}

// newPool starts threads-1 workers. With spin false, idle threads park at once: right wherever more threads
// than cores want to run.
func newPool(threads int, spin bool) *pool {
	p := &pool{threads: threads, workers: make([]worker, threads-1), done: make(chan struct{}, 1)}
	if spin {
		p.spin = spinFor
	}
	for i := range p.workers {
		p.workers[i].wake = make(chan struct{}, 1)
		p.ended.Add(1)
		go p.work(i)
	}
	return p
}

// run executes every task of j and returns when all have finished.
func (p *pool) run(j *job) {
	if p.threads == 1 || j.n == 1 {
		for i := range int(j.n) {
			j.fn(0, i)
		}
		return
	}
	j.left.Store(j.n)
	j.next.Store(0) // opens the job: from here on a late worker may take a task
	p.current.Store(j)
	p.epoch.Add(1)
	wanted := min(int(j.n), p.threads) - 1
	for i := range p.workers {
		if wanted == 0 {
			break
		}
		wanted--
		if w := &p.workers[i]; w.parked.Load() && w.parked.CompareAndSwap(true, false) {
			w.wake <- struct{}{}
		}
	}
	p.take(j, 0)
	if p.measured {
		start := time.Now()
		p.await(j)
		p.waited += time.Since(start)
		return
	}
	p.await(j)
}

// take runs tasks of j until none is left to take.
func (p *pool) take(j *job, thread int) {
	for {
		i := j.next.Add(1) - 1
		if i >= j.n {
			return
		}
		if p.measured && thread > 0 {
			start := time.Now()
			j.fn(thread, int(i))
			p.workers[thread-1].worked.Add(int64(time.Since(start)))
		} else {
			j.fn(thread, int(i))
		}
		if j.left.Add(-1) == 0 && p.waiting.Load() && p.waiting.CompareAndSwap(true, false) {
			p.done <- struct{}{}
		}
	}
}

// await returns when no task of j is unfinished.
func (p *pool) await(j *job) {
	if j.left.Load() == 0 || p.spinUntil(func() bool { return j.left.Load() == 0 }) {
		return
	}
	for {
		p.waiting.Store(true)
		if j.left.Load() == 0 {
			if !p.waiting.CompareAndSwap(true, false) {
				<-p.done // a signal is on its way: leave none behind
			}
			return
		}
		<-p.done
		if j.left.Load() == 0 {
			return
		}
		// The signal came from a worker that finished the job before this one and was held up just then.
	}
}

// work is the life of worker i.
func (p *pool) work(i int) {
	defer p.ended.Done()
	w := &p.workers[i]
	var seen uint64
	for {
		if !p.spinUntil(func() bool { return p.epoch.Load() != seen }) {
			w.parked.Store(true)
			if p.epoch.Load() == seen || !w.parked.CompareAndSwap(true, false) {
				<-w.wake
			}
		}
		seen = p.epoch.Load()
		if p.closing.Load() {
			return
		}
		if j := p.current.Load(); j != nil {
			p.take(j, i+1)
		}
	}
}

// spinUntil waits for ready within the pool's patience and reports whether it came true. It does not yield to other goroutines: with a
// processor of the Go scheduler to spare (cmd/runtime sees to that) each yield would wake another of its threads, which then competes for this core.
func (p *pool) spinUntil(ready func() bool) bool {
	if p.spin == 0 {
		return ready()
	}
	var start time.Time
	for k := 0; ; k++ {
		if ready() {
			return true
		}
		vec.Pause()
		if k%64 != 63 {
			continue
		}
		switch {
		case start.IsZero():
			start = time.Now()
		case time.Since(start) > p.spin:
			return false
		}
	}
}

// spent is how long the workers have computed and the submitter has waited for them so far.
func (p *pool) spent() (worked, waited time.Duration) {
	for i := range p.workers {
		worked += time.Duration(p.workers[i].worked.Load())
	}
	return worked, p.waited
}

// close ends the workers. No job may be running.
func (p *pool) close() {
	p.closing.Store(true)
	p.epoch.Add(1)
	for i := range p.workers {
		if w := &p.workers[i]; w.parked.CompareAndSwap(true, false) {
			w.wake <- struct{}{}
		}
	}
	p.ended.Wait()
}

package comm

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// Collective is an operation of a group prepared once, with its buffers, and started any number of times. Between
// starts it allocates nothing. All members start the same ones in the same order, as with the plain forms.
type Collective struct {
	g     *Group
	body  func(*run) error // over messages
	local sharedBody       // over shared memory
	brief bool             // the whole of it is one exchange of small parts
	way   string           // how it is carried out, for people
	// What is done with the caller's memory before this member's part is taken from it and after the end, or nil.
	before, after func()
	h             Handle
	run           run

	// guarded by the group's lock
	next      *Collective
	published bool // this member's part lies in shared memory already
	resumed   bool // it has been begun, and left because a caller's context ended
	base      uint64
}

func (c *Collective) by(way string) *Collective {
	c.way = way
	return c
}

// Way says how a sum is carried out: ring, doubling, hierarchical, direct, or one round.
func (c *Collective) Way() string {
	switch {
	case c.way != "":
		return c.way
	case c.g.shared != nil && c.brief:
		return "one round"
	}
	return Direct.String()
}

// Start starts the collective. The handle is the same each time; the collective may be started again once it is over.
func (c *Collective) Start() *Handle {
	if !c.h.issue() {
		return badCall(c.h.call.Op, c.h.call.Label, "it was started again before it was over")
	}
	c.g.start(c)
	return &c.h
}

// Run is Start and Wait; it aborts the group if ctx ends first.
func (c *Collective) Run(ctx context.Context) error { return c.g.wait(ctx, c.Start()) }

// Handle is a started collective.
type Handle struct {
	c    *Collective // nil for point-to-point calls
	call Call

	waiters atomic.Int32  // goroutines in Wait
	over    atomic.Bool   // it has ended; err is final
	token   chan struct{} // holds one token once it is over

	mu                        sync.Mutex
	running                   bool // issued and not over
	issued, started, finished time.Time
	err                       error
	closed                    chan struct{} // made by Done
}

func (h *Handle) prepare(c *Collective, call Call) {
	h.c, h.call, h.token = c, call, make(chan struct{}, 1)
}

// issue begins a use of the handle, unless the last one is not over.
func (h *Handle) issue() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.running {
		return false
	}
	h.running = true
	h.issued, h.started, h.finished = time.Now(), time.Time{}, time.Time{}
	h.err, h.closed = nil, nil
	select {
	case <-h.token:
	default:
	}
	h.over.Store(false)
	return true
}

func (h *Handle) begin() {
	h.mu.Lock()
	if h.started.IsZero() {
		h.started = time.Now()
	}
	h.mu.Unlock()
}

func (h *Handle) finish(err error) {
	h.mu.Lock()
	h.finished = time.Now()
	h.err = err
	h.running = false
	closed := h.closed
	h.over.Store(true)
	h.mu.Unlock()
	if closed != nil {
		close(closed)
	}
	h.pass()
}

// pass leaves the token for the next waiter.
func (h *Handle) pass() {
	select {
	case h.token <- struct{}{}:
	default:
	}
}

// Wait returns the result of the collective, or ctx's cause if that ends first; the collective then still runs and owns
// its buffers until Done. A ctx without a deadline may have Wait carry the collective out itself, in the middle of which a
// cancellation fails the group.
func (h *Handle) Wait(ctx context.Context) error {
	if h.over.Load() {
		return h.Err()
	}
	h.waiters.Add(1)
	defer h.waiters.Add(-1)
	if h.c != nil {
		h.c.g.assist(ctx, h.c)
	}
	for !h.over.Load() {
		select {
		case <-h.token: // of an earlier use, if it is not over
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	h.pass()
	return h.Err()
}

// Over reports whether the collective is over. Whoever asks again and again sees it end: what was left to whoever waits, the
// group then carries out.
func (h *Handle) Over() bool {
	over := h.over.Load()
	if !over && h.c != nil {
		h.c.g.poke()
	}
	return over
}

// Err returns the result of a collective that is over, nil before.
func (h *Handle) Err() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.err
}

// Done returns a channel that is closed when the collective is over.
func (h *Handle) Done() <-chan struct{} {
	h.mu.Lock()
	if h.closed == nil {
		h.closed = make(chan struct{})
		if h.over.Load() {
			close(h.closed)
		}
	}
	closed, busy := h.closed, h.running && h.c != nil
	h.mu.Unlock()
	if busy {
		h.c.g.poke() // it may have been left to whoever waits
	}
	return closed
}

// Label returns the caller's label and Op the operation, for traces.
func (h *Handle) Label() string { return h.call.Label }

// Op returns the operation.
func (h *Handle) Op() Op { return h.call.Op }

// Bytes returns the size of the vector, or -1 where ranks may differ.
func (h *Handle) Bytes() int64 { return h.call.Bytes }

// Issued returns when the collective was started by the caller.
func (h *Handle) Issued() time.Time { return h.time(&h.issued) }

// Started returns when the group began to execute it, zero before.
func (h *Handle) Started() time.Time { return h.time(&h.started) }

// Finished returns when it was over, zero before.
func (h *Handle) Finished() time.Time { return h.time(&h.finished) }

func (h *Handle) time(t *time.Time) time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return *t
}

package comm

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"sync"
	"time"
)

// Group is an ordered set of ranks that run collectives together. Members are addressed by their position in the group;
// errors speak of ranks of the transport.
//
// All members must start the same collectives in the same order. A group's collectives are executed one after another, in
// the order they were started, by the group's own goroutine; point-to-point calls are not ordered against them. Methods may
// be called from several goroutines, though the order of collectives then is the caller's to settle.
type Group struct {
	t       Transport
	id      uint64
	name    string
	ranks   []int // position → rank of the transport
	members map[int]int
	self    int // own position
	opt     Options

	mu      sync.Mutex
	queue   []*job        // collectives started and not yet begun
	wake    chan struct{} // something was queued, or the group is closing
	closing bool
	err     error         // first failure
	dead    chan struct{} // closed when err is set and OnStall has returned
	failing bool
	seqs    [streamCount][]uint64          // next number per member (StreamCollective: only [self] is used)
	entries [streamCount][]map[uint64]Call // announced by a member, not yet compared
	left    []error                        // per member: it has closed its transport
	running map[*run]struct{}
	formed  bool // the first collective is over: preparation has ended

	staging     []float32
	stagingPeak int // bytes, the largest need so far

	workers sync.WaitGroup
}

type job struct {
	call Call
	h    *Handle
	body func(*run) error
}

// NewGroup makes this rank's end of a group. Every member calls it with the same name and ranks; names must be unique
// among the groups of a transport. It does not wait for the others.
func NewGroup(t Transport, name string, ranks []int, opt Options) (*Group, error) {
	if err := opt.Validate(); err != nil {
		return nil, err
	}
	g := &Group{
		t: t, name: name, ranks: slices.Clone(ranks), opt: opt.withDefaults(), self: -1,
		members: make(map[int]int, len(ranks)), wake: make(chan struct{}, 1), dead: make(chan struct{}),
		left: make([]error, len(ranks)), running: map[*run]struct{}{},
	}
	for i, r := range ranks {
		if r < 0 || r >= t.World() {
			return nil, fmt.Errorf("comm: group %s: rank %d does not exist in a world of %d", name, r, t.World())
		}
		if _, dup := g.members[r]; dup {
			return nil, fmt.Errorf("comm: group %s: rank %d is named twice", name, r)
		}
		g.members[r] = i
		if r == t.Rank() {
			g.self = i
		}
	}
	if g.self < 0 {
		return nil, fmt.Errorf("comm: group %s of ranks %v: rank %d is no member", name, ranks, t.Rank())
	}
	h := fnv.New64a()
	fmt.Fprintf(h, "%s\x00%v", name, ranks)
	g.id = h.Sum64()
	for s := range g.seqs {
		g.seqs[s] = make([]uint64, len(ranks))
		g.entries[s] = make([]map[uint64]Call, len(ranks))
		for m := range g.entries[s] {
			g.entries[s][m] = map[uint64]Call{}
		}
	}
	if err := t.Attach(g.id, sink{g}); err != nil {
		return nil, fmt.Errorf("comm: group %s: %w", name, err)
	}
	g.workers.Add(1)
	go g.work()
	return g, nil
}

// Name returns the group's name.
func (g *Group) Name() string { return g.name }

// Rank returns this rank's position in the group.
func (g *Group) Rank() int { return g.self }

// Size returns the number of members.
func (g *Group) Size() int { return len(g.ranks) }

// Ranks returns the members' ranks in the transport, by position.
func (g *Group) Ranks() []int { return slices.Clone(g.ranks) }

// Failed is closed when the group has failed; Err then says why.
func (g *Group) Failed() <-chan struct{} { return g.dead }

// Err returns the group's failure, or nil.
func (g *Group) Err() error {
	select {
	case <-g.dead:
		return g.err
	default:
		return nil
	}
}

// Abort fails the group here and on every member: started collectives and all later ones return reason (other members see
// an *AbortError naming this rank, unless reason is one of this package's errors). The first failure wins.
func (g *Group) Abort(reason error) { g.fail(reason, true) }

// Close ends the group on this rank. Collectives that have not finished fail with ErrClosed; other members are not told.
func (g *Group) Close() error {
	g.fail(ErrClosed, false)
	<-g.dead
	g.mu.Lock()
	g.closing = true
	g.mu.Unlock()
	g.poke()
	g.workers.Wait()
	g.t.Detach(g.id)
	return nil
}

// fail records the first failure, wakes everything that waits and, if tell is set, sends the reason to the members.
func (g *Group) fail(err error, tell bool) {
	g.mu.Lock()
	if g.failing {
		g.mu.Unlock()
		return
	}
	g.failing = true
	g.err = err
	g.mu.Unlock()
	if tell {
		for m, r := range g.ranks {
			if m != g.self {
				g.t.Abort(r, g.id, err)
			}
		}
	}
	if g.opt.OnStall != nil && !errors.Is(err, ErrClosed) {
		go func() {
			g.opt.OnStall(err)
			close(g.dead)
		}()
		return
	}
	close(g.dead)
}

func (g *Group) poke() {
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

// agreed completes a call with what else members must agree on, in the form in which it travels.
func (g *Group) agreed(call Call) Call {
	call.Detail = detail(call.Detail, g.opt.PieceBytes)
	if len(call.Label) > maxLabel {
		call.Label = call.Label[:maxLabel]
	}
	call.Label = strings.ToValidUTF8(call.Label, "?")
	return call
}

// start queues a collective.
func (g *Group) start(call Call, body func(*run) error) *Handle {
	call = g.agreed(call)
	h := newHandle(call)
	j := &job{call: call, h: h, body: body}
	g.mu.Lock()
	if g.closing {
		g.mu.Unlock()
		h.finish(ErrClosed)
		return h
	}
	g.queue = append(g.queue, j)
	g.mu.Unlock()
	g.poke()
	return h
}

// startPair starts a point-to-point call with member m on a goroutine of its own, so that sends and receives issued in
// any order cannot block each other.
func (g *Group) startPair(stream Stream, label string, m int, buf []byte) *Handle {
	if m < 0 || m >= len(g.ranks) || m == g.self {
		return badCall(OpSend, label, "position %d is no other member of a group of %d", m, len(g.ranks))
	}
	call := g.agreed(Call{Op: OpSend, Label: label, Bytes: int64(len(buf))})
	h := newHandle(call)
	g.mu.Lock()
	if g.closing {
		g.mu.Unlock()
		h.finish(ErrClosed)
		return h
	}
	r := g.newRun(stream, call, []int{m})
	g.workers.Add(1)
	g.mu.Unlock()
	go func() {
		defer g.workers.Done()
		h.begin()
		h.finish(g.execute(r, func(r *run) error { return r.pair(m, buf) }))
	}()
	return h
}

// work executes collectives in the order they were started.
func (g *Group) work() {
	defer g.workers.Done()
	for {
		g.mu.Lock()
		var j *job
		if len(g.queue) > 0 {
			j = g.queue[0]
			g.queue[0] = nil
			g.queue = g.queue[1:]
		}
		stop := j == nil && g.closing
		g.mu.Unlock()
		switch {
		case stop:
			return
		case j == nil:
			<-g.wake
		default:
			j.h.begin()
			j.h.finish(g.collective(j))
		}
	}
}

// collective runs one job to its end. A failure is the group's failure, so that every member returns.
func (g *Group) collective(j *job) error {
	if err := g.Err(); err != nil {
		return err
	}
	g.mu.Lock()
	r := g.newRun(StreamCollective, j.call, g.others())
	g.mu.Unlock()
	return g.execute(r, j.body)
}

// execute carries out a run.
func (g *Group) execute(r *run, body func(*run) error) error {
	defer g.endRun(r)
	err := r.enter()
	if err == nil {
		err = body(r)
	}
	if err != nil {
		g.fail(err, true)
		<-g.dead
		return g.err
	}
	g.mu.Lock()
	g.formed = true
	g.mu.Unlock()
	return nil
}

// others returns the positions of the other members, starting behind this one so that no member is everyone's first.
func (g *Group) others() []int {
	out := make([]int, 0, len(g.ranks)-1)
	for i := 1; i < len(g.ranks); i++ {
		out = append(out, (g.self+i)%len(g.ranks))
	}
	return out
}

// wait starts nothing: it waits for h, and aborts the group if ctx ends first, so that the caller's buffers are free when
// it returns.
func (g *Group) wait(ctx context.Context, h *Handle) error {
	err := h.Wait(ctx)
	if err != nil && ctx.Err() != nil {
		g.Abort(fmt.Errorf("%s: %w", h.call, context.Cause(ctx)))
		<-h.Done()
		if h.err != nil {
			return h.err
		}
	}
	return err
}

// Handle is a started collective.
type Handle struct {
	call                      Call
	issued, started, finished time.Time
	done                      chan struct{}
	err                       error
	mu                        sync.Mutex
}

func newHandle(call Call) *Handle {
	return &Handle{call: call, issued: time.Now(), done: make(chan struct{})}
}

func (h *Handle) begin() {
	h.mu.Lock()
	h.started = time.Now()
	h.mu.Unlock()
}

func (h *Handle) finish(err error) {
	h.mu.Lock()
	h.finished = time.Now()
	h.err = err
	h.mu.Unlock()
	close(h.done)
}

// Wait returns the result of the collective, or ctx's cause if that ends first; the collective then still runs and owns
// its buffers until Done.
func (h *Handle) Wait(ctx context.Context) error {
	select {
	case <-h.done:
		return h.err
	default:
	}
	select {
	case <-h.done:
		return h.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Done is closed when the collective is over.
func (h *Handle) Done() <-chan struct{} { return h.done }

// Label returns the caller's label and Op the operation, for traces.
func (h *Handle) Label() string { return h.call.Label }

// Op returns the operation.
func (h *Handle) Op() Op { return h.call.Op }

// Bytes returns the size of the vector, or -1 where ranks may differ.
func (h *Handle) Bytes() int64 { return h.call.Bytes }

// Issued returns when the collective was started by the caller.
func (h *Handle) Issued() time.Time { return h.issued }

// Started returns when the group began to execute it, zero before.
func (h *Handle) Started() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.started
}

// Finished returns when it was over, zero before.
func (h *Handle) Finished() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.finished
}

package comm

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"runtime"
	"slices"
	"strings"
	"sync"
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
	peers   []int // the other members' positions
	members map[int]int
	self    int // own position
	opt     Options

	mu      sync.Mutex
	first   *Collective   // collectives started and not yet over, in order
	last    *Collective   // the end of that list
	active  bool          // the first one is being carried out
	wake    chan struct{} // there is something to carry out, or the group is closing
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

	attends *attention // of the transport, or nil
	whole   *Group     // of which this group is a part, or nil
	doubts  doubts     // of the whole group

	hosts   *hierarchy // of its members, or nil
	flat    string     // why it has none
	shared  *shared    // memory that all members have mapped, or nil
	scratch []float32  // of whoever carries out a collective there

	workers sync.WaitGroup
	ending  sync.Once
	ended   error // what Close returns
}

// NewGroup makes this rank's end of a group. Every member calls it with the same name and ranks; names must be unique
// among the groups of a transport. It does not wait for the others.
func NewGroup(t Transport, name string, ranks []int, opt Options) (*Group, error) {
	return newGroup(t, name, ranks, opt, nil)
}

// newGroup makes a group that is a part of whole, if that is not nil.
func newGroup(t Transport, name string, ranks []int, opt Options, whole *Group) (*Group, error) {
	if err := opt.Validate(); err != nil {
		return nil, err
	}
	g := &Group{
		t: t, name: name, ranks: slices.Clone(ranks), opt: opt.withDefaults(), self: -1, whole: whole,
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
	g.peers = g.others()
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
	if a, ok := t.(attentive); ok {
		g.attends = a.attention()
	}
	if h, ok := t.(host); ok {
		var err error
		if g.shared, err = h.share(g); err != nil {
			return nil, fmt.Errorf("comm: group %s: %w", name, err)
		}
	}
	var err error
	if g.hosts, g.flat, err = hierarchyOf(t, g, opt); err != nil {
		g.shared.leave()
		return nil, err
	}
	// Last, since a failure may arrive as soon as the group is attached.
	if err := t.Attach(g.id, sink{g}); err != nil {
		g.shared.leave()
		return nil, errors.Join(fmt.Errorf("comm: group %s: %w", name, err), g.hosts.close())
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

// Close ends the group on this rank, and returns when nothing touches the memory of its collectives any more. Collectives that
// have not finished fail with ErrClosed; other members are not told. Further calls return what the first did.
func (g *Group) Close() error {
	g.ending.Do(func() {
		g.fail(ErrClosed, false)
		<-g.dead
		g.mu.Lock()
		g.closing = true
		g.mu.Unlock()
		g.poke()
		g.workers.Wait()
		g.t.Detach(g.id)
		g.shared.leave()
		g.ended = g.hosts.close()
	})
	return g.ended
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
	g.workers.Add(1) // Close gives the shared memory up, which is still touched here
	defer g.workers.Done()
	g.mu.Unlock()
	defer g.shared.rouse()
	defer g.hosts.fail(err)
	var stall *StallError
	if g.whole != nil && errors.As(err, &stall) {
		defer g.root().fail(err, tell) // it is the report of all of its members
	}
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
	call.Detail = detail(call.Detail, g.opt.PieceBytes, g.opt.Flat)
	if len(call.Label) > maxLabel {
		call.Label = call.Label[:maxLabel]
	}
	call.Label = strings.ToValidUTF8(call.Label, "?")
	return call
}

// startPair starts a point-to-point call with member m on a goroutine of its own, so that sends and receives issued in
// any order cannot block each other.
func (g *Group) startPair(stream Stream, label string, m int, buf []byte, e Element) *Handle {
	if m < 0 || m >= len(g.ranks) || m == g.self {
		return badCall(OpSend, label, "position %d is no other member of a group of %d", m, len(g.ranks))
	}
	if err := checkElements(buf, e); err != nil {
		return badCall(OpSend, label, "%v", err)
	}
	h := &Handle{}
	h.prepare(nil, g.agreed(Call{Op: OpSend, Element: e, Label: label, Bytes: int64(len(buf))}))
	h.issue()
	g.mu.Lock()
	if g.closing {
		g.mu.Unlock()
		h.finish(ErrClosed)
		return h
	}
	r := &run{}
	r.prepare(g, stream, h.call, []int{m})
	r.h = h
	g.begin(r)
	g.workers.Add(1)
	g.mu.Unlock()
	go func() {
		defer g.workers.Done()
		h.begin()
		r.record = g.opt.Recorder.begin(g, h)
		err := g.execute(r, func(r *run) error { return r.pair(m, buf) })
		r.resolved()
		g.opt.Recorder.end(r.record, err)
		h.finish(err)
	}()
	return h
}

// start queues a collective. One that can put its part into shared memory at once does, and is then left to whoever waits
// for it; everything else is the worker's.
func (g *Group) start(c *Collective) {
	g.mu.Lock()
	if g.closing {
		g.mu.Unlock()
		c.h.finish(ErrClosed)
		return
	}
	ahead := !g.active && (g.first == nil || g.last.published)
	c.next, c.published = nil, false
	if g.first == nil {
		g.first = c
	} else {
		g.last.next = c
	}
	g.last = c
	c.published = ahead && !g.failing && g.shared != nil && c.brief && g.publishAhead(c)
	idle := c.published
	g.mu.Unlock()
	if !idle {
		g.poke()
	}
}

// lingering is how many times an idle worker lets others run before it falls asleep.
const lingering = 50

// work carries out collectives in the order they were started.
func (g *Group) work() {
	defer g.workers.Done()
	for {
		g.mu.Lock()
		c := g.first
		stop := c == nil && !g.active && g.closing
		if c != nil && !g.active {
			g.active = true
			g.mu.Unlock()
			var nobody context.Context // no caller waits in it
			err, _ := g.carryOut(nobody, c)
			g.end(c, err)
			continue
		}
		g.mu.Unlock()
		if stop {
			return
		}
		for i := 0; i < lingering && g.shared != nil && len(g.wake) == 0; i++ {
			runtime.Gosched() // whoever waited for the last one may start the next: that is sooner noticed awake
		}
		<-g.wake
	}
}

// assist carries out collectives up to c in the caller's goroutine, which spares handing them to the worker and back:
// those that have put their part into shared memory already, and where all of the group is in shared memory and the caller
// has no deadline of its own, whatever the worker has not begun. What it leaves, the worker does.
func (g *Group) assist(ctx context.Context, c *Collective) {
	_, limited := ctx.Deadline()
	for {
		g.mu.Lock()
		k := g.first
		if c.h.over.Load() || k == nil || g.active || !k.published && (limited || g.shared == nil) {
			g.mu.Unlock()
			return
		}
		g.active = true
		g.mu.Unlock()
		err, over := g.carryOut(ctx, k)
		if !over {
			g.mu.Lock()
			g.active = false
			g.mu.Unlock()
			g.poke()
			return
		}
		g.end(k, err)
	}
}

// carryOut runs the first collective to its end. A failure is the group's failure, so that every member returns. If ctx,
// which may be nil, ends, it returns early with false where the collective can be taken up again, and fails otherwise.
func (g *Group) carryOut(ctx context.Context, c *Collective) (err error, over bool) {
	if err := g.Err(); err != nil {
		return err, true
	}
	c.h.begin()
	r := &c.run
	if !c.resumed {
		r.record = g.opt.Recorder.begin(g, &c.h)
	}
	c.resumed = true
	if c.before != nil && !c.published {
		c.before()
	}
	defer func() {
		if over && err == nil && c.after != nil {
			c.after()
		}
		if over {
			r.resolved()
			c.resumed = false
			g.opt.Recorder.end(r.record, err)
		}
	}()
	if g.shared != nil {
		if err, over = g.carryOutShared(ctx, c); !over {
			return nil, false
		}
		if err != nil {
			g.fail(err, true)
			<-g.dead
			return g.err, true
		}
		return nil, true
	}
	g.mu.Lock()
	r.prepare(g, StreamCollective, c.h.call, g.peers)
	g.begin(r)
	r.h = &c.h
	g.mu.Unlock()
	return g.execute(r, c.body), true
}

// end takes the first collective off the list.
func (g *Group) end(c *Collective, err error) {
	g.mu.Lock()
	g.first, c.next = c.next, nil
	if g.first == nil {
		g.last = nil
	}
	g.active = false
	more := g.first != nil && !g.first.published || g.closing
	g.mu.Unlock()
	c.h.finish(err)
	if more {
		g.poke()
	}
}

// execute carries out a run over messages.
func (g *Group) execute(r *run, body func(*run) error) error {
	defer g.endRun(r)
	g.opt.Recorder.numbered(r.record, r.seq)
	err := r.enter()
	if err == nil {
		if err = body(r); err != nil {
			err = r.explained(err)
		}
	}
	r.flush() // of a body that had nothing to wait for
	if err != nil {
		g.fail(err, true)
		<-g.dead
		return g.err
	}
	g.form()
	return nil
}

// form notes that preparation has ended.
func (g *Group) form() {
	g.mu.Lock()
	g.formed = true
	g.mu.Unlock()
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
		if err := h.Err(); err != nil {
			return err
		}
	}
	return err
}

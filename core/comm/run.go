package comm

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// run is one collective (or point-to-point call) being executed: it hands messages to the transport, waits for their
// completions and keeps the deadline. Its methods belong to one goroutine; Complete may be called from any.
type run struct {
	g      *Group
	stream Stream
	seq    uint64
	call   Call
	others []int           // the members it involves, this one left out
	record uint64          // its number in the flight recorder
	h      *Handle         // of the collective or call
	ctx    context.Context // in shared memory: of the caller that carries it out, else nil
	// patient waits for members as the group's first collective does.
	patient bool

	began    time.Time
	progress atomic.Int64 // when something last moved, as time since began
	pending  []int        // per member: messages handed over and not complete
	open     int          // their total
	unsent   []bool       // per member: something may wait to be set off
	entered  []bool       // per member: it has announced this call; guarded by g.mu
	other    map[int]Call // members that entered something else, and what; guarded by g.mu
	conflict atomic.Bool  // there are such members

	mu     sync.Mutex
	events []event
	head   int           // of events: those before it have been taken
	wake   chan struct{} // an event, a member's entry, a loss
	timer  *time.Timer

	doubts  uint64    // under which number it has told others that it waits, or 0
	doubted time.Time // since when
}

type event struct {
	id  uint64
	err error
}

// prepare makes r ready for a call that involves others. What it has allocated before it keeps.
func (r *run) prepare(g *Group, stream Stream, call Call, others []int) {
	if r.pending == nil {
		r.pending, r.unsent, r.entered, r.wake = make([]int, len(g.ranks)), make([]bool, len(g.ranks)), make([]bool, len(g.ranks)), make(chan struct{}, 1)
		r.timer = time.NewTimer(time.Hour)
		r.timer.Stop()
	}
	r.g, r.stream, r.call, r.others, r.began = g, stream, call, others, time.Now()
	r.progress.Store(0)
	clear(r.pending)
	clear(r.unsent)
	clear(r.entered)
	r.open, r.events, r.head, r.other = 0, r.events[:0], 0, nil
	r.conflict.Store(false)
}

// begin gives r the next number of its stream: of the group's collectives, or of the messages to or from the one member
// in r.others. The caller holds g.mu.
func (g *Group) begin(r *run) {
	counter := &g.seqs[r.stream][g.self]
	if r.stream != StreamCollective {
		counter = &g.seqs[r.stream][r.others[0]]
	}
	r.seq = *counter
	*counter++
	g.running[r] = struct{}{}
}

func (r *run) moved() { r.progress.Store(int64(time.Since(r.began))) }

func (g *Group) endRun(r *run) {
	g.mu.Lock()
	delete(g.running, r)
	g.mu.Unlock()
}

// enter announces the call to the members it involves and compares it with what they have announced already.
func (r *run) enter() error {
	for _, m := range r.others {
		r.unsent[m] = true
		r.g.t.Enter(r.g.ranks[m], Entry{Group: r.g.id, Seq: r.seq, Stream: r.stream, Call: r.call})
	}
	r.g.mu.Lock()
	for _, m := range r.others {
		if theirs, ok := r.g.entries[r.peerStream()][m][r.seq]; ok {
			r.compare(m, theirs)
		}
	}
	r.g.mu.Unlock()
	return r.broken()
}

// peerStream is the stream under which the other side of this run announces itself.
func (r *run) peerStream() Stream {
	switch r.stream {
	case StreamSend:
		return StreamRecv
	case StreamRecv:
		return StreamSend
	}
	return r.stream
}

// compare checks what member m entered against this run's call, and forgets the entry. The caller holds g.mu.
func (r *run) compare(m int, theirs Call) {
	r.enteredBy(m)
	r.moved()
	delete(r.g.entries[r.peerStream()][m], r.seq)
	if theirs != r.call {
		r.differs(m, theirs)
	}
}

// enteredBy notes that member m has entered this call.
func (r *run) enteredBy(m int) {
	r.entered[m] = true
	if r.stream == StreamCollective {
		r.g.opt.Recorder.arrived(r.record, r.g.ranks[m], max(time.Since(r.began), 0))
	}
}

// key names a message of this run.
func (r *run) key(index int) Key {
	stream := r.stream
	if stream == StreamRecv {
		stream = StreamSend // both sides use the sender's stream
	}
	return Key{Group: r.g.id, Stream: stream, Seq: r.seq, Index: uint32(index)}
}

func (r *run) send(m, index int, b []byte, id uint64) {
	r.pending[m]++
	r.open++
	r.unsent[m] = true
	r.g.t.Send(r.g.ranks[m], r.key(index), b, r, withMember(id, m))
}

func (r *run) recv(m, index int, b []byte, id uint64) {
	r.pending[m]++
	r.open++
	r.unsent[m] = true
	r.g.t.Recv(r.g.ranks[m], r.key(index), b, r, withMember(id, m))
}

// An id carries what a collective needs to know at completion: the member in the upper 16 bits, below them the caller's
// 48: kind (4), node (16), piece (28).
func withMember(id uint64, m int) uint64 { return uint64(m)<<48 | id }

func makeID(kind, node, piece int) uint64 {
	return uint64(kind)<<44 | uint64(node)<<28 | uint64(piece)
}

func splitID(id uint64) (m, kind, node, piece int) {
	return int(id >> 48), int(id >> 44 & 0xf), int(id >> 28 & 0xffff), int(id & (1<<28 - 1))
}

// Complete implements Completer.
func (r *run) Complete(id uint64, err error) {
	r.mu.Lock()
	r.events = append(r.events, event{id, err})
	r.mu.Unlock()
	r.poke()
}

func (r *run) poke() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// flush sets off what has been handed over.
func (r *run) flush() {
	for _, m := range r.others {
		if r.unsent[m] {
			r.unsent[m] = false
			r.g.t.Flush(r.g.ranks[m])
		}
	}
}

// next waits for a completion and returns its id.
func (r *run) next() (uint64, error) {
	if err := r.until((*run).hasEvent); err != nil {
		return 0, err
	}
	r.mu.Lock()
	ev := r.events[r.head]
	if r.head++; r.head == len(r.events) {
		r.events, r.head = r.events[:0], 0
	}
	r.mu.Unlock()
	if ev.err != nil {
		return 0, ev.err
	}
	r.pending[ev.id>>48]--
	r.open--
	r.moved()
	return ev.id, nil
}

func (r *run) hasEvent() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.head < len(r.events)
}

// drain waits for all messages handed over.
func (r *run) drain() error {
	for r.open > 0 {
		if _, err := r.next(); err != nil {
			return err
		}
	}
	return nil
}

// allEntered waits until every member has entered this collective.
func (r *run) allEntered() error {
	if err := r.until(func(r *run) bool { absent, left := r.absent(); return !absent || left != nil }); err != nil {
		return err
	}
	_, left := r.absent()
	return left
}

// absent reports whether a member has not entered this collective, and why none of those is to be waited for.
func (r *run) absent() (bool, error) {
	r.g.mu.Lock()
	defer r.g.mu.Unlock()
	for _, m := range r.others {
		if !r.entered[m] {
			return true, r.g.left[m]
		}
	}
	return false, nil
}

// until waits for ready to return true, for the group's failure, or for the deadline.
func (r *run) until(ready func(*run) bool) error {
	if err := r.broken(); err != nil {
		return err
	}
	r.flush()
	if ready(r) {
		return nil
	}
	r.timer.Reset(r.nap())
	defer r.timer.Stop()
	if r.expects() {
		r.g.attends.runs.Add(1)
		defer r.g.attends.runs.Add(-1)
	}
	for {
		select {
		case <-r.g.dead:
			return r.g.err
		case <-r.wake:
		case <-r.timer.C:
			if err := r.overdue(); err != nil {
				return err
			}
			r.timer.Reset(r.nap())
		}
		if err := r.broken(); err != nil {
			return err
		}
		if ready(r) {
			return nil
		}
	}
}

// nap is how long to sleep before looking at the deadline again, and whether others ask: short against every timeout.
func (r *run) nap() time.Duration {
	o := r.g.opt
	return max(min(o.Timeout/16, o.Silence/16, doubtLeast/4), time.Millisecond)
}

// overdue returns the report of a passed deadline, once the members have conferred about it, or nil.
func (r *run) overdue() error {
	g, now := r.g, time.Now()
	asked := r.doubts != 0 || g.root().doubts.active.Load()
	g.mu.Lock()
	formed := g.formed
	if formed && !r.patient && !asked && now.Sub(r.began) <= g.opt.Timeout {
		g.mu.Unlock()
		return nil // before anything is allocated
	}
	err := &StallError{Group: g.name, Op: r.call.Op.String(), Seq: r.seq, Label: r.call.Label, Reporter: g.ranks[g.self], After: now.Sub(r.began)}
	for _, m := range r.others {
		if !r.entered[m] {
			err.Missing = append(err.Missing, g.ranks[m])
		}
	}
	g.mu.Unlock()
	slices.Sort(err.Missing)
	limit := g.opt.Timeout
	switch {
	case len(err.Missing) == 0:
		// Everyone is here: what counts is the time since anything last moved.
		err.After -= time.Duration(r.progress.Load())
		for m, n := range r.pending {
			if n > 0 {
				err.Waiting = append(err.Waiting, g.ranks[m])
			}
		}
		slices.Sort(err.Waiting)
	case !formed || r.patient:
		limit = g.opt.PrepareTimeout
		var silent []int
		for _, rank := range err.Missing {
			if quiet := now.Sub(g.t.LastHeard(rank)); quiet > g.opt.Silence {
				silent = append(silent, rank)
				err.After = quiet
			}
		}
		if silent != nil {
			err.Missing, err.Silent = silent, true
			return r.doubt(err, true)
		}
	}
	overdue := err.After > limit
	if !overdue && !asked {
		return nil
	}
	return r.doubt(err, overdue)
}

// sink receives the group's notices from the transport.
type sink struct{ g *Group }

// maxAhead bounds how many calls a member may have announced that this rank has not entered.
const maxAhead = 1 << 16

var errAhead = errors.New("it announced more collectives than can be outstanding")

func (s sink) Entered(from int, e Entry) {
	g := s.g
	m, ok := g.members[from]
	if !ok || e.Stream >= streamCount {
		return
	}
	g.mu.Lock()
	var err error
	seen := false
	for r := range g.running {
		if r.seq == e.Seq && r.peerStream() == e.Stream && slices.Contains(r.others, m) {
			seen = true
			r.compare(m, e.Call)
			r.poke()
		}
	}
	if !seen && e.Seq >= g.nextSeq(e.Stream, m) {
		if len(g.entries[e.Stream][m]) >= maxAhead {
			err = &PeerError{Rank: from, Cause: errAhead}
		} else {
			g.entries[e.Stream][m][e.Seq] = e.Call
		}
	}
	g.mu.Unlock()
	if err != nil {
		go g.fail(err, true)
	}
}

// nextSeq is the next number this rank will use against what member m announces under stream; earlier ones are over. The
// caller holds g.mu.
func (g *Group) nextSeq(stream Stream, m int) uint64 {
	switch stream {
	case StreamSend:
		return g.seqs[StreamRecv][m]
	case StreamRecv:
		return g.seqs[StreamSend][m]
	}
	return g.seqs[StreamCollective][g.self]
}

func (s sink) Aborted(from int, reason error) {
	if d, ok := reason.(*Doubt); ok {
		s.g.root().doubts.hear(from, d)
		return
	}
	s.g.fail(reason, false)
}

func (s sink) Lost(peer int, err error) {
	g := s.g
	m, ok := g.members[peer]
	if !ok {
		return
	}
	if !errors.Is(err, ErrLeft) {
		go g.fail(err, true)
		return
	}
	g.mu.Lock()
	g.left[m] = err
	g.doubts.gone(peer)
	for r := range g.running {
		r.poke()
	}
	g.mu.Unlock()
}

package comm

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"starling/core/comm/internal/shm"
)

// Waiting in shared memory: on all other members, or one of them, to reach a count.

// need is what a wait is for: that a counter of member (or of every other one, if it is negative) reaches count.
type need struct {
	of     counter
	member int
	count  uint64
}

type counter uint8

const (
	published counter = iota // and has entered what this member entered
	finished
	entered
)

// errYield says that a wait ended because the caller's context did.
var errYield = errors.New("comm: the caller's context has ended")

// How many times to look before sleeping; a look takes some tens of nanoseconds. A member that works beside a computation
// looks briefly. One that somebody waits for looks the longer the more it has helped lately: ranks that have their cores to
// themselves then meet without sleeping, and ranks that must share them do not burn them. But where two ranks have taken to
// waking each other, each always finds the other asleep, so now and then one looks for long all the same. Where ranks
// outnumber cores, looking means letting others run: other processes at every look, goroutines of this one less often in a
// collective of one round, which is over before any of them would have been of use. In the long ones whoever has nothing
// to do is better asleep.
const (
	looksBackground = 50
	looksCrowded    = 60
	looksBrief      = 300
	looksLeast      = 1000
	looksMost       = 160_000
	looksProbe      = 30_000
	probeEvery      = 8 // sleeps
)

// patience is how many times a member that somebody waits for looks.
type patience struct{ looks, sleeps int }

func (p *patience) helped() { p.looks = min(2*p.looks, looksMost) }

func (p *patience) slept() {
	p.looks = max(p.looks/2, looksLeast)
	if p.sleeps++; p.sleeps%probeEvery == 0 {
		p.looks = looksProbe
	}
}

// behind returns a member that the need still waits for, or -1.
func (r *run) behind(n need) int {
	if n.member >= 0 {
		if r.reached(n, n.member) {
			return -1
		}
		return n.member
	}
	for _, m := range r.others {
		if !r.reached(n, m) {
			return m
		}
	}
	return -1
}

func (r *run) reached(n need, m int) bool {
	h := r.g.shared.heads[m]
	switch n.of {
	case finished:
		return h.finished.Load() >= n.count
	case published:
		return r.met(m) && h.published.Load() >= n.count
	}
	if n.count > r.seq {
		return r.met(m)
	}
	return h.entered.Load() >= n.count
}

// met reports whether member m has entered this collective, and compares what it entered with this member's.
func (r *run) met(m int) bool {
	if r.entered[m] {
		return len(r.other) == 0
	}
	x := r.g.shared
	if x.heads[m].entered.Load() <= r.seq {
		return false
	}
	r.enteredBy(m)
	if e := x.entry(m, r.seq); !e.is(r.call) {
		r.differs(m, e.call())
		return false
	}
	return true
}

// await waits for a need, for the group's failure, or for the deadline. In a collective that its caller carries out it
// also ends, with errYield, when the caller's context does.
func (r *run) await(n need) error {
	if r.behind(n) < 0 {
		return nil
	}
	x := r.g.shared
	looks, awaited := looksBackground, false
	brief := r.h.waiters.Load() > 0 && r.h.c.brief
	switch {
	case x.t.crowded && brief:
		looks = looksBrief
	case x.t.crowded:
		looks = looksCrowded
	case r.h.waiters.Load() > 0:
		looks, awaited = x.patience.looks, true
	}
	for i := range looks {
		switch {
		case x.t.crowded:
			if !brief || i%16 == 15 {
				runtime.Gosched()
			}
			shm.Yield()
		case i%32 == 31:
			runtime.Gosched()
			fallthrough
		default:
			shm.Pause()
		}
		if r.behind(n) < 0 {
			r.moved()
			if awaited {
				x.patience.helped()
			}
			return nil
		}
		if len(r.other) > 0 {
			return r.brokenShared()
		}
		if i%512 == 511 && r.g.lost() {
			break
		}
	}
	if awaited {
		x.patience.slept()
	}
	nap := min(r.nap(), 10*time.Millisecond)
	for {
		if err := r.hopeless(n); err != nil {
			return err
		}
		x.heads[r.g.self].bell.Sleep(nap, func() bool {
			return r.behind(n) < 0 || len(r.other) > 0 || r.g.lost()
		})
		if len(r.other) > 0 {
			return r.brokenShared()
		}
		if r.behind(n) < 0 {
			r.moved()
			return nil
		}
	}
}

// lost reports whether the group has failed.
func (g *Group) lost() bool {
	select {
	case <-g.dead:
		return true
	default:
		return false
	}
}

// hopeless returns why a wait is to end without what it waits for.
func (r *run) hopeless(n need) error {
	if err := r.g.Err(); err != nil {
		return err
	}
	if r.ctx != nil && r.ctx.Err() != nil {
		return errYield
	}
	x := r.g.shared
	r.g.mu.Lock()
	for _, m := range r.others {
		if n.member >= 0 && m != n.member || r.reached(n, m) {
			r.pending[m] = 0
			continue
		}
		r.pending[m] = 1
		// It may have left after its part: then its counters are there already.
		if left := r.g.left[m]; left != nil && !r.reached(n, m) {
			r.g.mu.Unlock()
			return left
		}
	}
	for _, m := range r.others {
		r.entered[m] = r.entered[m] || x.heads[m].entered.Load() > r.seq
	}
	r.g.mu.Unlock()
	return r.overdue()
}

// publishAhead enters a brief collective and publishes this member's part at once, if that needs no waiting. The caller
// holds g.mu; nobody carries out a collective, and all that were started before are published.
func (g *Group) publishAhead(c *Collective) bool {
	x, r := g.shared, &c.run
	seq := g.seqs[StreamCollective][g.self]
	r.prepare(g, StreamCollective, c.h.call, g.peers)
	r.h, r.seq = &c.h, seq
	if r.behind(r.needEntry()) >= 0 || c.local.publish != nil && r.behind(needSlot(x.next)) >= 0 {
		return false
	}
	g.seqs[StreamCollective][g.self]++
	if c.before != nil {
		c.before()
	}
	c.open(x)
	return true
}

// needEntry waits until the place of this member's entry is no longer read.
func (r *run) needEntry() need {
	n := need{of: entered, member: -1}
	if r.seq >= entryCount {
		n.count = r.seq - entryCount + 2
	}
	return n
}

// needSlot waits until the slot of a round may be written.
func needSlot(round uint64) need {
	n := need{of: finished, member: -1}
	if round >= slotCount {
		n.count = round - slotCount + 1
	}
	return n
}

// open enters a brief collective and publishes its part; what it needs for that has been waited for.
func (c *Collective) open(x *shared) {
	x.enter(c.run.seq, c.h.call, places{})
	c.base = x.next
	if c.local.publish == nil {
		x.ring()
		return
	}
	c.local.publish(x.slot(x.self, c.base))
	x.next++
	x.publish(c.base)
}

// carryOutShared carries out a collective in shared memory. It returns false if ctx ended first.
func (g *Group) carryOutShared(ctx context.Context, c *Collective) (err error, over bool) {
	x, r := g.shared, &c.run
	if !c.published {
		g.mu.Lock()
		r.prepare(g, StreamCollective, c.h.call, g.peers)
		r.h, r.seq = &c.h, g.seqs[StreamCollective][g.self]
		g.seqs[StreamCollective][g.self]++
		g.mu.Unlock()
		g.opt.Recorder.numbered(r.record, r.seq)
		if err := r.await(r.needEntry()); err != nil {
			return err, true
		}
		switch {
		case !c.brief:
			x.enter(r.seq, c.h.call, c.local.places)
		case c.local.publish != nil:
			if err := r.await(needSlot(x.next)); err != nil {
				return err, true
			}
			fallthrough
		default:
			c.open(x)
		}
	}
	r.began = c.h.Started()
	if c.published {
		g.opt.Recorder.numbered(r.record, r.seq)
	}
	for _, m := range r.others {
		r.met(m) // now, so that those who come later are known to be late
	}
	r.ctx = ctx
	err = c.local.rest(c)
	r.ctx = nil
	switch {
	case err == errYield && c.brief:
		return nil, false
	case err == errYield:
		err = fmt.Errorf("%s: %w", c.h.call, context.Cause(ctx))
	}
	if err == nil {
		g.form()
	}
	return err, true
}

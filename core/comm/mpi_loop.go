//go:build mpi

package comm

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"
)

// How the mover waits while messages are under way: it looks so often, then sleeps so long between looks. Without any, it looks for
// offers now and then.
const (
	mpiLooks = 500
	mpiNap   = 50 * time.Microsecond
	mpiIdle  = 5 * time.Millisecond
)

// run makes the calls, until stop.
func (m *mpiMover) run() {
	defer close(m.ended)
	looks := 0
	timer := time.NewTimer(mpiIdle)
	defer timer.Stop()
	for {
		if m.progress() {
			looks = 0
			continue
		}
		select {
		case <-m.stop:
			m.drain()
			return
		default:
		}
		nap := mpiNap
		if !m.busy() {
			nap = mpiIdle
		} else if looks++; looks < mpiLooks {
			runtime.Gosched()
			continue
		}
		timer.Reset(nap)
		select {
		case <-m.wake:
			looks = 0
		case <-timer.C:
		}
	}
}

// busy reports whether something waits for MPI: a message under way, or one for whose offer this rank waits.
func (m *mpiMover) busy() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.active) > 0 || len(m.orders) > 0 {
		return true
	}
	for _, p := range m.peers {
		if len(p.sends) > 0 {
			return true
		}
	}
	return false
}

// progress begins what was ordered, takes offers and ends what is over. It reports whether anything happened.
func (m *mpiMover) progress() bool {
	m.mu.Lock()
	orders := m.orders
	m.orders = nil
	m.mu.Unlock()
	moved := len(orders) > 0
	for _, o := range orders {
		m.begin(o)
	}
	var frame [headerBytes]byte
	for !m.deaf {
		from, b, err := m.c.poll(mpiTellTag, frame[:])
		if err != nil {
			m.deaf = true
			m.broken(-1, err)
			break
		}
		if from < 0 {
			break
		}
		moved = true
		if len(b) == headerBytes {
			err = m.offer(from, &frame)
		} else {
			err = fmt.Errorf("an offer of %d bytes", len(b))
		}
		if err != nil {
			m.broken(from, err)
		}
	}
	keep := m.active[:0]
	for _, o := range m.active {
		if m.over(o) {
			moved = true
		} else {
			keep = append(keep, o)
		}
	}
	clear(m.active[len(keep):])
	m.active = keep
	return moved
}

// begin starts an ordered message.
func (m *mpiMover) begin(o *mpiOp) {
	if len(o.buf) > 0 {
		o.pin.Pin(&o.buf[0])
	}
	var err error
	if o.kind == mpiRecv {
		err = m.c.irecv(o.buf, o.peer, o.tag, &o.request)
	} else {
		err = m.c.isend(o.buf, o.peer, o.tag, &o.request)
	}
	if err != nil {
		o.pin.Unpin()
		m.failed(o, err)
		return
	}
	if o.kind != mpiRecv {
		m.peers[o.peer].sending.Add(1)
	}
	o.begun = true
	m.active = append(m.active, o)
}

// offer takes a rank's offer of memory.
func (m *mpiMover) offer(from int, frame *[headerBytes]byte) error {
	h, err := parseHeader(frame)
	if err != nil {
		return err
	}
	if h.kind != frameOffer {
		return fmt.Errorf("bad frame: kind %d where an offer belongs", h.kind)
	}
	m.mu.Lock()
	p := m.peers[from]
	o := mpiOffer{h.length, m.tagOf(p.taken)}
	p.taken++
	x, ok := p.sends[h.key]
	switch {
	case ok:
		delete(p.sends, h.key)
		err = m.match(from, h.key, x, o)
	case len(p.offers) == maxOffers:
		err = fmt.Errorf("more than %d offers for messages that were never sent", maxOffers)
	default:
		p.offers[h.key] = o
	}
	p.inTo.Add(headerBytes)
	m.mu.Unlock()
	if err != nil && ok {
		x.complete(err)
		err = nil
	}
	return err
}

// broken gives up a rank, or all, because MPI failed or a rank broke the rules.
func (m *mpiMover) broken(rank int, err error) {
	for r := range m.peers {
		if r != m.rank && (rank < 0 || r == rank) {
			m.lost(r, &PeerError{Rank: r, Cause: err})
		}
	}
}

// over reports whether a message needs no more looking at, and completes it.
func (m *mpiMover) over(o *mpiOp) bool {
	over, n, cancelled, err := m.c.test(&o.request)
	m.mu.Lock()
	lost := m.dead(m.peers[o.peer])
	m.mu.Unlock()
	switch {
	case err != nil: // whether MPI has let the memory go is not known
		abandon(o)
		m.failed(o, err)
		return true
	case over && cancelled:
		o.pin.Unpin()
		m.finish(o, lost)
		return true
	case over:
		o.pin.Unpin()
		if o.kind == mpiRecv && n != len(o.buf) {
			m.finish(o, lengthError(o.peer, m.rank, n, len(o.buf)))
		} else {
			m.finish(o, nil)
		}
		return true
	case lost == nil:
	case o.limit.IsZero() && o.kind == mpiRecv:
		o.limit = time.Now()
		if errors.Is(lost, ErrLeft) {
			o.limit = o.limit.Add(afterLeaving)
		}
	case o.limit.IsZero():
		o.limit = time.Now().Add(linger / 2)
	case time.Now().Before(o.limit):
	case o.kind == mpiRecv && !o.cancelled:
		o.cancelled = true
		o.limit = time.Now().Add(linger / 2)
		m.c.cancel(&o.request) // it is then over, received or cancelled
	default: // nobody takes it: MPI has no way to take it back, and keeps the memory
		abandon(o)
		m.finish(o, lost)
		return true
	}
	return false
}

// abandoned are the messages that were given up while MPI may still read or write their memory. It stays pinned, for as long as the
// process lives.
var abandoned struct {
	sync.Mutex
	ops []*mpiOp
}

func abandon(o *mpiOp) {
	abandoned.Lock()
	defer abandoned.Unlock()
	abandoned.ops = append(abandoned.ops, o)
}

// failed ends a message because of an error of MPI. A rank that an offer does not reach will never send what it offered to take.
func (m *mpiMover) failed(o *mpiOp, err error) {
	if o.kind == mpiTell {
		m.broken(o.peer, err)
	}
	m.finish(o, &PeerError{Rank: o.peer, Cause: err})
}

// finish tells whoever handed the message over.
func (m *mpiMover) finish(o *mpiOp, err error) {
	if o.begun && o.kind != mpiRecv {
		m.peers[o.peer].sending.Add(-1)
	}
	if o.told || o.done == nil {
		if o.kind == mpiTell && err == nil {
			m.peers[o.peer].framesOut.Add(headerBytes)
		}
		return
	}
	o.told = true
	p := m.peers[o.peer]
	if err == nil && o.kind == mpiSend {
		p.sent.Add(int64(len(o.buf)))
	} else if err == nil {
		p.received.Add(int64(len(o.buf)))
	}
	o.complete(err)
}

// drain gives up what is left when the transport ends.
func (m *mpiMover) drain() {
	for end := time.Now().Add(linger); len(m.active) > 0 && time.Now().Before(end); {
		if !m.progress() {
			time.Sleep(mpiNap)
		}
	}
	for _, o := range m.active {
		abandon(o)
		m.finish(o, ErrClosed)
	}
	m.active = nil
}

//go:build mpi

package comm

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// mpiMover moves messages by MPI. A receiver posts its receive and tells the sender so; the sender sends once it knows, so a message
// goes straight into the memory it is for. The n-th offer to a rank goes with tag n on both sides, which needs no
// agreement because MPI keeps the order of the offers. One goroutine makes all calls.
type mpiMover struct {
	c     *mpiComm
	inner Transport
	rank  int
	peers []*mpiPeer
	wake  chan struct{}
	stop  chan struct{}
	ended chan struct{} // run has returned
	once  sync.Once
	err   error // of Close

	mu     sync.Mutex
	orders []*mpiOp // to be begun
	closed bool

	active []*mpiOp // begun and not over; run's own
	deaf   bool     // looking for offers has failed, and would again; run's own
}

// mpiPeer is what is known of one rank, guarded by mpiMover.mu.
type mpiPeer struct {
	sends           map[Key]message  // payload waiting for an offer
	offers          map[Key]mpiOffer // offers waiting for payload
	offered, taken  int              // offers made to it, and by it
	lost            error
	sent, received  atomic.Int64
	framesOut, inTo atomic.Int64
	sending         atomic.Int64 // begun and not over
}

type mpiOffer struct{ length, tag int }

// mpiOp is a message on its way, or an offer of memory for one.
type mpiOp struct {
	message
	kind             mpiKind
	peer             int
	key              Key
	tag              int
	request          mpiRequest
	pin              runtime.Pinner
	limit            time.Time // when a receive from a rank that has left is given up
	begun, cancelled bool
	told             bool // its completion has been called
}

type mpiKind uint8

const (
	mpiSend mpiKind = iota
	mpiRecv
	mpiTell // an offer
)

// mpiTellTag is the tag of offers.
const mpiTellTag = 0

// afterLeaving is how long what a rank has sent before it left may still be on its way.
const afterLeaving = 100 * time.Millisecond

func (m *mpiMover) tagOf(n int) int { return 1 + n%min(mpi.topTag, 1<<20) }

// Send hands payload over to rank to.
func (m *mpiMover) Send(to int, key Key, payload []byte, done Completer, id uint64) {
	x := message{payload, done, id}
	if to < 0 || to >= len(m.peers) || to == m.rank {
		x.complete(addressError(m.rank, to, len(m.peers)))
		return
	}
	m.mu.Lock()
	p := m.peers[to]
	err := m.dead(p)
	if err == nil {
		if o, ok := p.offers[key]; ok {
			delete(p.offers, key)
			err = m.match(to, key, x, o)
		} else {
			p.sends[key] = x
		}
	}
	m.mu.Unlock()
	m.poke()
	if err != nil {
		x.complete(err)
	}
}

// dead returns why nothing can go to or come from p. The caller holds m.mu.
func (m *mpiMover) dead(p *mpiPeer) error {
	if m.closed {
		return ErrClosed
	}
	return p.lost
}

// match orders a message to be sent to offered memory. The caller holds m.mu.
func (m *mpiMover) match(to int, key Key, x message, o mpiOffer) error {
	if o.length != len(x.buf) {
		return lengthError(m.rank, to, len(x.buf), o.length)
	}
	m.orders = append(m.orders, &mpiOp{message: x, kind: mpiSend, peer: to, key: key, tag: o.tag})
	return nil
}

// Recv offers buf to rank from.
func (m *mpiMover) Recv(from int, key Key, buf []byte, done Completer, id uint64) {
	x := message{buf, done, id}
	if from < 0 || from >= len(m.peers) || from == m.rank {
		x.complete(addressError(m.rank, from, len(m.peers)))
		return
	}
	m.mu.Lock()
	p := m.peers[from]
	err := m.dead(p)
	if err == nil {
		tag := m.tagOf(p.offered)
		p.offered++
		m.orders = append(m.orders, &mpiOp{message: x, kind: mpiRecv, peer: from, key: key, tag: tag},
			&mpiOp{message: message{buf: appendHeader(nil, header{frameOffer, key, len(buf)})}, kind: mpiTell, peer: from, tag: mpiTellTag})
	}
	m.mu.Unlock()
	m.poke()
	if err != nil {
		x.complete(err)
	}
}

func (m *mpiMover) poke() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// lost fails what waits for a rank that cannot be reached any more.
func (m *mpiMover) lost(rank int, err error) {
	m.mu.Lock()
	p := m.peers[rank]
	p.lost = err
	var open []message
	for _, x := range p.sends {
		open = append(open, x)
	}
	p.sends, p.offers = map[Key]message{}, map[Key]mpiOffer{}
	m.mu.Unlock()
	for _, x := range open {
		x.complete(err)
	}
	m.poke()
}

//go:build mpi

package comm

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// MPIBuilt says whether this program can move data by MPI.
const MPIBuilt = true

// withMPI moves the messages of a transport by MPI, which knows the fastest way between two hosts (InfiniBand and other networks
// with remote access to memory, where it was built for them); notices and signs of life stay on t's own connections.
// Every rank calls it.
func withMPI(t Transport) (Transport, error) {
	if err := mpiBegin(); err != nil {
		return nil, fmt.Errorf("comm: rank %d: MPI: %w", t.Rank(), err)
	}
	c, err := mpiOpen(t.Rank(), t.World())
	if err != nil {
		return nil, fmt.Errorf("comm: rank %d: MPI: %w", t.Rank(), err)
	}
	m := &mpiMover{c: c, rank: t.Rank(), wake: make(chan struct{}, 1), stop: make(chan struct{}), ended: make(chan struct{})}
	for range t.World() {
		m.peers = append(m.peers, &mpiPeer{sends: map[Key]message{}, offers: map[Key]mpiOffer{}})
	}
	switch x := t.(type) {
	case *socketTransport:
		m.inner = x
		x.board.watch(m.lost)
		go m.run()
		return &mpiSockets{x, m}, nil
	case *hostTransport:
		m.inner = x
		x.board.watch(m.lost)
		go m.run()
		return &mpiHosts{x, m}, nil
	}
	return nil, fmt.Errorf("comm: MPI beside %v", t)
}

// mpiSockets is a transport over sockets whose messages go by MPI, mpiHosts one with shared memory besides.
type (
	mpiSockets struct {
		*socketTransport
		m *mpiMover
	}
	mpiHosts struct {
		*hostTransport
		m *mpiMover
	}
)

// String says how the ranks are connected.
func (t *mpiSockets) String() string { return t.m.String() + t.socketTransport.String() }

// String says how the ranks are connected.
func (t *mpiHosts) String() string { return t.m.String() + t.hostTransport.String() }

func (m *mpiMover) String() string { return "MPI (" + mpi.library + "), unencrypted, notices by " }

func (t *mpiSockets) Send(to int, key Key, b []byte, done Completer, id uint64) {
	t.m.Send(to, key, b, done, id)
}

func (t *mpiSockets) Recv(from int, key Key, b []byte, done Completer, id uint64) {
	t.m.Recv(from, key, b, done, id)
}

func (t *mpiHosts) Send(to int, key Key, b []byte, done Completer, id uint64) {
	t.m.Send(to, key, b, done, id)
}

func (t *mpiHosts) Recv(from int, key Key, b []byte, done Completer, id uint64) {
	t.m.Recv(from, key, b, done, id)
}

// Counters returns what has passed between this rank and peer.
func (t *mpiSockets) Counters(peer int) Counters {
	return t.m.counters(peer, t.socketTransport.Counters(peer))
}

// Counters returns what has passed between this rank and peer.
func (t *mpiHosts) Counters(peer int) Counters {
	return t.m.counters(peer, t.hostTransport.Counters(peer))
}

// Close ends the transport.
func (t *mpiSockets) Close() error { return t.m.close(t.socketTransport.Close) }

// Close ends the transport.
func (t *mpiHosts) Close() error { return t.m.close(t.hostTransport.Close) }

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

// counters adds what went by MPI to what went otherwise.
func (m *mpiMover) counters(peer int, c Counters) Counters {
	if peer < 0 || peer >= len(m.peers) {
		return c
	}
	p := m.peers[peer]
	c.PayloadSent += p.sent.Load()
	c.PayloadReceived += p.received.Load()
	c.WireSent += p.sent.Load() + p.framesOut.Load()
	c.WireReceived += p.received.Load() + p.inTo.Load()
	return c
}

// keepMPI leaves MPI running when a transport ends, for processes that open another.
var keepMPI = false

// endLimit bounds the wait for the other processes to end MPI as well. One that died is known by then; one that is busy, or stopped for
// a while, is worth the wait: mpirun calls a process that ends without the others a failure.
const endLimit = time.Minute

// close lets go what has been matched, says goodbye by rest and ends MPI, if all ranks end in order.
func (m *mpiMover) close(rest func() error) error {
	m.once.Do(func() {
		for end := time.Now().Add(linger); m.sending() && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
		m.mu.Lock()
		m.closed = true
		var open []message
		orderly := true
		for _, p := range m.peers {
			for _, x := range p.sends {
				open = append(open, x)
			}
			p.sends = map[Key]message{}
			orderly = orderly && (p.lost == nil || errors.Is(p.lost, ErrLeft))
		}
		m.mu.Unlock()
		for _, x := range open {
			x.complete(ErrClosed)
		}
		close(m.stop)
		<-m.ended
		m.err = rest()
		if keepMPI {
			return
		}
		if !orderly {
			return // the others do not come; MPI's own end would wait for them
		}
		over := make(chan error, 1)
		go func() { over <- mpiEnd() }()
		select {
		case err := <-over:
			m.err = errors.Join(m.err, err)
		case <-time.After(endLimit):
		}
	})
	return m.err
}

// sending reports whether messages are on their way to ranks that want them.
func (m *mpiMover) sending() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, o := range m.orders {
		if o.kind != mpiRecv {
			return true
		}
	}
	for _, p := range m.peers {
		if p.sending.Load() > 0 && p.lost == nil {
			return true
		}
	}
	return false
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

// watch has f told of every peer that cannot be reached any more, those that are already lost included.
func (b *board) watch(f func(peer int, err error)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.onLost = f
	for peer, err := range b.lost {
		f(peer, err)
	}
}

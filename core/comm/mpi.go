//go:build mpi

package comm

import (
	"errors"
	"fmt"
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

// watch has f told of every peer that cannot be reached any more, those that are already lost included.
func (b *board) watch(f func(peer int, err error)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.onLost = f
	for peer, err := range b.lost {
		f(peer, err)
	}
}

// attention is nobody's: messages do not come by the sockets.
func (*mpiSockets) attention() *attention { return nil }
func (*mpiHosts) attention() *attention   { return nil }

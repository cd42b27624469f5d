package comm

import (
	"sync"
	"sync/atomic"
	"time"
)

// NewInProcess returns the transports of world ranks that live in one process and copy straight from the sender's memory
// to the receiver's.
func NewInProcess(world int) []Transport { return newInProcess(world, nil) }

// NewInProcessOn is NewInProcess for ranks that count as running on the hosts named, one for each rank.
func NewInProcessOn(hosts []string) []Transport { return newInProcess(len(hosts), hosts) }

func newInProcess(world int, hosts []string) []Transport {
	h := &hub{hosts: hosts, boards: make([]*board, world), lanes: make([]pairLane, world*world)}
	out := make([]Transport, world)
	for r := range out {
		h.boards[r] = newBoard()
		out[r] = &local{hub: h, rank: r}
	}
	return out
}

// hub is what the ranks of one process share.
type hub struct {
	hosts  []string // by rank, nil where they have none
	boards []*board
	lanes  []pairLane // [from·world + to]
}

// pairLane matches the messages from one rank to another.
type pairLane struct {
	mu     sync.Mutex
	sends  map[Key]message
	recvs  map[Key]message
	closed bool // one of the two has left
	bytes  atomic.Int64
}

// local is one rank's end.
type local struct {
	hub    *hub
	rank   int
	closed atomic.Bool
}

// String says how the ranks are connected.
func (l *local) String() string { return "in process" }

func (l *local) Rank() int  { return l.rank }
func (l *local) World() int { return len(l.hub.boards) }

func (l *local) hostOf(rank int) string {
	if l.hub.hosts == nil {
		return ""
	}
	return l.hub.hosts[rank]
}

func (l *local) lane(from, to int) *pairLane { return &l.hub.lanes[from*l.World()+to] }

func (l *local) reaches(peer int) bool { return peer >= 0 && peer < l.World() && peer != l.rank }

func (l *local) Send(to int, key Key, payload []byte, done Completer, id uint64) {
	m := message{payload, done, id}
	if !l.reaches(to) {
		m.complete(addressError(l.rank, to, l.World()))
		return
	}
	p := l.lane(l.rank, to)
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		m.complete(l.leftError(to))
		return
	}
	r, ok := p.recvs[key]
	if !ok {
		if p.sends == nil {
			p.sends = map[Key]message{}
		}
		p.sends[key] = m
		p.mu.Unlock()
		return
	}
	delete(p.recvs, key)
	err := p.move(m, r, l.rank, to)
	p.mu.Unlock()
	m.complete(err)
	r.complete(err)
}

func (l *local) Recv(from int, key Key, buf []byte, done Completer, id uint64) {
	r := message{buf, done, id}
	if !l.reaches(from) {
		r.complete(addressError(l.rank, from, l.World()))
		return
	}
	p := l.lane(from, l.rank)
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		r.complete(l.leftError(from))
		return
	}
	m, ok := p.sends[key]
	if !ok {
		if p.recvs == nil {
			p.recvs = map[Key]message{}
		}
		p.recvs[key] = r
		p.mu.Unlock()
		return
	}
	delete(p.sends, key)
	err := p.move(m, r, from, l.rank)
	p.mu.Unlock()
	m.complete(err)
	r.complete(err)
}

// move copies a matched message. It runs under the lane's lock, so that Close cannot return while memory of its rank is in
// use.
func (p *pairLane) move(m, r message, from, to int) error {
	if len(m.buf) != len(r.buf) {
		return lengthError(from, to, len(m.buf), len(r.buf))
	}
	copy(r.buf, m.buf)
	p.bytes.Add(int64(len(m.buf)))
	return nil
}

// leftError is what operations return once this rank or the peer has closed.
func (l *local) leftError(peer int) error {
	if l.closed.Load() {
		return ErrClosed
	}
	return &PeerError{Rank: peer, Cause: ErrLeft}
}

func (*local) Flush(int) {} // nothing stays

func (l *local) Enter(to int, e Entry) {
	if l.reaches(to) && !l.closed.Load() {
		// The bound on early notices cannot be met by ranks that wait for each other; past it the peer's own deadline speaks.
		_ = l.hub.boards[to].entered(l.rank, e)
	}
}

func (l *local) Abort(to int, group uint64, reason error) {
	if l.reaches(to) && !l.closed.Load() {
		_ = l.hub.boards[to].aborted(l.rank, group, decodeReason(l.rank, encodeReason(l.rank, reason)))
	}
}

func (l *local) Attach(group uint64, s Sink) error { return l.hub.boards[l.rank].attach(group, s) }
func (l *local) Detach(group uint64)               { l.hub.boards[l.rank].detach(group) }

func (l *local) Counters(peer int) Counters {
	if !l.reaches(peer) {
		return Counters{}
	}
	sent, received := l.lane(l.rank, peer).bytes.Load(), l.lane(peer, l.rank).bytes.Load()
	return Counters{PayloadSent: sent, WireSent: sent, PayloadReceived: received, WireReceived: received}
}

// LastHeard is always now: the peers are goroutines of this process.
func (l *local) LastHeard(int) time.Time { return time.Now() }

func (l *local) Fail(reason error) {
	for p := range l.World() {
		l.Abort(p, 0, reason)
	}
	_ = l.hub.boards[l.rank].aborted(l.rank, 0, reason)
}

func (l *local) Close() error {
	if l.closed.Swap(true) {
		return nil
	}
	for p := range l.World() {
		if p == l.rank {
			continue
		}
		gone := &PeerError{Rank: l.rank, Cause: ErrLeft}
		l.lane(l.rank, p).shut(ErrClosed, gone)
		l.lane(p, l.rank).shut(gone, ErrClosed)
		l.hub.boards[p].peerLost(l.rank, gone)
	}
	return nil
}

// shut ends a lane: what is unfinished completes with an error of its side.
func (p *pairLane) shut(toSender, toReceiver error) {
	p.mu.Lock()
	sends, recvs := p.sends, p.recvs
	p.sends, p.recvs = nil, nil
	p.closed = true
	p.mu.Unlock()
	for _, m := range sends {
		m.complete(toSender)
	}
	for _, m := range recvs {
		m.complete(toReceiver)
	}
}

package comm

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// socketTransport is a mesh of stream connections, one per peer.
type socketTransport struct {
	rank    int
	network string   // for people
	hosts   []string // by rank, where each runs
	peers   []*peer  // nil at rank
	board   *board
	attends attention
	stop    chan struct{}
	once    sync.Once
	wg      sync.WaitGroup
}

// readBuffer is room for a few frames without payload: most of a payload is then read straight to where it goes.
const readBuffer = 4 << 10

// linger is how long Close waits for a peer to take what is still on its way.
const linger = 2 * time.Second

// maxOffers bounds the offers kept for messages that this rank has not sent yet.
const maxOffers = 1 << 20

// peer is the connection to one rank: a reader that puts payload straight into offered memory, a writer for what cannot be written
// at once (socket_write.go), and the table in which sends meet offers.
type peer struct {
	t    *socketTransport
	rank int
	conn net.Conn

	wake chan struct{} // there is something for the writer to do
	rd   reading       // of the reader
	w    writing       // of whoever has set busy

	mu      sync.Mutex
	control []byte          // encoded frames without payload, written before payload
	ready   []outgoing      // payload whose memory has been offered
	gone    int             // of ready: those before it are on their way
	busy    bool            // somebody writes
	handed  bool            // and leaves the rest of it to the writer
	sends   map[Key]message // payload waiting for an offer
	offers  map[Key]int     // offers waiting for payload: length
	recvs   map[Key]message // memory offered to the peer
	lost    error           // why nothing more comes or goes
	silent  error           // why this side has given the connection up
	bye     bool            // the writer is to say goodbye after what is queued
	broken  bool            // the writer has given up
	closing bool            // this side has called Close

	heardAt                      atomic.Int64 // Unix nanoseconds
	payloadSent, payloadReceived atomic.Int64
	wireSent, wireReceived       atomic.Int64
}

type outgoing struct {
	key Key
	message
}

// newSocketTransport takes over the connections (nil at rank).
func newSocketTransport(rank int, conns []net.Conn, network string, heartbeat, silence time.Duration) *socketTransport {
	t := &socketTransport{rank: rank, network: network, hosts: make([]string, len(conns)), peers: make([]*peer, len(conns)), board: newBoard(), stop: make(chan struct{})}
	for r, c := range conns {
		if c == nil {
			continue
		}
		p := &peer{t: t, rank: r, conn: c, wake: make(chan struct{}, 1), w: newWriting(c), sends: map[Key]message{}, offers: map[Key]int{}, recvs: map[Key]message{}}
		p.heard()
		t.peers[r] = p
		t.wg.Add(2)
		go p.readLoop()
		go p.writeLoop()
	}
	t.wg.Add(1)
	go t.beat(heartbeat, silence)
	return t
}

// beat tells the peers that this process lives, and gives up those that have been silent for so long: their host has
// vanished or the network is cut, which no connection tells of.
func (t *socketTransport) beat(every, silence time.Duration) {
	defer t.wg.Done()
	tick := time.NewTicker(every)
	defer tick.Stop()
	last := time.Now()
	for {
		select {
		case <-t.stop:
			return
		case now := <-tick.C:
			// If this process itself stood still, what the peers have said is still to be read.
			slept := now.Sub(last) > max(silence/4, 3*every)
			last = now
			for _, p := range t.peers {
				if p == nil {
					continue
				}
				p.post(header{kind: framePing})
				if slept {
					p.heard()
				} else if quiet := now.Sub(time.Unix(0, p.heardAt.Load())); quiet > silence {
					p.giveUp(fmt.Errorf("it gave no sign of life for %v: its host has vanished, the network is cut, or it was stopped", quiet.Round(time.Second/10)))
				}
			}
		}
	}
}

func (t *socketTransport) hostOf(rank int) string { return t.hosts[rank] }

// String says how the ranks are connected.
func (t *socketTransport) String() string { return t.network }

func (t *socketTransport) Rank() int  { return t.rank }
func (t *socketTransport) World() int { return len(t.peers) }

func (t *socketTransport) peer(rank int) *peer {
	if rank < 0 || rank >= len(t.peers) {
		return nil
	}
	return t.peers[rank]
}

func (t *socketTransport) Send(to int, key Key, payload []byte, done Completer, id uint64) {
	m := message{payload, done, id}
	p := t.peer(to)
	if p == nil {
		m.complete(addressError(t.rank, to, len(t.peers)))
		return
	}
	p.mu.Lock()
	err := p.lost
	if err == nil {
		if n, ok := p.offers[key]; ok {
			delete(p.offers, key)
			err = p.match(key, m, n)
		} else {
			p.sends[key] = m
		}
	}
	p.mu.Unlock()
	if err != nil {
		m.complete(err)
	}
}

// match queues a payload for memory of n bytes. The caller holds p.mu.
func (p *peer) match(key Key, m message, n int) error {
	if n != len(m.buf) {
		return lengthError(p.t.rank, p.rank, len(m.buf), n)
	}
	p.ready = append(p.ready, outgoing{key, m})
	return nil
}

func (t *socketTransport) Recv(from int, key Key, buf []byte, done Completer, id uint64) {
	m := message{buf, done, id}
	p := t.peer(from)
	if p == nil {
		m.complete(addressError(t.rank, from, len(t.peers)))
		return
	}
	p.mu.Lock()
	err := p.lost
	if err == nil {
		p.recvs[key] = m
		p.control = appendHeader(p.control, header{frameOffer, key, len(buf)})
	}
	p.mu.Unlock()
	if err != nil {
		m.complete(err)
	}
}

func (t *socketTransport) Enter(to int, e Entry) {
	if p := t.peer(to); p != nil {
		p.mu.Lock()
		p.control = appendEnter(p.control, e)
		p.mu.Unlock()
	}
}

func (t *socketTransport) Flush(to int) {
	if p := t.peer(to); p != nil {
		p.flush()
	}
}

func (t *socketTransport) Abort(to int, group uint64, reason error) {
	if p := t.peer(to); p != nil {
		body := encodeReason(t.rank, reason)
		p.mu.Lock()
		p.control = appendHeader(p.control, header{frameAbort, Key{Group: group}, len(body)})
		p.control = append(p.control, body...)
		p.poke()
		p.mu.Unlock()
	}
}

func (t *socketTransport) Attach(group uint64, s Sink) error { return t.board.attach(group, s) }
func (t *socketTransport) Detach(group uint64)               { t.board.detach(group) }

func (t *socketTransport) Counters(rank int) Counters {
	p := t.peer(rank)
	if p == nil {
		return Counters{}
	}
	return Counters{
		PayloadSent: p.payloadSent.Load(), PayloadReceived: p.payloadReceived.Load(),
		WireSent: p.wireSent.Load(), WireReceived: p.wireReceived.Load(),
	}
}

func (t *socketTransport) LastHeard(rank int) time.Time {
	if p := t.peer(rank); p != nil {
		return time.Unix(0, p.heardAt.Load())
	}
	return time.Now()
}

func (t *socketTransport) Fail(reason error) {
	for r := range t.peers {
		t.Abort(r, 0, reason)
	}
	_ = t.board.aborted(t.rank, 0, reason)
}

func (t *socketTransport) Close() error {
	t.once.Do(func() {
		close(t.stop)
		for _, p := range t.peers {
			if p == nil {
				continue
			}
			p.mu.Lock()
			p.closing, p.bye = true, true
			p.poke()
			p.mu.Unlock()
			_ = p.conn.SetDeadline(time.Now().Add(linger))
		}
		t.wg.Wait()
		for _, p := range t.peers {
			if p != nil {
				p.cut()
			}
		}
	})
	return nil
}

// giveUp ends the connection.
func (p *peer) giveUp(why error) {
	p.mu.Lock()
	if p.silent == nil {
		p.silent = why
	}
	p.mu.Unlock()
	p.cut()
}

// cut closes the connection below encryption, which would first send an alert and wait for seconds where nothing is taken any more.
func (p *peer) cut() { _ = p.w.conn.Close() }

// post sends a frame without body, or where others are queued those: they say as much.
func (p *peer) post(h header) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lost != nil {
		return
	}
	if len(p.control) == 0 {
		p.control = appendHeader(p.control, h)
	}
	p.poke()
}

// readLoop reads frames until the connection ends, then fails whatever was left.
func (p *peer) readLoop() {
	defer p.t.wg.Done()
	err := readFrames(bufio.NewReaderSize(p.stream(), readBuffer), p)
	p.mu.Lock()
	closing := p.closing
	switch {
	case closing:
		err = ErrClosed
	case err == nil:
		err = &PeerError{Rank: p.rank, Cause: ErrLeft}
	case p.silent != nil:
		err = &PeerError{Rank: p.rank, Cause: p.silent}
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF): // in the middle of a frame, or of TLS, which ends with a farewell
		err = &PeerError{Rank: p.rank, Cause: errors.New("it closed without a word; its process has ended")}
	default:
		err = &PeerError{Rank: p.rank, Cause: err}
	}
	left := errors.Is(err, ErrLeft)
	p.lost = err
	var open []message
	for _, m := range p.recvs {
		open = append(open, m)
	}
	for _, m := range p.sends {
		open = append(open, m)
	}
	if p.broken || !closing && !left {
		for _, m := range p.ready[p.gone:] {
			open = append(open, m.message)
		}
		p.ready, p.gone = nil, 0
	}
	p.recvs, p.sends = nil, nil
	p.bye = true
	p.poke()
	p.mu.Unlock()
	if !closing && !left {
		p.cut() // ends the writer
	}
	for _, m := range open {
		m.complete(err)
	}
	if !closing {
		p.t.board.peerLost(p.rank, err)
	}
}

// idle sends off what answers the frames that have come, before the reader waits for more.
func (p *peer) idle() { p.flush() }

func (p *peer) heard() { p.heardAt.Store(time.Now().UnixNano()) }

func (p *peer) entered(e Entry) error { return p.t.board.entered(p.rank, e) }

func (p *peer) aborted(group uint64, reason []byte) {
	_ = p.t.board.aborted(p.rank, group, decodeReason(p.rank, reason))
}

func (p *peer) offered(key Key, length int) error {
	p.mu.Lock()
	m, ok := p.sends[key]
	var err error
	switch {
	case ok:
		delete(p.sends, key)
		err = p.match(key, m, length)
	case len(p.offers) == maxOffers:
		p.mu.Unlock()
		return fmt.Errorf("more than %d offers for messages that were never sent", maxOffers)
	default:
		p.offers[key] = length
	}
	p.mu.Unlock()
	if err != nil {
		m.complete(err)
	}
	return nil
}

func (p *peer) memory(key Key, length int) (message, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	m, ok := p.recvs[key]
	switch {
	case !ok:
		return m, errors.New("bad frame: payload that was not asked for")
	case length != len(m.buf):
		return m, lengthError(p.rank, p.t.rank, length, len(m.buf))
	}
	delete(p.recvs, key)
	return m, nil
}

func (p *peer) filled(m message, err error) {
	if err != nil {
		err = &PeerError{Rank: p.rank, Cause: err}
	} else {
		p.payloadReceived.Add(int64(len(m.buf)))
	}
	m.complete(err)
}

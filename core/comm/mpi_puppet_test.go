//go:build mpi

package comm_test

import (
	"encoding/gob"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"starling/core/comm"
)

// A call to a puppet, and what comes back: the answer to a call, a completion, or a notice.
type (
	puppetCall struct {
		N          uint64 // completions carry it
		Do         string
		Rank, Peer int
		Addrs      []string
		Key        comm.Key
		Payload    []byte
		Length     int
		Entry      comm.Entry
		Group      uint64
		Text       string
	}
	puppetWord struct {
		N       uint64
		What    string
		Payload []byte
		Err     *puppetErr
		From    int
		Entry   comm.Entry
		Group   uint64
		Count   comm.Counters
		Text    string
		At      time.Time
	}
	// puppetErr is an error as ranks send it to each other, and what of it the suite asks for besides.
	puppetErr struct {
		Reason       []byte
		Text         string
		Peer         int
		Left, Closed bool
	}
)

func packErr(err error) *puppetErr {
	if err == nil {
		return nil
	}
	e := &puppetErr{Text: err.Error(), Left: errors.Is(err, comm.ErrLeft), Closed: errors.Is(err, comm.ErrClosed), Reason: comm.EncodeReason(0, err)}
	var peer *comm.PeerError
	if errors.As(err, &peer) {
		e.Peer = peer.Rank
	}
	return e
}

func (e *puppetErr) unpack() error {
	switch {
	case e == nil:
		return nil
	case e.Left:
		return &comm.PeerError{Rank: e.Peer, Cause: comm.ErrLeft}
	case e.Closed:
		return comm.ErrClosed
	}
	err := comm.DecodeReason(0, e.Reason)
	var abort *comm.AbortError
	if errors.As(err, &abort) && abort.Error() != e.Text { // it was of no type that travels
		return errors.New(e.Text)
	}
	return err
}

// puppet is the near end of a transport in another process.
type puppet struct {
	conn net.Conn
	gone chan struct{}

	mu          sync.Mutex
	enc         *gob.Encoder
	n           uint64
	open_       map[uint64]puppetOp
	answers     map[uint64]chan puppetWord
	sinks       map[uint64]comm.Sink
	rank, world int
	name        string
}

type puppetOp struct {
	buf  []byte
	done comm.Completer
	id   uint64
}

func newPuppet(t *testing.T, socket string) *puppet {
	t.Helper()
	var c net.Conn
	var err error
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if c, err = net.Dial("unix", socket); err == nil {
			break
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	p := &puppet{conn: c, enc: gob.NewEncoder(c), open_: map[uint64]puppetOp{}, answers: map[uint64]chan puppetWord{}, sinks: map[uint64]comm.Sink{}, gone: make(chan struct{})}
	go p.listen()
	return p
}

func (p *puppet) listen() {
	defer close(p.gone)
	d := gob.NewDecoder(p.conn)
	for {
		var w puppetWord
		if d.Decode(&w) != nil {
			return
		}
		p.mu.Lock()
		op, isOp := p.open_[w.N]
		answer, sink := p.answers[w.N], p.sinks[w.Group]
		delete(p.answers, w.N)
		if w.What == "complete" {
			delete(p.open_, w.N)
		}
		p.mu.Unlock()
		switch {
		case w.What == "complete" && isOp:
			copy(op.buf, w.Payload)
			op.done.Complete(op.id, w.Err.unpack())
		case w.What == "answer":
			answer <- w
		case sink == nil:
		case w.What == "entered":
			sink.Entered(w.From, w.Entry)
		case w.What == "aborted":
			sink.Aborted(w.From, w.Err.unpack())
		case w.What == "lost":
			sink.Lost(w.From, w.Err.unpack())
		}
	}
}

// tell passes a call on; ask waits for its answer.
func (p *puppet) tell(c puppetCall, op *puppetOp) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.n++
	c.N = p.n
	if op != nil {
		p.open_[c.N] = *op
	}
	_ = p.enc.Encode(c)
}

func (p *puppet) ask(c puppetCall) puppetWord {
	answer := make(chan puppetWord, 1)
	p.mu.Lock()
	p.n++
	c.N = p.n
	p.answers[c.N] = answer
	_ = p.enc.Encode(c)
	p.mu.Unlock()
	select {
	case w := <-answer:
		return w
	case <-p.gone:
		return puppetWord{Err: &puppetErr{Text: "the puppet's process is gone"}}
	}
}

func (p *puppet) open(t *testing.T, rank int, addrs []string) {
	p.mu.Lock()
	p.sinks = map[uint64]comm.Sink{}
	p.mu.Unlock()
	p.rank, p.world = rank, len(addrs)
	w := p.ask(puppetCall{Do: "open", Rank: rank, Addrs: addrs})
	p.name = w.Text
	if w.Err != nil {
		t.Error(w.Err.Text)
	}
}

func (p *puppet) String() string { return p.name }
func (p *puppet) Rank() int      { return p.rank }
func (p *puppet) World() int     { return p.world }

func (p *puppet) Send(to int, key comm.Key, b []byte, done comm.Completer, id uint64) {
	p.tell(puppetCall{Do: "send", Peer: to, Key: key, Payload: b}, &puppetOp{nil, done, id})
}

func (p *puppet) Recv(from int, key comm.Key, b []byte, done comm.Completer, id uint64) {
	p.tell(puppetCall{Do: "recv", Peer: from, Key: key, Length: len(b)}, &puppetOp{b, done, id})
}

func (p *puppet) Flush(int) {} // the far end flushes each

func (p *puppet) Enter(to int, e comm.Entry) {
	p.tell(puppetCall{Do: "enter", Peer: to, Entry: e}, nil)
}

func (p *puppet) Abort(to int, group uint64, reason error) {
	p.tell(puppetCall{Do: "abort", Peer: to, Group: group, Payload: comm.EncodeReason(p.rank, reason)}, nil)
}

func (p *puppet) Attach(group uint64, s comm.Sink) error {
	p.mu.Lock()
	p.sinks[group] = s
	p.mu.Unlock()
	return p.ask(puppetCall{Do: "attach", Group: group}).Err.unpack()
}

func (p *puppet) Detach(group uint64) { p.ask(puppetCall{Do: "detach", Group: group}) }

func (p *puppet) Counters(peer int) comm.Counters {
	return p.ask(puppetCall{Do: "counters", Peer: peer}).Count
}

func (p *puppet) LastHeard(peer int) time.Time { return p.ask(puppetCall{Do: "heard", Peer: peer}).At }
func (p *puppet) Fail(reason error)            { p.ask(puppetCall{Do: "fail", Text: reason.Error()}) }
func (p *puppet) Close() error                 { return p.ask(puppetCall{Do: "close"}).Err.unpack() }

// servePuppet is the far end, until the connection ends.
func servePuppet(socket string) error {
	l, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	c, err := l.Accept()
	if err != nil {
		return err
	}
	s := &puppetServer{enc: gob.NewEncoder(c)}
	d := gob.NewDecoder(c)
	var t comm.Transport
	for {
		var call puppetCall
		if d.Decode(&call) != nil {
			return nil
		}
		answer := puppetWord{N: call.N, What: "answer"}
		switch call.Do {
		case "open":
			t, err = openMPI(call.Rank, call.Addrs)
			answer.Err = packErr(err)
			if err == nil {
				answer.Text = t.String()
			}
		case "send":
			t.Send(call.Peer, call.Key, call.Payload, puppetDone{s, nil}, call.N)
			t.Flush(call.Peer)
			continue
		case "recv":
			b := make([]byte, call.Length)
			t.Recv(call.Peer, call.Key, b, puppetDone{s, b}, call.N)
			t.Flush(call.Peer)
			continue
		case "enter":
			t.Enter(call.Peer, call.Entry)
			t.Flush(call.Peer)
			continue
		case "abort":
			t.Abort(call.Peer, call.Group, comm.DecodeReason(0, call.Payload))
			continue
		case "attach":
			answer.Err = packErr(t.Attach(call.Group, puppetSink{s, call.Group}))
		case "detach":
			t.Detach(call.Group)
		case "counters":
			answer.Count = t.Counters(call.Peer)
		case "heard":
			answer.At = t.LastHeard(call.Peer)
		case "fail":
			t.Fail(errors.New(call.Text))
		case "close":
			go func() { // the others close at the same time, and calls go on
				answer.Err = packErr(t.Close())
				s.say(answer)
			}()
			continue
		}
		s.say(answer)
	}
}

type puppetServer struct {
	mu  sync.Mutex
	enc *gob.Encoder
}

func (s *puppetServer) say(w puppetWord) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.enc.Encode(w)
}

type puppetDone struct {
	s *puppetServer
	b []byte
}

func (d puppetDone) Complete(id uint64, err error) {
	w := puppetWord{N: id, What: "complete", Err: packErr(err)}
	if err == nil {
		w.Payload = d.b
	}
	d.s.say(w)
}

type puppetSink struct {
	s     *puppetServer
	group uint64
}

func (k puppetSink) Entered(from int, e comm.Entry) {
	k.s.say(puppetWord{What: "entered", Group: k.group, From: from, Entry: e})
}

func (k puppetSink) Aborted(from int, reason error) {
	k.s.say(puppetWord{What: "aborted", Group: k.group, From: from, Err: packErr(reason)})
}

func (k puppetSink) Lost(peer int, err error) {
	k.s.say(puppetWord{What: "lost", Group: k.group, From: peer, Err: packErr(err)})
}

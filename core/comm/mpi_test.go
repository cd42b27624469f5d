//go:build mpi

package comm_test

import (
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"starling/core/comm"
	"starling/core/comm/commtest"
)

// The conformance suite drives all ranks of a world from one process, and MPI has one rank in each. Under mpirun the process
// with MPI rank 0 runs the suite; for the transports of the other ranks it has puppets, which pass every call to the process in
// question over a socket, and back what it says. Between the processes is MPI itself.

const envPuppets = "STARLING_TEST_PUPPETS" // the folder of their sockets

const mpiProcesses = 6

// TestMPI starts the suite under a real mpirun.
func TestMPI(t *testing.T) {
	if os.Getenv(envPuppets) != "" {
		t.Skip("this is a process under mpirun")
	}
	if _, err := exec.LookPath("mpirun"); err != nil {
		t.Skip("no mpirun here")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "mpi")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, "mpirun", "--allow-run-as-root", "--oversubscribe", "--mca", "mpi_yield_when_idle", "1", "-np", strconv.Itoa(mpiProcesses),
		self, "-test.run=^TestUnderMpirun$", "-test.v")
	c.Env = append(os.Environ(), envPuppets+"="+dir)
	c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
	c.WaitDelay = 5 * time.Second
	out, err := c.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestUnderMpirun/suite/lists") {
		t.Fatalf("%v\n%s", err, out)
	}
}

// TestUnderMpirun is the suite in the process of MPI rank 0, and a puppet in the others.
func TestUnderMpirun(t *testing.T) {
	dir := os.Getenv(envPuppets)
	if dir == "" {
		t.Skip("only under mpirun; TestMPI starts it")
	}
	comm.KeepMPI()
	rank, size, err := comm.BeginMPI()
	if err != nil {
		t.Fatal(err)
	}
	if rank > 0 {
		err := servePuppet(filepath.Join(dir, strconv.Itoa(rank)))
		if e := comm.EndMPI(); e != nil || err != nil {
			fmt.Fprintln(os.Stderr, err, e)
			os.Exit(1)
		}
		os.Exit(0)
	}
	puppets := make([]*puppet, size)
	for r := 1; r < size; r++ {
		puppets[r] = newPuppet(t, filepath.Join(dir, strconv.Itoa(r)))
	}
	worlds := 0
	t.Run("suite", func(t *testing.T) {
		commtest.Run(t, func(t *testing.T, world int) []comm.Transport {
			worlds++
			addrs := make([]string, world)
			for r := range addrs {
				addrs[r] = fmt.Sprintf("unix:%s/w%d-%d", dir, worlds, r)
			}
			ts := make([]comm.Transport, world)
			var wg sync.WaitGroup
			for r := 1; r < world; r++ {
				wg.Go(func() { puppets[r].open(t, r, addrs); ts[r] = puppets[r] })
			}
			var err error
			if ts[0], err = openMPI(0, addrs); err != nil {
				t.Error(err)
			}
			wg.Wait()
			if t.Failed() {
				t.FailNow()
			}
			if world > 1 && !strings.HasPrefix(ts[0].String(), "MPI (Open MPI v") {
				t.Errorf("the transport is %s", ts[0])
			}
			return ts
		}, false) // what MPI adds to a payload is not ours to count
	})
	for _, p := range puppets[1:] {
		p.conn.Close()
		<-p.gone
	}
	if err := comm.EndMPI(); err != nil {
		t.Error(err)
	}
}

func openMPI(rank int, addrs []string) (comm.Transport, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	l, err := comm.Listen(ctx, addrs[rank])
	if err != nil {
		return nil, err
	}
	return comm.Connect(ctx, comm.MeshConfig{Identity: comm.Identity{Rank: rank, World: len(addrs), Host: fmt.Sprint("host ", rank)}, Addrs: addrs, Listener: l,
		Secret: []byte("a secret of sixteen bytes"), Share: comm.ShareMPI, Heartbeat: time.Minute})
}

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

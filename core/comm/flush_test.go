package comm

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// piped connects a world by pipes, whose ranks run on these hosts and give a sign of life every so often.
func piped(t *testing.T, hosts []string, every time.Duration) []Transport {
	t.Helper()
	world := len(hosts)
	conns := make([][]net.Conn, world)
	for r := range conns {
		conns[r] = make([]net.Conn, world)
		for p := range r {
			conns[r][p], conns[p][r] = net.Pipe()
		}
	}
	ts := make([]Transport, world)
	for r := range ts {
		x := newSocketTransport(r, conns[r], "pipes", every, time.Hour)
		copy(x.hosts, hosts)
		ts[r] = x
	}
	t.Cleanup(func() {
		done := make(chan struct{})
		for _, x := range ts {
			go func() {
				_ = x.Close()
				done <- struct{}{}
			}()
		}
		for range ts {
			<-done
		}
	})
	return ts
}

// announced waits until a group's member has announced its n-th collective to this one.
func announced(ctx context.Context, g *Group, m int, n uint64) error {
	for ctx.Err() == nil {
		g.mu.Lock()
		_, ok := g.entries[StreamCollective][m][n]
		g.mu.Unlock()
		if ok {
			return nil
		}
		time.Sleep(time.Millisecond)
	}
	return errors.New("it never came")
}

// TestHeartbeatBesideWhatWaits: what both sides have handed over and not set off does not keep the signs of life from going.
func TestHeartbeatBesideWhatWaits(t *testing.T) {
	ts := piped(t, []string{"a", "a"}, 5*time.Millisecond)
	g, err := NewGroup(ts[1], "data", []int{0, 1}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	for r, x := range ts { // and no Flush
		x.Enter(1-r, Entry{Group: g.id, Call: Call{Op: OpBarrier}})
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := announced(ctx, g, 0, 0); err != nil {
		t.Fatal(err)
	}
}

// TestSumsOverHostsAreAnnounced: who waits in sums over hosts has told members to which those send nothing.
func TestSumsOverHostsAreAnnounced(t *testing.T) {
	ts := piped(t, []string{"a", "a", "b", "b"}, time.Hour)
	red, err := NewReduction(4, Assign(4, 4))
	if err != nil {
		t.Fatal(err)
	}
	noErrors(t, onAll(t, ts, Options{}, func(ctx context.Context, g *Group) error {
		v := make([]float32, 300)
		c, err := g.PrepareSums("sums", red, [][]float32{v}, func(own [][]float32, sum func([]float32) error) error { return sum(v) })
		if err != nil {
			return err
		}
		if g.Rank() == 3 {
			if err := announced(ctx, g, 0, 0); err != nil {
				return err
			}
		}
		return c.Run(ctx)
	}))
}

// farewell notes what a peer says before it goes.
type farewell struct {
	aborts  int
	payload []byte
}

func (*farewell) heard()                   {}
func (*farewell) idle()                    {}
func (*farewell) filled(message, error)    {}
func (f *farewell) aborted(uint64, []byte) { f.aborts++ }
func (*farewell) entered(Entry) error      { return nil }
func (*farewell) offered(Key, int) error   { return nil }
func (f *farewell) memory(_ Key, n int) (message, error) {
	f.payload = make([]byte, n)
	return message{buf: f.payload}, nil
}

// TestGoodbyeIsLast: what is queued while the rest of other frames is still to be written goes before the goodbye.
func TestGoodbyeIsLast(t *testing.T) {
	ours, theirs := net.Pipe()
	x := newSocketTransport(0, []net.Conn{nil, ours}, "a pipe", time.Hour, time.Hour)
	p := x.peers[1]
	done := &run{wake: make(chan struct{}, 1)}
	p.mu.Lock() // as flush leaves it where the connection takes nothing
	p.busy, p.handed = true, true
	p.w.rest = append(net.Buffers(p.w.parts[:0]), appendHeader(nil, header{kind: framePing}))
	p.control = appendHeader(p.control, header{frameAbort, Key{}, 2})
	p.control = append(p.control, "{}"...)
	p.ready = append(p.ready, outgoing{Key{}, message{[]byte("payload"), done, 0}})
	p.bye = true
	p.poke()
	p.mu.Unlock()
	var f farewell
	if err := readFrames(bufio.NewReader(theirs), &f); err != nil {
		t.Fatal(err)
	}
	if f.aborts != 1 || string(f.payload) != "payload" {
		t.Errorf("%d aborts and payload %q came before the goodbye, want one and %q", f.aborts, f.payload, "payload")
	}
	if !done.hasEvent() {
		t.Error("the payload was not completed")
	}
	go func() { _, _ = io.Copy(io.Discard, theirs) }()
	_, _ = theirs.Write(appendHeader(nil, header{kind: frameBye}))
	if err := x.Close(); err != nil {
		t.Error(err)
	}
	_ = theirs.Close()
}

// stuck takes nothing any more once it is full, whatever the deadline, until it is closed.
type stuck struct {
	net.Conn
	full   atomic.Bool
	once   sync.Once
	closed chan struct{}
}

func (c *stuck) Write(b []byte) (int, error) {
	if !c.full.Load() {
		return c.Conn.Write(b)
	}
	<-c.closed
	return 0, net.ErrClosed
}

func (c *stuck) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// encrypted is a connection's two ends, of ranks 0 and 1, with TLS over it.
func encrypted(t *testing.T, ends [2]net.Conn) [2]net.Conn {
	t.Helper()
	a, err := NewAuthority()
	if err != nil {
		t.Fatal(err)
	}
	errs := make(chan error)
	for r := range ends {
		go func() {
			c, err := a.Issue(r)
			if err == nil {
				ends[r], err = Secure(ends[r], c, []int{1, -1}[r])
			}
			errs <- err
		}()
	}
	if err := errors.Join(<-errs, <-errs); err != nil {
		t.Fatal(err)
	}
	return ends
}

// TestEncryptedInPieces: however much is sent at once, little of it is encrypted at a time.
func TestEncryptedInPieces(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for name, open := range map[string]func() (a, b net.Conn, err error){
		"a pipe": func() (a, b net.Conn, err error) {
			a, b = net.Pipe()
			return a, b, nil
		},
		"TCP": func() (a, b net.Conn, err error) {
			if a, err = net.Dial("tcp", l.Addr().String()); err == nil {
				b, err = l.Accept()
			}
			return a, b, err
		},
	} {
		var ends [2]net.Conn
		if ends[0], ends[1], err = open(); err != nil {
			t.Fatal(err)
		}
		ends = encrypted(t, ends)
		ts := []Transport{
			newSocketTransport(0, []net.Conn{nil, ends[0]}, name, time.Hour, time.Hour),
			newSocketTransport(1, []net.Conn{ends[1], nil}, name, time.Hour, time.Hour),
		}
		noErrors(t, onAll(t, ts, Options{}, func(ctx context.Context, g *Group) error {
			for _, n := range []int{1, sealedMost - 1, sealedMost, 8<<20 + 3} {
				b := make([]byte, n)
				for i := range b {
					b[i] = byte(i*7>>3) * byte(1-g.Rank())
				}
				pass := g.Send
				if g.Rank() == 1 {
					pass = g.Recv
				}
				if err := pass(ctx, "bytes", 1-g.Rank(), b); err != nil {
					return err
				}
				for i := range b {
					if b[i] != byte(i*7>>3) {
						return fmt.Errorf("byte %d of %d is %d", i, n, b[i])
					}
				}
			}
			return nil
		}))
		closing := make(chan error)
		for _, x := range ts {
			go func() { closing <- x.Close() }()
		}
		if err := errors.Join(<-closing, <-closing); err != nil {
			t.Error(err)
		}
		p := ts[0].(*socketTransport).peers[1]
		if n := cap(p.w.seal.out); n > 2*sealedMost {
			t.Errorf("%s: %d bytes are kept of what was encrypted, want %d at most", name, n, 2*sealedMost)
		}
	}
}

// TestGivingUpDoesNotWait: an encrypted connection that takes nothing is given up without a word to the other side.
func TestGivingUpDoesNotWait(t *testing.T) {
	below := &stuck{closed: make(chan struct{})}
	var ends [2]net.Conn
	below.Conn, ends[1] = net.Pipe()
	ends[0] = below
	ends = encrypted(t, ends)
	go func() { _, _ = io.Copy(io.Discard, ends[1]) }()
	x := newSocketTransport(0, []net.Conn{nil, ends[0]}, "a pipe", time.Hour, time.Hour)
	below.full.Store(true)
	over := make(chan struct{})
	go func() {
		x.peers[1].giveUp(errors.New("it is silent"))
		close(over)
	}()
	select {
	case <-over:
	case <-time.After(10 * time.Second):
		t.Error("it waits for the other side to take an alert")
		_ = below.Close()
		<-over
	}
	if err := x.Close(); err != nil {
		t.Error(err)
	}
	_ = ends[1].Close()
}

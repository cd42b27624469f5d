package commtest

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"starling/core/comm"
)

// prompt sets off each message and notice by itself, for tests that hand them over singly.
type prompt struct{ comm.Transport }

func (p prompt) Send(to int, key comm.Key, payload []byte, done comm.Completer, id uint64) {
	p.Transport.Send(to, key, payload, done, id)
	p.Flush(to)
}

func (p prompt) Recv(from int, key comm.Key, buf []byte, done comm.Completer, id uint64) {
	p.Transport.Recv(from, key, buf, done, id)
	p.Flush(from)
}

func (p prompt) Enter(to int, e comm.Entry) {
	p.Transport.Enter(to, e)
	p.Flush(to)
}

// waiter is a Completer that hands completions to a test.
type waiter chan completion

type completion struct {
	id  uint64
	err error
}

func (w waiter) Complete(id uint64, err error) { w <- completion{id, err} }

func (w waiter) next(t *testing.T) completion {
	t.Helper()
	select {
	case c := <-w:
		return c
	case <-time.After(10 * time.Second):
		t.Fatal("no completion within 10 s")
		return completion{}
	}
}

func message(t *testing.T, ts []comm.Transport) {
	for i, offerFirst := range []bool{true, false} {
		key := comm.Key{Group: 7, Seq: uint64(i), Index: 3}
		sent, got := make(waiter, 1), make(waiter, 1)
		payload, buf := bytes.Repeat([]byte("starling"), 100_000), make([]byte, 800_000)
		send := func() { ts[0].Send(1, key, payload, sent, 11) }
		recv := func() { ts[1].Recv(0, key, buf, got, 12) }
		if offerFirst {
			recv()
			time.Sleep(10 * time.Millisecond)
			send()
		} else {
			send()
			time.Sleep(10 * time.Millisecond)
			recv()
		}
		if c := sent.next(t); c.err != nil || c.id != 11 {
			t.Fatalf("send completed with %v", c)
		}
		if c := got.next(t); c.err != nil || c.id != 12 {
			t.Fatalf("receive completed with %v", c)
		}
		if !bytes.Equal(buf, payload) {
			t.Fatal("other bytes came than were sent")
		}
	}
}

func lengths(t *testing.T, ts []comm.Transport) {
	key := comm.Key{Group: 7}
	both := make(waiter, 2)
	ts[0].Send(1, key, make([]byte, 8), both, 1)
	ts[1].Recv(0, key, make([]byte, 12), both, 2)
	if c := both.next(t); c.err == nil {
		t.Fatalf("8 bytes were accepted where 12 were expected")
	}
}

func empty(t *testing.T, ts []comm.Transport) {
	both := make(waiter, 2)
	ts[0].Send(1, comm.Key{}, nil, both, 1)
	ts[1].Recv(0, comm.Key{}, nil, both, 2)
	for range 2 {
		if c := both.next(t); c.err != nil {
			t.Fatal(c.err)
		}
	}
}

// many exchanges messages between all pairs at once, with keys that come in another order on each side.
func many(t *testing.T, ts []comm.Transport) {
	const n = 200
	var wg sync.WaitGroup
	for a := range ts {
		for b := range ts {
			if a == b {
				continue
			}
			done := make(waiter, 2*n)
			bufs := make([][]byte, n)
			wg.Go(func() {
				for i := range n {
					ts[a].Send(b, comm.Key{Group: 1, Seq: uint64(i)}, bytes.Repeat([]byte{byte(i)}, 10*i), done, 0)
				}
			})
			wg.Go(func() {
				for i := n - 1; i >= 0; i-- {
					bufs[i] = make([]byte, 10*i)
					ts[b].Recv(a, comm.Key{Group: 1, Seq: uint64(i)}, bufs[i], done, 0)
				}
			})
			wg.Go(func() {
				for range 2 * n {
					if c := <-done; c.err != nil {
						t.Error(c.err)
					}
				}
				for i, b := range bufs {
					if !bytes.Equal(b, bytes.Repeat([]byte{byte(i)}, 10*i)) {
						t.Errorf("message %d has other bytes", i)
					}
				}
			})
		}
	}
	wg.Wait()
}

func address(t *testing.T, ts []comm.Transport) {
	done := make(waiter, 4)
	for _, to := range []int{0, -1, 2} {
		ts[0].Send(to, comm.Key{}, nil, done, 0)
		if c := done.next(t); c.err == nil {
			t.Errorf("rank 0 of 2 could send to rank %d", to)
		}
		ts[0].Recv(to, comm.Key{}, nil, done, 0)
		if c := done.next(t); c.err == nil {
			t.Errorf("rank 0 of 2 could receive from rank %d", to)
		}
	}
}

// recorder is a Sink that hands notices to a test.
type recorder chan any

func (r recorder) Entered(from int, e comm.Entry) { r <- e }
func (r recorder) Aborted(from int, reason error) { r <- reason }
func (r recorder) Lost(peer int, err error)       { r <- err }

func (r recorder) next(t *testing.T) any {
	t.Helper()
	select {
	case v := <-r:
		return v
	case <-time.After(10 * time.Second):
		t.Fatal("no notice within 10 s")
		return nil
	}
}

func notices(t *testing.T, ts []comm.Transport) {
	entry := func(seq uint64) comm.Entry {
		return comm.Entry{Group: 5, Seq: seq, Stream: comm.StreamCollective, Call: comm.Call{Op: comm.OpBroadcast, Bytes: -1, Detail: 1 << 63, Label: "weights – größe"}}
	}
	ts[0].Enter(1, entry(0)) // before rank 1 has attached the group
	early := make(recorder, 16)
	time.Sleep(10 * time.Millisecond)
	if err := ts[1].Attach(5, early); err != nil {
		t.Fatal(err)
	}
	ts[0].Enter(1, entry(1))
	for seq := range uint64(2) {
		if got := early.next(t); got != entry(seq) {
			t.Fatalf("notice %+v, want %+v", got, entry(seq))
		}
	}
	if err := ts[1].Attach(5, early); err == nil {
		t.Error("a group could be attached twice")
	}
	ts[0].Abort(1, 5, errors.New("out of cheese"))
	var abort *comm.AbortError
	if err, _ := early.next(t).(error); !errors.As(err, &abort) || abort.Rank != 0 || abort.Reason != "out of cheese" {
		t.Errorf("abort came as %v", err)
	}
	stall := &comm.StallError{Group: "data", Op: "all_reduce", Seq: 3, Label: "bucket 1", Reporter: 0, Missing: []int{1}, After: time.Second}
	ts[0].Abort(1, 5, fmt.Errorf("wrapped: %w", stall))
	var same *comm.StallError
	if err, _ := early.next(t).(error); !errors.As(err, &same) || same.Error() != stall.Error() {
		t.Errorf("a stall came as %v", err)
	}
}

func closing(t *testing.T, ts []comm.Transport) {
	seen := make(recorder, 16)
	if err := ts[0].Attach(1, seen); err != nil {
		t.Fatal(err)
	}
	open := make(waiter, 4)
	ts[0].Recv(1, comm.Key{Group: 1}, make([]byte, 4), open, 1)
	ts[0].Send(1, comm.Key{Group: 1}, make([]byte, 4), open, 2)
	mine := make(waiter, 4)
	ts[1].Recv(0, comm.Key{Group: 9}, make([]byte, 4), mine, 3)
	if err := ts[1].Close(); err != nil {
		t.Fatal(err)
	}
	if c := mine.next(t); c.err == nil {
		t.Error("a receive outlived its transport")
	}
	for range 2 {
		var lost *comm.PeerError
		if c := open.next(t); !errors.As(c.err, &lost) || lost.Rank != 1 || !errors.Is(lost, comm.ErrLeft) {
			t.Errorf("a message with a rank that left completed with %v", c.err)
		}
	}
	if err, _ := seen.next(t).(error); !errors.Is(err, comm.ErrLeft) {
		t.Errorf("the group heard %v", err)
	}
	ts[0].Send(1, comm.Key{Group: 2}, nil, open, 5)
	if c := open.next(t); !errors.Is(c.err, comm.ErrLeft) {
		t.Errorf("a send after the peer left completed with %v", c.err)
	}
	ts[0].Send(2, comm.Key{Group: 2}, []byte{1}, open, 6)
	ts[2].Recv(0, comm.Key{Group: 2}, make([]byte, 1), open, 7)
	for range 2 {
		if c := open.next(t); c.err != nil {
			t.Errorf("the other ranks suffered: %v", c.err)
		}
	}
}

func failing(t *testing.T, ts []comm.Transport) {
	sinks := []recorder{make(recorder, 16), make(recorder, 16), make(recorder, 16)}
	for r := range 2 {
		if err := ts[r].Attach(1, sinks[r]); err != nil {
			t.Fatal(err)
		}
	}
	ts[1].Fail(errors.New("no data"))
	time.Sleep(10 * time.Millisecond)
	if err := ts[2].Attach(77, sinks[2]); err != nil { // made only after the failure
		t.Fatal(err)
	}
	for r := range sinks {
		err, _ := sinks[r].next(t).(error)
		if err == nil || r != 1 && err.Error() != "comm: rank 1 stopped: no data" {
			t.Errorf("rank %d heard %v", r, err)
		}
	}
}

func counters(t *testing.T, ts []comm.Transport, framed bool) {
	done := make(waiter, 2)
	const n = 1000
	ts[0].Send(1, comm.Key{}, make([]byte, n), done, 0)
	ts[1].Recv(0, comm.Key{}, make([]byte, n), done, 0)
	for range 2 {
		if c := done.next(t); c.err != nil {
			t.Fatal(c.err)
		}
	}
	a, b := ts[0].Counters(1), ts[1].Counters(0)
	if a.PayloadSent != n || b.PayloadReceived != n || a.PayloadReceived != 0 || b.PayloadSent != 0 {
		t.Errorf("%d bytes of payload are counted as %+v and %+v", n, a, b)
	}
	if framed != (a.WireSent > n) || framed != (b.WireReceived > n) {
		t.Errorf("wire bytes are counted as %+v and %+v", a, b)
	}
	if time.Since(ts[0].LastHeard(1)) > 5*time.Second {
		t.Error("rank 1 was not heard")
	}
}

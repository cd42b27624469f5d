// Package commtest is the conformance suite of core/comm: what every transport must do, and what collectives over it must
// give. A transport runs it with Run in its own tests.
//
// It knows nothing of how a transport works, only how to get one for every rank of a world.
package commtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"starling/core/comm"
)

// Make returns connected transports for a world, one per rank, which the suite closes.
type Make func(t *testing.T, world int) []comm.Transport

// Run runs the whole suite. framed says that the transport has a wire, whose counters exceed those of the payload.
func Run(t *testing.T, open Make, framed bool) {
	with := func(world int, f func(t *testing.T, ts []comm.Transport)) func(*testing.T) {
		return func(t *testing.T) {
			ts := open(t, world)
			t.Cleanup(func() { CloseAll(t, ts) })
			f(t, ts)
		}
	}
	single := func(world int, f func(t *testing.T, ts []comm.Transport)) func(*testing.T) {
		return with(world, func(t *testing.T, ts []comm.Transport) {
			for r := range ts {
				ts[r] = prompt{ts[r]}
			}
			f(t, ts)
		})
	}
	t.Run("message", single(2, message))
	t.Run("lengths", single(2, lengths))
	t.Run("empty", single(2, empty))
	t.Run("many", single(3, many))
	t.Run("address", single(2, address))
	t.Run("notices", single(2, notices))
	t.Run("close", single(3, closing))
	t.Run("fail", single(3, failing))
	t.Run("counters", single(2, func(t *testing.T, ts []comm.Transport) { counters(t, ts, framed) }))
	for _, world := range []int{1, 2, 3, 5} {
		t.Run(fmt.Sprintf("collectives%d", world), with(world, collectives))
		t.Run(fmt.Sprintf("exchanges%d", world), with(world, exchanges))
		t.Run(fmt.Sprintf("compressed%d", world), with(world, compressedSums))
		t.Run(fmt.Sprintf("elements%d", world), with(world, elements))
		t.Run(fmt.Sprintf("typed%d", world), with(world, typedMoves))
	}
	t.Run("types", with(3, types))
	t.Run("lists", with(3, lists))
	t.Run("axes", with(6, axes))
	t.Run("axes at work at once", with(6, axesAtWork))
	t.Run("pairs", with(3, pairs))
	t.Run("groups", with(3, groups))
	t.Run("bytes", with(4, sentBytes))
}

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

// CloseAll closes the transports at once, as the ranks of a job do.
func CloseAll(t *testing.T, ts []comm.Transport) {
	var wg sync.WaitGroup
	for _, x := range ts {
		wg.Go(func() {
			if err := x.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
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

// onAll runs f on every rank of a group at once.
func onAll(t *testing.T, ts []comm.Transport, ranks []int, f func(ctx context.Context, g *comm.Group) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	for _, r := range ranks {
		wg.Go(func() {
			g, err := comm.NewGroup(ts[r], fmt.Sprint(t.Name(), ranks), ranks, comm.Options{PieceBytes: 64})
			if err != nil {
				t.Error(err)
				return
			}
			if err := f(ctx, g); err != nil {
				t.Errorf("rank %d: %v", r, err)
			}
			if err := g.Barrier(ctx, "end"); err != nil {
				t.Errorf("rank %d: %v", r, err)
			}
			if err := g.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func allRanks(ts []comm.Transport) []int {
	ranks := make([]int, len(ts))
	for i := range ranks {
		ranks[i] = i
	}
	return ranks
}

func collectives(t *testing.T, ts []comm.Transport) {
	onAll(t, ts, allRanks(ts), func(ctx context.Context, g *comm.Group) error {
		for _, n := range []int{0, 1, 15, 64, 1000} {
			for root := range g.Size() {
				b := make([]float32, n)
				if g.Rank() == root {
					fill(b, root)
				}
				if err := g.BroadcastFloat32(ctx, "weights", root, b); err != nil {
					return err
				}
				if err := check(b, func(i int) float32 { return value(i, root) }); err != nil {
					return fmt.Errorf("broadcast from %d: %w", root, err)
				}
			}

			var sum func(i int) float32 = func(i int) (s float32) {
				for r := range g.Size() {
					s += value(i, r)
				}
				return s
			}
			b := make([]float32, n)
			fill(b, g.Rank())
			if err := g.AllReduce(ctx, "gradient", b); err != nil {
				return err
			}
			if err := check(b, sum); err != nil {
				return fmt.Errorf("all-reduce: %w", err)
			}

			chunks := comm.Chunks(n, g.Size(), 4)
			fill(b, g.Rank())
			if err := g.ReduceScatter(ctx, "gradient", chunks, b); err != nil {
				return err
			}
			c := chunks[g.Rank()]
			if err := check(b[c.Lo:c.Hi], func(i int) float32 { return sum(i + c.Lo) }); err != nil {
				return fmt.Errorf("reduce-scatter: %w", err)
			}
			if err := g.AllGather(ctx, "parameters", chunks, b); err != nil {
				return err
			}
			if err := check(b, sum); err != nil {
				return fmt.Errorf("all-gather: %w", err)
			}
		}

		mine := bytes.Repeat([]byte{byte(g.Rank())}, 100*g.Rank())
		all, err := g.AllGatherBytes(ctx, "metrics", mine)
		if err != nil {
			return err
		}
		for r, b := range all {
			if !bytes.Equal(b, bytes.Repeat([]byte{byte(r)}, 100*r)) {
				return fmt.Errorf("all-gather of bytes: rank %d's are %v", r, b)
			}
		}
		values, err := g.AllGatherFloat64(ctx, "loss", []float64{float64(g.Rank()) / 3})
		if err != nil {
			return err
		}
		tokens, err := g.AllGatherInt64(ctx, "tokens", []int64{int64(-g.Rank())})
		if err != nil {
			return err
		}
		for r := range g.Size() {
			if values[r][0] != float64(r)/3 || tokens[r][0] != int64(-r) {
				return fmt.Errorf("metrics of rank %d came as %v and %v", r, values[r], tokens[r])
			}
		}
		for root := range g.Size() {
			got, err := g.Gather(ctx, "report", root, mine)
			if err != nil {
				return err
			}
			if (got != nil) != (g.Rank() == root) {
				return fmt.Errorf("gather to %d gave rank %d %d parts", root, g.Rank(), len(got))
			}
			for r, b := range got {
				if len(b) != 100*r {
					return fmt.Errorf("gather: rank %d's part has %d bytes", r, len(b))
				}
			}
		}
		return nil
	})
}

func value(i, rank int) float32 { return float32((i*7+rank*13)%101) - 50 }

func fill(b []float32, rank int) {
	for i := range b {
		b[i] = value(i, rank)
	}
}

func check(b []float32, want func(i int) float32) error {
	for i, v := range b {
		if v != want(i) {
			return fmt.Errorf("element %d of %d is %v, want %v", i, len(b), v, want(i))
		}
	}
	return nil
}

// pairs exchanges messages around a ring, everyone sending before receiving, several in flight.
func pairs(t *testing.T, ts []comm.Transport) {
	onAll(t, ts, allRanks(ts), func(ctx context.Context, g *comm.Group) error {
		next, last := (g.Rank()+1)%g.Size(), (g.Rank()+g.Size()-1)%g.Size()
		var handles []*comm.Handle
		in := make([][]float32, 5)
		for i := range in {
			out := make([]float32, 50+i)
			fill(out, g.Rank())
			handles = append(handles, g.StartSend("activation", next, comm.Bytes32(out)))
		}
		for i := range in {
			in[i] = make([]float32, 50+i)
			handles = append(handles, g.StartRecv("activation", last, comm.Bytes32(in[i])))
		}
		for _, h := range handles {
			if err := h.Wait(ctx); err != nil {
				return err
			}
		}
		for _, b := range in {
			if err := check(b, func(i int) float32 { return value(i, last) }); err != nil {
				return err
			}
		}
		return nil
	})
}

// groups runs overlapping groups whose collectives are started in another order on each rank.
func groups(t *testing.T, ts []comm.Transport) {
	var wg sync.WaitGroup
	for _, ranks := range [][]int{{0, 1, 2}, {2, 0}, {1, 2}} {
		wg.Go(func() {
			onAll(t, ts, ranks, func(ctx context.Context, g *comm.Group) error {
				for range 20 {
					b := make([]float32, 500)
					fill(b, g.Rank())
					if err := g.AllReduce(ctx, "x", b); err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
	wg.Wait()
}

// sentBytes checks the price of an all-reduce: 2·(N-1)/N of the vector leave each rank, counted by the transport.
func sentBytes(t *testing.T, ts []comm.Transport) {
	const n = 4 * comm.ChunkAlign * 33 * 64 // small vectors may be sent whole, in fewer steps
	red, err := comm.NewReduction(16, comm.Assign(16, len(ts)))
	if err != nil {
		t.Fatal(err)
	}
	onAll(t, ts, allRanks(ts), func(ctx context.Context, g *comm.Group) error {
		b := make([]float32, n)
		before := comm.Sum(ts[g.Rank()])
		if err := g.AllReduceTree(ctx, "gradient", red, [][]float32{b}, b); err != nil {
			return err
		}
		// What others fetch from this rank has left it once they have it.
		if err := g.Barrier(ctx, "counted"); err != nil {
			return err
		}
		after := comm.Sum(ts[g.Rank()])
		want := int64(2 * (g.Size() - 1) * n * 4 / g.Size())
		if got := after.PayloadSent - before.PayloadSent; got != want {
			return fmt.Errorf("sent %d bytes of a gradient of %d, want %d", got, 4*n, want)
		}
		if got := after.PayloadReceived - before.PayloadReceived; got != want {
			return fmt.Errorf("received %d bytes of a gradient of %d, want %d", got, 4*n, want)
		}
		if predicted := red.SentBytes(g.Rank(), comm.Chunks(n, g.Size(), comm.ChunkAlign)); int64(predicted) != want {
			return fmt.Errorf("SentBytes predicts %d, want %d", predicted, want)
		}
		return nil
	})
}

package commtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"starling/core/comm"
)

// typedMoves checks the collectives that only move elements, of every type: several are under way at once.
func typedMoves(t *testing.T, ts []comm.Transport) {
	onAll(t, ts, allRanks(ts), func(ctx context.Context, g *comm.Group) error {
		for e := comm.Untyped; e <= comm.Int64; e++ {
			for _, n := range []int{0, 1, 3, 301} {
				m := &mover{g: g, e: e, n: n}
				m.all()
				if err := m.finish(ctx); err != nil {
					return fmt.Errorf("%v, %d elements: %w", e, n, err)
				}
			}
		}
		return nil
	})
}

// mover collects what was started and what is to come of it.
type mover struct {
	g       *comm.Group
	e       comm.Element
	n       int
	handles []*comm.Handle
	checks  []func() error
	err     error
}

// pattern is n elements that rank from has for rank to.
func (m *mover) pattern(from, to, n int) []byte {
	b := make([]byte, n*m.e.Size())
	for i := range b {
		b[i] = byte(i*31 + from*7 + to*101 + 1)
	}
	return b
}

func (m *mover) start(c *comm.Collective, err error) {
	if err != nil {
		m.err = errors.Join(m.err, err)
		return
	}
	m.handles = append(m.handles, c.Start())
}

func (m *mover) expect(what string, got, want []byte) {
	m.checks = append(m.checks, func() error {
		if !bytes.Equal(got, want) {
			return fmt.Errorf("%s gave other elements", what)
		}
		return nil
	})
}

func (m *mover) finish(ctx context.Context) error {
	for _, h := range m.handles {
		m.err = errors.Join(m.err, h.Wait(ctx))
	}
	if m.err != nil {
		return m.err
	}
	for _, c := range m.checks {
		if err := c(); err != nil {
			return err
		}
	}
	return nil
}

func (m *mover) all() {
	g, e, me := m.g, m.e, m.g.Rank()
	// A vector of which every rank has a chunk, alone and in a list.
	chunks := unevenChunks(m.n, g.Size())
	whole, list := m.gathered(chunks), [][]byte{m.gathered(chunks), m.gathered(unevenChunks(m.n+2, g.Size())), nil}
	lists := [][]comm.Range{chunks, unevenChunks(m.n+2, g.Size()), unevenChunks(0, g.Size())}
	m.start(g.PrepareAllGatherOf("parameters", chunks, whole, e))
	m.start(g.PrepareAllGatherListOf("parameters", lists, list, e))
	m.expect("all-gather", whole, m.pattern(0, 0, m.n))
	m.expect("all-gather of a list", list[0], m.pattern(0, 0, m.n))
	m.expect("all-gather of a list", list[1], m.pattern(0, 0, m.n+2))
	for root := range g.Size() {
		buf, other := make([]byte, m.n*e.Size()), make([]byte, (m.n+1)*e.Size())
		if me == root {
			copy(buf, m.pattern(root, 0, m.n))
			copy(other, m.pattern(root, 1, m.n+1))
		}
		first, second := bytes.Clone(buf), bytes.Clone(other)
		m.start(g.PrepareBroadcastOf("weights", root, buf, e))
		m.expect("broadcast", buf, m.pattern(root, 0, m.n))
		m.start(g.PrepareBroadcastListOf("weights", root, [][]byte{first, nil, second}, e))
		m.expect("broadcast of a list", first, m.pattern(root, 0, m.n))
		m.expect("broadcast of a list", second, m.pattern(root, 1, m.n+1))

		// The part between root and each rank has a length of its own.
		ranges, shards, n := []comm.Range(nil), []byte(nil), 0
		for r := range g.Size() {
			ranges = append(ranges, comm.Range{Lo: n, Hi: n + m.length(root, r)})
			n = ranges[r].Hi
			shards = append(shards, m.pattern(root, r, m.length(root, r))...)
		}
		mine, back := make([]byte, m.length(root, me)*e.Size()), make([]byte, n*e.Size())
		send, own := shards, ranges
		if me != root {
			send, own, back = nil, nil, nil
		}
		m.start(g.PrepareScatterOf("shards", root, own, send, mine, e))
		m.expect("scatter", mine, m.pattern(root, me, m.length(root, me)))
		m.start(g.PrepareGatherOf("shards", root, m.pattern(root, me, m.length(root, me)), own, back, e))
		if me == root {
			m.expect("gather", back, shards)
		}
	}
	var sends, recvs []comm.Range
	var send, want []byte
	out, in := 0, 0
	for r := range g.Size() {
		sends = append(sends, comm.Range{Lo: out, Hi: out + m.length(me, r)})
		recvs = append(recvs, comm.Range{Lo: in, Hi: in + m.length(r, me)})
		out, in = sends[r].Hi, recvs[r].Hi
		send, want = append(send, m.pattern(me, r, m.length(me, r))...), append(want, m.pattern(r, me, m.length(r, me))...)
	}
	recv := make([]byte, len(want))
	m.start(g.PrepareAllToAllOf("tokens", sends, send, recvs, recv, e))
	m.expect("all-to-all", recv, want)
	if g.Size() > 1 {
		next, last := (me+1)%g.Size(), (me+g.Size()-1)%g.Size()
		got := make([]byte, m.n*e.Size())
		m.handles = append(m.handles, g.StartSendOf("activation", next, m.pattern(me, next, m.n), e), g.StartRecvOf("activation", last, got, e))
		m.expect("send and receive", got, m.pattern(last, me, m.n))
	}
}

// length is how many elements rank from has for rank to.
func (m *mover) length(from, to int) int { return m.n * ((from*3 + to*5) % 4) / 2 }

// gathered is a vector of which only this rank's chunk is there.
func (m *mover) gathered(chunks []comm.Range) []byte {
	n := chunks[len(chunks)-1].Hi
	b, own := make([]byte, n*m.e.Size()), chunks[m.g.Rank()]
	copy(slice(b, m.e, own), slice(m.pattern(0, 0, n), m.e, own))
	return b
}

// types checks that ranks that take a vector for elements of different types, or combine them in different ways, all stop with
// one report that names both, and that the flight recorder names what a rank had entered.
func types(t *testing.T, ts []comm.Transport) {
	const n = 24 // bytes
	one := make([]comm.Range, len(ts))
	for m := range one {
		one[m] = comm.Range{Lo: m, Hi: m + 1}
	}
	chunks := func(g *comm.Group, e comm.Element) []comm.Range { return comm.Chunks(n/e.Size(), g.Size(), 1) }
	ops := []struct {
		name string
		do   func(g *comm.Group, buf []byte, e comm.Element, how comm.Combine) (*comm.Collective, error)
	}{
		{"all_reduce", func(g *comm.Group, buf []byte, e comm.Element, how comm.Combine) (*comm.Collective, error) {
			return g.PrepareAllReduceOf("x", buf, e, how)
		}},
		{"reduce_scatter", func(g *comm.Group, buf []byte, e comm.Element, how comm.Combine) (*comm.Collective, error) {
			return g.PrepareReduceScatterOf("x", chunks(g, e), buf, e, how)
		}},
		{"all_reduce", func(g *comm.Group, buf []byte, e comm.Element, how comm.Combine) (*comm.Collective, error) {
			return g.PrepareAllReduceListOf("x", [][]byte{buf[:8], buf[8:]}, e, how)
		}},
		{"all_gather", func(g *comm.Group, buf []byte, e comm.Element, _ comm.Combine) (*comm.Collective, error) {
			return g.PrepareAllGatherOf("x", chunks(g, e), buf, e)
		}},
		{"broadcast", func(g *comm.Group, buf []byte, e comm.Element, _ comm.Combine) (*comm.Collective, error) {
			return g.PrepareBroadcastOf("x", 0, buf, e)
		}},
		{"all_to_all", func(g *comm.Group, buf []byte, e comm.Element, _ comm.Combine) (*comm.Collective, error) {
			return g.PrepareAllToAllOf("x", one, buf, one, make([]byte, n), e)
		}},
		{"scatter", func(g *comm.Group, buf []byte, e comm.Element, _ comm.Combine) (*comm.Collective, error) {
			return g.PrepareScatterOf("x", 0, one, buf, make([]byte, e.Size()), e)
		}},
		{"gather", func(g *comm.Group, buf []byte, e comm.Element, _ comm.Combine) (*comm.Collective, error) {
			return g.PrepareGatherOf("x", 0, make([]byte, e.Size()), one, buf, e)
		}},
	}
	for i, op := range ops {
		for _, c := range []struct {
			e    comm.Element
			how  comm.Combine
			want string
		}{{comm.Int64, comm.CombineMax, "of int64"}, {comm.BFloat16, comm.CombineMax, "of bfloat16"}, {comm.Float16, comm.CombineMin, "of float16 (min)"}} {
			if c.how == comm.CombineMin && i >= 3 {
				continue // it combines nothing
			}
			name := fmt.Sprint(t.Name(), i, c)
			records := make([]*comm.Recorder, len(ts))
			errs := failAll(t, ts, name, records, func(g *comm.Group) (*comm.Collective, error) {
				if g.Rank() == 1 {
					return op.do(g, make([]byte, n), c.e, c.how)
				}
				return op.do(g, make([]byte, n), comm.Float16, comm.CombineMax)
			})
			for r, err := range errs {
				var m *comm.MismatchError
				if !errors.As(err, &m) || err.Error() != errs[0].Error() {
					t.Fatalf("%s, rank %d: %v; rank 0: %v", op.name, r, err, errs[0])
				}
				usual := fmt.Sprintf("ranks 0, 2 entered %s \"x\"", op.name)
				if text := err.Error(); !strings.Contains(text, "rank 1 entered "+op.name) || !strings.Contains(text, c.want) || !strings.Contains(text, usual) || !strings.Contains(text, "of float16") {
					t.Errorf("%s, rank %d: %v, want %q", op.name, r, err, c.want)
				}
				var b strings.Builder
				want := "of float16"
				if r == 1 {
					want = c.want
				}
				if _, err := records[r].WriteTo(&b); err != nil || !strings.Contains(b.String(), want) {
					t.Errorf("%s, rank %d: %q is missing from what was recorded: %s", op.name, r, want, b.String())
				}
			}
		}
	}
	typesOfPairs(t, ts)
	abortedElements(t, ts)
}

// failAll starts a collective on every rank of a group and returns its errors.
func failAll(t *testing.T, ts []comm.Transport, name string, records []*comm.Recorder, prepare func(g *comm.Group) (*comm.Collective, error)) []error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	errs := make([]error, len(ts))
	groups := make([]*comm.Group, len(ts))
	var wg sync.WaitGroup
	for r, x := range ts {
		records[r] = comm.NewRecorder()
		g, err := comm.NewGroup(x, name, allRanks(ts), comm.Options{Recorder: records[r]})
		if err != nil {
			t.Fatal(err)
		}
		groups[r] = g
		wg.Go(func() {
			c, err := prepare(g)
			if err == nil {
				err = c.Start().Wait(ctx)
			}
			if err == nil { // it may have what it needs before it hears what the others entered
				err = g.Barrier(ctx, "end")
			}
			errs[r] = err
		})
	}
	wg.Wait()
	for _, g := range groups {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	}
	return errs
}

// typesOfPairs checks the same for a message between two ranks.
func typesOfPairs(t *testing.T, ts []comm.Transport) {
	onPair := make([]error, 2)
	var wg sync.WaitGroup
	var groups [2]*comm.Group
	for r := range groups {
		g, err := comm.NewGroup(ts[r], t.Name()+" pair", []int{0, 1}, comm.Options{})
		if err != nil {
			t.Fatal(err)
		}
		groups[r] = g
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	wg.Go(func() { onPair[0] = groups[0].StartSendOf("x", 1, make([]byte, 8), comm.Float32).Wait(ctx) })
	wg.Go(func() { onPair[1] = groups[1].StartRecvOf("x", 0, make([]byte, 8), comm.BFloat16).Wait(ctx) })
	wg.Wait()
	for r, err := range onPair {
		if err == nil || !strings.Contains(err.Error(), "rank 0 entered send_recv \"x\" of 8 bytes of float32") || !strings.Contains(err.Error(), "rank 1 entered send_recv \"x\" of 8 bytes of bfloat16") {
			t.Errorf("rank %d: %v", r, err)
		}
		if err := groups[r].Close(); err != nil {
			t.Error(err)
		}
	}
}

// abortedElements checks that handles of reductions that one rank never enters end when that rank gives up.
func abortedElements(t *testing.T, ts []comm.Transport) {
	reason := errors.New("no such file: train.txt")
	records := make([]*comm.Recorder, len(ts))
	errs := failAll(t, ts, t.Name()+" abort", records, func(g *comm.Group) (*comm.Collective, error) {
		c, err := g.PrepareAllReduceOf("x", make([]byte, 100), comm.Int32, comm.CombineMean)
		if g.Rank() == 1 {
			g.Abort(reason)
		}
		return c, err
	})
	for r, err := range errs {
		if err == nil || !strings.Contains(err.Error(), reason.Error()) {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

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
		// Several under way at once, of which the last is waited for first.
		early, counts := g.StartAllGatherBytes("early", mine), g.StartAllGatherInt64("counts", make([]int64, g.Rank()))
		report := g.StartGather("late", g.Size()-1, mine)
		reported, err := report.Values(ctx)
		if err != nil {
			return err
		}
		counted, err := counts.Values(ctx)
		if err != nil {
			return err
		}
		if all, err = early.Values(ctx); err != nil {
			return err
		}
		for r := range g.Size() {
			if len(all[r]) != 100*r || len(counted[r]) != r || g.Rank() == g.Size()-1 && len(reported[r]) != 100*r {
				return fmt.Errorf("gathers at once: rank %d's parts have %d, %d and %v", r, len(all[r]), len(counted[r]), reported)
			}
		}
		if _, err := g.StartGather("nowhere", g.Size(), mine).Values(ctx); err == nil {
			return errors.New("a gather to a member that does not exist gave no error")
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

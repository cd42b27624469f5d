package comm_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"starling/core/comm"
	"starling/core/comm/commtest"
)

// overTransports runs a test over memory and over sockets.
func overTransports(t *testing.T, world int, f func(t *testing.T, ts []comm.Transport)) {
	for name, open := range map[string]func(t *testing.T) []comm.Transport{
		"inprocess": func(*testing.T) []comm.Transport { return comm.NewInProcess(world) },
		"unix":      func(t *testing.T) []comm.Transport { return mesh(t, world, unixAddrs(t, world)) },
		"tcp":       func(t *testing.T) []comm.Transport { return mesh(t, world, tcpAddrs(world)) },
		"shm":       func(t *testing.T) []comm.Transport { return sharedMesh(t, world) },
	} {
		t.Run(name, func(t *testing.T) {
			ts := open(t)
			t.Cleanup(func() { commtest.CloseAll(t, ts) })
			f(t, ts)
		})
	}
}

// play lets every rank play its part in one group and returns what each returned and how long all took.
func play(t *testing.T, ts []comm.Transport, opt comm.Options, part func(ctx context.Context, g *comm.Group) error) ([]error, time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	ranks := make([]int, len(ts))
	for i := range ranks {
		ranks[i] = i
	}
	errs := make([]error, len(ts))
	begin := time.Now()
	var wg sync.WaitGroup
	var groups []*comm.Group
	for r := range ts {
		g, err := comm.NewGroup(ts[r], "data", ranks, opt)
		if err != nil {
			t.Fatal(err)
		}
		groups = append(groups, g)
		wg.Go(func() { errs[r] = part(ctx, g) })
	}
	wg.Wait()
	took := time.Since(begin)
	for _, g := range groups {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	}
	return errs, took
}

// TestSkippedCollective is case 26: one rank skips a collective. Within the deadline every rank stops, with the rank, the
// operation and the label, and the hook that saves the stacks runs on every rank.
func TestSkippedCollective(t *testing.T) {
	overTransports(t, 3, func(t *testing.T, ts []comm.Transport) {
		var stalls atomic.Int32
		opt := comm.Options{Timeout: time.Second, OnStall: func(err error) {
			if strings.Contains(err.Error(), "rank 1 did not come") {
				stalls.Add(1)
			}
		}}
		label := "bucket 3, block h.0.mlp, gpt.star:31:17"
		errs, took := play(t, ts, opt, func(ctx context.Context, g *comm.Group) error {
			b := make([]float32, 100)
			if err := g.AllReduce(ctx, "bucket 2", b); err != nil {
				return err
			}
			if g.Rank() == 1 {
				<-g.Failed() // busy elsewhere
				return g.Err()
			}
			return g.AllReduce(ctx, label, b)
		})
		for r, err := range errs {
			var stall *comm.StallError
			if !errors.As(err, &stall) {
				t.Fatalf("rank %d: %v", r, err)
			}
			if err.Error() != errs[0].Error() {
				t.Errorf("rank %d reports %v, rank 0 %v", r, err, errs[0])
			}
			if !slices.Equal(stall.Missing, []int{1}) || stall.Op != "all_reduce" || stall.Label != label || stall.Seq != 1 {
				t.Errorf("rank %d: %+v", r, stall)
			}
		}
		if took > 30*time.Second {
			t.Errorf("it took %v", took)
		}
		if stalls.Load() != 3 {
			t.Errorf("OnStall ran on %d ranks of 3", stalls.Load())
		}
	})
}

// TestAnotherCollective: a rank goes on to another operation than the rest. That is noticed at once, and every rank stops with the same
// report: who entered what.
func TestAnotherCollective(t *testing.T) {
	for name, other := range map[string]func(ctx context.Context, g *comm.Group, b []float32) error{
		"all_gather": func(ctx context.Context, g *comm.Group, b []float32) error {
			return g.AllGather(ctx, "parameters 1", comm.Chunks(len(b), g.Size(), 1), b)
		},
		"broadcast": func(ctx context.Context, g *comm.Group, b []float32) error {
			return g.BroadcastFloat32(ctx, "bucket 1", 0, b)
		},
		"label": func(ctx context.Context, g *comm.Group, b []float32) error { return g.AllReduce(ctx, "bucket 2", b) },
		"size": func(ctx context.Context, g *comm.Group, b []float32) error {
			return g.AllReduce(ctx, "bucket 1", b[:50])
		},
		"type": func(ctx context.Context, g *comm.Group, b []float32) error {
			return g.AllReduceOf(ctx, "bucket 1", comm.Bytes32(b), comm.Float32, comm.CombineMax)
		},
		"barrier": func(ctx context.Context, g *comm.Group, _ []float32) error { return g.Barrier(ctx, "end") },
	} {
		t.Run(name, func(t *testing.T) {
			overTransports(t, 4, func(t *testing.T, ts []comm.Transport) {
				errs, took := play(t, ts, comm.Options{}, func(ctx context.Context, g *comm.Group) error {
					b := make([]float32, 100)
					if g.Rank() == 2 {
						if err := other(ctx, g, b); err != nil {
							return err
						}
						return g.Barrier(ctx, "bucket 1")
					}
					return g.AllReduce(ctx, "bucket 1", b)
				})
				sameMismatch(t, errs)
				if took > 5*time.Second {
					t.Errorf("it took %v", took)
				}
			})
		})
	}
}

// sameMismatch checks that all ranks return one report, by which rank 2 differs from the rest.
func sameMismatch(t *testing.T, errs []error) {
	t.Helper()
	for r, err := range errs {
		var m *comm.MismatchError
		if !errors.As(err, &m) {
			t.Fatalf("rank %d: %v", r, err)
		}
		if err.Error() != errs[0].Error() {
			t.Errorf("rank %d: %v\nrank 0: %v", r, err, errs[0])
		}
	}
	text := errs[0].Error()
	for _, want := range []string{"rank 2 entered ", `ranks 0, 1, 3 entered all_reduce "bucket 1" of 400 bytes of float32`} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing from %s", want, text)
		}
	}
	var m *comm.MismatchError
	if errors.As(errs[0], &m); !slices.Equal(m.Differ(), []int{2}) {
		t.Errorf("%v differ", m.Differ())
	}
}

// TestALateMismatch: a rank that does not come is no part of the mismatch between others, and does not keep them.
func TestALateMismatch(t *testing.T) {
	overTransports(t, 4, func(t *testing.T, ts []comm.Transport) {
		errs, took := play(t, ts, comm.Options{}, func(ctx context.Context, g *comm.Group) error {
			switch g.Rank() {
			case 3:
				<-g.Failed()
				return g.Err()
			case 0:
				return g.Barrier(ctx, "end of step")
			}
			return g.AllReduce(ctx, "bucket 1", make([]float32, 100))
		})
		for r, err := range errs {
			if err == nil || !strings.Contains(err.Error(), `rank 0 entered barrier "end of step"`) || !strings.Contains(err.Error(), "ranks 1, 2 entered all_reduce") || !strings.Contains(err.Error(), "rank 3 had not come yet") {
				t.Errorf("rank %d: %v", r, err)
			}
		}
		if took > 5*time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

// TestFailureBeforeTheFirstCollective is case 27: the others do not wait for a rank that has failed.
func TestFailureBeforeTheFirstCollective(t *testing.T) {
	for name, fail := range map[string]func(g *comm.Group, x comm.Transport){
		"abort":     func(g *comm.Group, _ comm.Transport) { g.Abort(errors.New("no such file: train.txt")) },
		"transport": func(_ *comm.Group, x comm.Transport) { x.Fail(errors.New("no such file: train.txt")) },
	} {
		t.Run(name, func(t *testing.T) {
			overTransports(t, 3, func(t *testing.T, ts []comm.Transport) {
				errs, took := play(t, ts, comm.Options{}, func(ctx context.Context, g *comm.Group) error {
					if g.Rank() == 1 {
						fail(g, ts[1])
					}
					return g.Barrier(ctx, "start")
				})
				for r, err := range errs {
					if err == nil || !strings.Contains(err.Error(), "no such file: train.txt") {
						t.Errorf("rank %d: %v", r, err)
					}
					var abort *comm.AbortError
					if r != 1 && (!errors.As(err, &abort) || abort.Rank != 1) {
						t.Errorf("rank %d: %v", r, err)
					}
				}
				if took > 30*time.Second {
					t.Errorf("it took %v", took)
				}
			})
		})
	}
}

// TestBrokenConnection: a peer whose connection breaks is named at once.
func TestBrokenConnection(t *testing.T) {
	var conns [2][]net.Conn
	for i := range conns {
		conns[i] = make([]net.Conn, 2)
	}
	a, b := net.Pipe()
	conns[0][1], conns[1][0] = a, b
	ts := []comm.Transport{comm.NewSocketTransport(0, conns[0]), comm.NewSocketTransport(1, conns[1])}
	t.Cleanup(func() { commtest.CloseAll(t, ts) })
	errs, took := play(t, ts, comm.Options{}, func(ctx context.Context, g *comm.Group) error {
		if err := g.Barrier(ctx, "start"); err != nil {
			return err
		}
		if g.Rank() == 1 {
			_ = b.Close()
		}
		return g.AllReduce(ctx, "bucket", make([]float32, 1000))
	})
	for r, err := range errs {
		var lost *comm.PeerError
		if !errors.As(err, &lost) || lost.Rank != 1-r {
			t.Errorf("rank %d: %v", r, err)
		}
	}
	if took > 30*time.Second {
		t.Errorf("it took %v", took)
	}
}

// TestPreparation is case 32: before the first collective a rank may take longer than the deadline, as long as it lives.
func TestPreparation(t *testing.T) {
	opt := comm.Options{Timeout: 100 * time.Millisecond, PrepareTimeout: 5 * time.Second}
	overTransports(t, 2, func(t *testing.T, ts []comm.Transport) {
		errs, _ := play(t, ts, opt, func(ctx context.Context, g *comm.Group) error {
			if g.Rank() == 1 {
				time.Sleep(400 * time.Millisecond)
			}
			return g.Barrier(ctx, "start")
		})
		for r, err := range errs {
			if err != nil {
				t.Errorf("rank %d: %v", r, err)
			}
		}
	})
}

// TestPatience: later, too, a rank may take longer than the deadline to come to a patient barrier, and to no other.
func TestPatience(t *testing.T) {
	opt := comm.Options{Timeout: 100 * time.Millisecond, PrepareTimeout: 5 * time.Second}
	overTransports(t, 2, func(t *testing.T, ts []comm.Transport) {
		errs, _ := play(t, ts, opt, func(ctx context.Context, g *comm.Group) error {
			if err := g.Barrier(ctx, "start"); err != nil {
				return err
			}
			if g.Rank() == 1 {
				time.Sleep(400 * time.Millisecond)
			}
			if err := g.BarrierPatient(ctx, "after rank 1's own work"); err != nil {
				return fmt.Errorf("the patient barrier: %w", err)
			}
			if g.Rank() == 1 {
				<-g.Failed()
				return g.Err()
			}
			return g.Barrier(ctx, "end")
		})
		var stall *comm.StallError
		if !errors.As(errs[0], &stall) || stall.Label != "end" {
			t.Errorf("rank 0: %v, want a stall at the last barrier", errs[0])
		}
	})
}

// TestSilence: a rank that neither comes nor gives a sign of life while others prepare is given up.
func TestSilence(t *testing.T) {
	conns := [2][]net.Conn{make([]net.Conn, 2), make([]net.Conn, 2)}
	a, b := net.Pipe()
	conns[0][1] = a
	go func() { // rank 1 takes everything and says nothing
		buf := make([]byte, 1024)
		for {
			if _, err := b.Read(buf); err != nil {
				return
			}
		}
	}()
	x := comm.NewSocketTransport(0, conns[0])
	t.Cleanup(func() {
		_ = b.Close()
		_ = x.Close()
	})
	g, err := comm.NewGroup(x, "data", []int{0, 1}, comm.Options{Silence: 200 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	err = g.Barrier(t.Context(), "start")
	var stall *comm.StallError
	if !errors.As(err, &stall) || !stall.Silent || !slices.Equal(stall.Missing, []int{1}) {
		t.Errorf("a silent rank: %v", err)
	}
}

// TestCallersContext: a caller that gives up takes the group with it, and its buffers are its own again.
func TestCallersContext(t *testing.T) {
	ts := comm.NewInProcess(2)
	t.Cleanup(func() { commtest.CloseAll(t, ts) })
	errs, _ := play(t, ts, comm.Options{}, func(ctx context.Context, g *comm.Group) error {
		if g.Rank() == 1 {
			<-g.Failed()
			return g.Err()
		}
		ctx, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		defer cancel()
		return g.AllReduce(ctx, "bucket", make([]float32, 10))
	})
	if !errors.Is(errs[0], context.DeadlineExceeded) {
		t.Errorf("rank 0: %v", errs[0])
	}
	var abort *comm.AbortError
	if !errors.As(errs[1], &abort) || abort.Rank != 0 {
		t.Errorf("rank 1: %v", errs[1])
	}
}

// TestLostMessages: a pair whose receiver never comes names it.
func TestLostMessages(t *testing.T) {
	overTransports(t, 2, func(t *testing.T, ts []comm.Transport) {
		errs, _ := play(t, ts, comm.Options{Timeout: 200 * time.Millisecond}, func(ctx context.Context, g *comm.Group) error {
			if err := g.Barrier(ctx, "start"); err != nil {
				return err
			}
			if g.Rank() == 1 {
				<-g.Failed()
				return g.Err()
			}
			return g.Send(ctx, "activation 4", 1, make([]byte, 10))
		})
		for r, err := range errs {
			var stall *comm.StallError
			if !errors.As(err, &stall) || !slices.Equal(stall.Missing, []int{1}) || stall.Label != "activation 4" {
				t.Errorf("rank %d: %v", r, err)
			}
		}
	})
}

// TestBadArguments: mistakes of the caller are reported without harming the group.
func TestBadArguments(t *testing.T) {
	ts := comm.NewInProcess(1)
	t.Cleanup(func() { commtest.CloseAll(t, ts) })
	errs, _ := play(t, ts, comm.Options{}, func(ctx context.Context, g *comm.Group) error {
		red, err := comm.NewReduction(4, comm.Assign(4, 2))
		if err != nil {
			return err
		}
		b := make([]float32, 8)
		for what, err := range map[string]error{
			"reduction of two ranks": g.AllReduceTree(ctx, "x", red, [][]float32{b}, b),
			"chunks that overlap":    g.AllGather(ctx, "x", []comm.Range{{Lo: 1, Hi: 8}}, b),
			"root outside":           g.Broadcast(ctx, "x", 1, nil),
			"send to itself":         g.Send(ctx, "x", 0, nil),
		} {
			if err == nil {
				return fmt.Errorf("%s was accepted", what)
			}
		}
		return g.AllReduce(ctx, "x", b)
	})
	if errs[0] != nil {
		t.Error(errs[0])
	}
	for what, ranks := range map[string][]int{"outside the world": {0, 1}, "twice": {0, 0}, "without this rank": {}} {
		if _, err := comm.NewGroup(ts[0], what, ranks, comm.Options{}); err == nil {
			t.Errorf("a group %s was accepted", what)
		}
	}
}

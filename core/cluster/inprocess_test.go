package cluster

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"starling/core/comm"
)

func world(w *Worker) (*comm.Group, error) {
	ranks := make([]int, w.World())
	for i := range ranks {
		ranks[i] = i
	}
	return comm.NewGroup(w.Transport(), "data", ranks, comm.Options{})
}

func TestInProcess(t *testing.T) {
	events, ready := make([]int, 4), 0
	cfg := Config{Ranks: 4, OnEvent: func(rank int, b []byte) { events[rank] += len(b) }, OnReady: func() { ready++ }}
	results, err := InProcess(t.Context(), cfg, func(ctx context.Context, w *Worker) error {
		g, err := world(w)
		if err != nil {
			return err
		}
		defer g.Close()
		b := []float32{float32(w.Rank())}
		if err := g.AllReduce(ctx, "x", b); err != nil {
			return err
		}
		for range 3 {
			if err := w.Event(make([]byte, w.Rank())); err != nil {
				return err
			}
		}
		if w.Rank() == 3 {
			return nil // without a result
		}
		return w.Done(fmt.Append(nil, b[0]))
	})
	if err != nil {
		t.Fatal(err)
	}
	for r, want := range []string{"6", "6", "6", ""} {
		if string(results[r]) != want {
			t.Errorf("rank %d: %q, want %q", r, results[r], want)
		}
		if events[r] != 3*r {
			t.Errorf("rank %d passed %d bytes of events, want %d", r, events[r], 3*r)
		}
	}
	if ready != 1 {
		t.Errorf("OnReady was called %d times", ready)
	}
}

// TestInProcessFailures: a rank that fails before or after its first collective ends the others, and is named. Only after a
// collective are all ranks known to be connected: before it, others may still be on their way.
func TestInProcessFailures(t *testing.T) {
	sentinel := errors.New("no tokens left")
	for _, c := range []struct {
		name string
		fail func(w *Worker) error
		want string
		is   error
	}{
		{"error", func(*Worker) error { return sentinel }, "failed during step 7, after the ranks were connected: no tokens left", sentinel},
		{"panic", func(*Worker) error { panic("index out of range") }, "panic: index out of range", nil},
		{"Goexit", func(*Worker) error { runtime.Goexit(); return nil }, "Goexit", nil},
		{"Fail", func(w *Worker) error { return w.Fail(sentinel) }, "no tokens left", sentinel},
	} {
		for step := range 2 {
			t.Run(fmt.Sprint(c.name, step), func(t *testing.T) {
				others := make(chan error, 3)
				begin := time.Now()
				_, err := InProcess(t.Context(), Config{Ranks: 3}, func(ctx context.Context, w *Worker) error {
					g, err := world(w)
					if err != nil {
						return err
					}
					defer g.Close()
					for i := range 5 {
						if i == step && w.Rank() == 1 {
							w.Status("step 7")
							return c.fail(w)
						}
						if err := g.Barrier(ctx, "step"); err != nil {
							<-ctx.Done()
							others <- context.Cause(ctx)
							return err
						}
					}
					return nil
				})
				var failed *RankError
				message := fmt.Sprint(err)
				if step == 0 {
					message = strings.Replace(message, ", before the ranks", ", after the ranks", 1)
				}
				if !errors.As(err, &failed) || failed.Rank != 1 || !strings.Contains(message, c.want) || c.is != nil && !errors.Is(err, c.is) {
					t.Errorf("it ended with %v", err)
				}
				for range 2 {
					if cause := <-others; cause == nil || !strings.Contains(cause.Error(), "rank 1") {
						t.Errorf("another rank's context ended with %v", cause)
					}
				}
				if took := time.Since(begin); took > 15*time.Second {
					t.Errorf("it took %v", took)
				}
			})
		}
	}
}

func TestInProcessStop(t *testing.T) {
	stop := make(chan struct{})
	results, err := InProcess(t.Context(), Config{Ranks: 2, Stop: stop, OnReady: func() { close(stop) }}, func(_ context.Context, w *Worker) error {
		<-w.StopRequested()
		return w.Done([]byte("saved"))
	})
	if err != nil || string(results[0])+string(results[1]) != "savedsaved" {
		t.Errorf("it ended with %q, %v", results, err)
	}
}

func TestInProcessCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	_, err := InProcess(ctx, Config{Ranks: 2, OnReady: cancel}, func(ctx context.Context, w *Worker) error {
		<-ctx.Done()
		return context.Cause(ctx)
	})
	if !errors.Is(err, ErrStopped) || !errors.Is(err, context.Canceled) {
		t.Errorf("it ended with %v", err)
	}
}

// TestInProcessStraggler: a rank that does not return cannot hold up the others' end; it is named.
func TestInProcessStraggler(t *testing.T) {
	release, gone := make(chan struct{}), make(chan struct{})
	_, err := InProcess(t.Context(), Config{Ranks: 2, Grace: 100 * time.Millisecond}, func(_ context.Context, w *Worker) error {
		if w.Rank() == 0 {
			return errors.New("no tokens left")
		}
		defer close(gone)
		<-release
		return nil
	})
	if err == nil || !strings.Contains(err.Error(), "no tokens left") || !strings.Contains(err.Error(), "rank 1 did not return within 100ms") {
		t.Errorf("it ended with %v", err)
	}
	close(release)
	<-gone
}

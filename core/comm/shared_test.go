package comm

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"starling/core/comm/machine"
)

// sharing connects a world through shared memory.
func sharing(t testing.TB, world int) []Transport {
	t.Helper()
	if machine.ID() == "" {
		t.Skip("this system has no memory that processes can hand each other")
	}
	return meshOf(t, world, ShareAlways)
}

// meshOf connects a world over Unix sockets.
func meshOf(t testing.TB, world int, share Sharing) []Transport {
	t.Helper()
	return meshOn(t, world, share, func(int) string { return machine.ID() })
}

// meshOn connects a world whose ranks run where host says.
func meshOn(t testing.TB, world int, share Sharing, host func(rank int) string) []Transport {
	t.Helper()
	return meshWith(t, world, share, host, func(int) int { return 0 })
}

// meshWith tells each rank how many cores there are.
func meshWith(t testing.TB, world int, share Sharing, host func(rank int) string, cores func(rank int) int) []Transport {
	t.Helper()
	dir, err := os.MkdirTemp("", "comm")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	addrs, listeners := make([]string, world), make([]net.Listener, world)
	for r := range addrs {
		addrs[r] = "unix:" + filepath.Join(dir, strconv.Itoa(r))
		if listeners[r], err = Listen(ctx, addrs[r]); err != nil {
			t.Fatal(err)
		}
	}
	ts := make([]Transport, world)
	var wg sync.WaitGroup
	for r := range addrs {
		wg.Go(func() {
			x, err := Connect(ctx, MeshConfig{
				Identity: Identity{Rank: r, World: world, Host: host(r)}, Addrs: addrs, Listener: listeners[r],
				Secret: make([]byte, 16), Share: share, Cores: cores(r),
			})
			if err != nil {
				t.Error(err)
			}
			ts[r] = x
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	t.Cleanup(func() {
		var wg sync.WaitGroup
		for _, x := range ts {
			wg.Go(func() { _ = x.Close() })
		}
		wg.Wait()
	})
	return ts
}

// TestCores: ranks wait awake only while there is a core for each, whoever else may run on those. The ranks of a host agree on that, although
// they may have been told different numbers: on it depends in which form a small vector is summed.
func TestCores(t *testing.T) {
	if machine.ID() == "" || runtime.NumCPU() < 2 {
		t.Skip("needs shared memory and two processors")
	}
	for _, c := range []struct {
		cores   [2]int
		crowded bool
	}{{[2]int{0, 0}, false}, {[2]int{2, 2}, false}, {[2]int{1, 1}, true}, {[2]int{1, 2}, true}, {[2]int{2, 1}, false}} {
		ts := meshWith(t, 2, ShareAlways, func(int) string { return machine.ID() }, func(r int) int { return c.cores[r] })
		for r, x := range ts {
			h := x.(*hostTransport)
			if h.crowded != c.crowded || h.attends.spare != (c.cores[r] != 1) {
				t.Errorf("cores %v: rank %d is crowded: %v, readers look: %v", c.cores, r, h.crowded, h.attends.spare)
			}
		}
		noErrors(t, onAll(t, ts, Options{}, func(ctx context.Context, g *Group) error {
			b := make([]float32, (oneRound+oneRoundCrowded)/8)
			for i := range b {
				b[i] = float32(i)
			}
			if err := g.AllReduce(ctx, "between the two forms", b); err != nil {
				return err
			}
			for i, x := range b {
				if x != 2*float32(i) {
					return fmt.Errorf("element %d is %v", i, x)
				}
			}
			return nil
		}))
	}
}

// TestSharedInvariance: in shared memory too, the sum has the bits of the single-rank tree, in the one-round form and
// piece by piece, for every spread of lanes, aligned or not.
func TestSharedInvariance(t *testing.T) {
	for _, lanes := range []int{2, 3, 5, 6, 8, 16, 21} {
		for _, ranks := range []int{2, 3, 4, 6} {
			if ranks > lanes {
				continue
			}
			t.Run(fmt.Sprintf("%dlanes%dranks", lanes, ranks), func(t *testing.T) {
				red, err := NewReduction(lanes, Assign(lanes, ranks))
				if err != nil {
					t.Fatal(err)
				}
				ts := sharing(t, ranks)
				for i, n := range []int{0, 1, 53, 3*strip + 7, 100_003} {
					values := laneValues(lanes, n)
					want := treeSumOf(values, Tree{lanes}.Root())
					opt := Options{PieceBytes: 64 << (3 * i)}
					noErrors(t, onAllNamed(t, ts, fmt.Sprint(n), opt, func(ctx context.Context, g *Group) error {
						own := runFold(red.Fold(g.Rank()), values)
						chunks := Chunks(n, g.Size(), 1)
						c := chunks[g.Rank()]
						mine := make([]float32, c.Len())
						if err := g.ReduceScatterTree(ctx, "rs", red, chunks, own, mine); err != nil {
							return err
						}
						if !sameBits(mine, want[c.Lo:c.Hi]) {
							return fmt.Errorf("reduce-scatter of %d differs from the tree", n)
						}
						if err := g.AllReduceTree(ctx, "ar", red, own, own[0]); err != nil {
							return err
						}
						if !sameBits(own[0], want) {
							return fmt.Errorf("all-reduce of %d differs from the tree", n)
						}
						return nil
					}))
				}
			})
		}
	}
}

// TestLazyWaiters: ranks that start many small collectives before they wait for any, in shared memory, do not block each
// other, and waits may come in another order than starts.
func TestLazyWaiters(t *testing.T) {
	noErrors(t, onAll(t, sharing(t, 3), Options{}, func(ctx context.Context, g *Group) error {
		for round := range 30 {
			bufs, handles := make([][]float32, 11), make([]*Handle, 11)
			for i := range handles {
				n := []int{10, 1000, 70_000}[(i*7+round)%3]
				bufs[i] = make([]float32, n)
				for k := range bufs[i] {
					bufs[i][k] = float32(g.Rank() + i)
				}
				handles[i] = g.StartAllReduce(fmt.Sprint("bucket ", i), bufs[i])
			}
			if g.Rank() == 1 {
				time.Sleep(time.Millisecond)
			}
			for i := range handles {
				k := (i*5 + g.Rank()) % len(handles)
				if err := handles[k].Wait(ctx); err != nil {
					return err
				}
				if got := bufs[k][len(bufs[k])-1]; got != float32(3+3*k) {
					return fmt.Errorf("bucket %d is %v, want %v", k, got, 3+3*k)
				}
			}
		}
		return nil
	}))
}

// TestWaitGivesUp: a wait ends with its context; the collective goes on and can be waited for again.
func TestWaitGivesUp(t *testing.T) {
	for name, ts := range map[string][]Transport{"inprocess": inProcess(t, 2), "shm": sharing(t, 2)} {
		t.Run(name, func(t *testing.T) {
			noErrors(t, onAll(t, ts, Options{}, func(ctx context.Context, g *Group) error {
				b := []float32{1}
				if g.Rank() == 1 {
					time.Sleep(100 * time.Millisecond)
				}
				h := g.StartAllReduce("x", b)
				if g.Rank() == 0 {
					short, cancel := context.WithTimeout(ctx, 5*time.Millisecond)
					defer cancel()
					if err := h.Wait(short); err == nil {
						return fmt.Errorf("the wait outlived its context")
					}
					if h.Err() != nil {
						return h.Err()
					}
				}
				<-h.Done()
				if err := h.Wait(ctx); err != nil || b[0] != 2 {
					return fmt.Errorf("sum %v: %w", b[0], err)
				}
				return nil
			}))
		})
	}
}

// TestSteadyAllocations: a prepared collective allocates nothing once it has run.
func TestSteadyAllocations(t *testing.T) {
	for name, c := range map[string]struct {
		open  func(t testing.TB, n int) []Transport
		ranks int
	}{
		"inprocess": {inProcess, 2},
		"shm":       {sharing, 2},
		"in place":  {sharing, 2},
		"unix":      {func(t testing.TB, n int) []Transport { return meshOf(t, n, ShareNever) }, 2},
		"hosts": {func(t testing.TB, n int) []Transport {
			return meshOn(t, n, ShareAuto, func(r int) string { return fmt.Sprint("host ", r/2) })
		}, 4},
	} {
		for _, n := range []int{1, 1000, 300_000} {
			t.Run(fmt.Sprint(name, n), func(t *testing.T) {
				ts := c.open(t, c.ranks)
				const rounds, tries = 50, 4
				noErrors(t, onAll(t, ts, Options{}, func(ctx context.Context, g *Group) error {
					if (g.hosts != nil) != (name == "hosts") {
						return fmt.Errorf("the group's hosts are %+v", g.hosts)
					}
					b := make([]float32, n)
					if name == "in place" {
						v, free, err := vectorsIn(g, 1, n)
						defer free()
						if err != nil {
							return err
						}
						b = v[0]
					}
					red, err := NewReduction(c.ranks, Assign(c.ranks, c.ranks))
					if err != nil {
						return err
					}
					k, err := g.PrepareAllReduceTree("bucket", red, [][]float32{b}, b)
					if err != nil {
						return err
					}
					for range 5 {
						if err := k.Run(ctx); err != nil {
							return err
						}
					}
					if g.Rank() > 0 {
						for range tries * (rounds + 1) {
							if err := k.Run(ctx); err != nil {
								return err
							}
						}
						return nil
					}
					// The other ranks are in this process: their allocations count too, and so does whatever a finished test leaves running.
					got := math.Inf(1)
					for range tries {
						got = min(got, testing.AllocsPerRun(rounds, func() {
							if e := k.Run(ctx); e != nil {
								err = e
							}
						}))
					}
					if got >= 1 {
						return fmt.Errorf("%v allocations for each all-reduce of %d ranks", got, c.ranks)
					}
					return err
				}))
			})
		}
	}
}

// A small sum that nobody waits for is over for whoever asks again and again.
func TestAskingEndsASum(t *testing.T) {
	errs := onAll(t, sharing(t, 2), Options{}, func(ctx context.Context, g *Group) error {
		h := g.StartAllReduce("small", make([]float32, 8))
		for !h.Over() {
			select {
			case <-ctx.Done():
				return errors.New("it is never over")
			case <-time.After(time.Millisecond):
			}
		}
		return h.Err()
	})
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
}

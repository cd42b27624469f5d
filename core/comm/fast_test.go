package comm

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// TestFastSums: the algorithms outside the canonical order give the sum, the same bits on all members and every time, over
// connections and in shared memory, and a ring sends 2(N-1)/N of the vector.
func TestFastSums(t *testing.T) {
	for _, c := range []struct{ world, n int }{{2, 1000}, {3, 5000}, {4, 4 * 16 * 100}, {5, 7}, {7, 3001}, {8, 4096}, {6, 0}} {
		for name, open := range map[string]func(testing.TB, int) []Transport{
			"inprocess": inProcess, "shm": sharing,
			"unix": func(t testing.TB, n int) []Transport { return meshOf(t, n, ShareNever) },
		} {
			for _, a := range []Algorithm{Auto, Ring, Doubling, Direct} {
				t.Run(fmt.Sprint(name, c.world, "x", c.n, a), func(t *testing.T) {
					values := laneValues(c.world, c.n)
					exact := make([]float64, c.n)
					for _, v := range values {
						for i, x := range v {
							exact[i] += float64(x)
						}
					}
					results := make([][]float32, c.world)
					ts := open(t, c.world)
					noErrors(t, onAll(t, ts, Options{PieceBytes: 256}, func(ctx context.Context, g *Group) error {
						buf := make([]float32, c.n)
						k, err := g.PrepareAllReduceFast("fast", a, buf)
						if name == "shm" && (a == Ring || a == Doubling) {
							if err == nil || g.Allows(a) == nil || !strings.Contains(err.Error(), "share memory") {
								return fmt.Errorf("in shared memory: %v", err)
							}
							results[g.Rank()] = nil
							return nil
						}
						if err != nil {
							return err
						}
						for range 3 {
							copy(buf, values[g.Rank()])
							if err := k.Run(ctx); err != nil {
								return err
							}
						}
						results[g.Rank()] = buf
						chunks := Chunks(c.n, c.world, 1)
						part := append([]float32(nil), values[g.Rank()]...)
						if k, err = g.PrepareReduceScatterFast("part", a, chunks, part); err != nil {
							return err
						}
						if err := k.Run(ctx); err != nil {
							return err
						}
						own := chunks[g.Rank()]
						return near(part[own.Lo:own.Hi], exact[own.Lo:own.Hi])
					}))
					if results[0] == nil {
						return
					}
					for r, got := range results {
						if !sameBits(got, results[0]) {
							t.Errorf("rank %d has other bits than rank 0", r)
						}
					}
					if err := near(results[0], exact); err != nil {
						t.Error(err)
					}
				})
			}
		}
	}
}

func near(got []float32, want []float64) error {
	for i, w := range want {
		if d := float64(got[i]) - w; d > 1e-4*(1+max(w, -w)) || d < -1e-4*(1+max(w, -w)) {
			return fmt.Errorf("element %d is %v, want %v", i, got[i], w)
		}
	}
	return nil
}

// TestFastSentBytes: what is sent is what the plan counts with, and a ring sends 2(N-1)/N of the vector.
func TestFastSentBytes(t *testing.T) {
	for _, world := range []int{2, 3, 4, 5, 6, 8} {
		for _, n := range []int{0, 7, 4 * ChunkAlign * 50, 1001} {
			for _, a := range []Algorithm{Auto, Ring, Doubling, Direct} {
				for _, whole := range []bool{true, false} {
					ts := inProcess(t, world)
					noErrors(t, onAll(t, ts, Options{}, func(ctx context.Context, g *Group) error {
						chunks := Chunks(n, world, ChunkAlign)
						prepare := func(label string, a Algorithm, buf []float32) (*Collective, error) {
							return g.PrepareReduceScatterFast(label, a, chunks, buf)
						}
						if whole {
							prepare = g.PrepareAllReduceFast
						}
						k, err := prepare("fast", a, make([]float32, n))
						if err != nil {
							return err
						}
						if err := k.Run(ctx); err != nil {
							return err
						}
						over := a.Over(world, 4*n)
						got, want := Sum(ts[g.Rank()]).PayloadSent, int64(over.SentBytes(g.Rank(), chunks, whole))
						if got != want || k.Way() != over.String() {
							return fmt.Errorf("%d members, %d elements, %v, whole %v: %d bytes sent by %s, want %d by %v", world, n, a, whole, got, k.Way(), want, over)
						}
						if share := int64(2 * (world - 1) * 4 * n / world); a == Ring && whole && n%(ChunkAlign*world) == 0 && got != share {
							return fmt.Errorf("%d bytes sent, want 2(N-1)/N of the vector: %d", got, share)
						}
						if peak, most := g.StagingPeak(), over.StagingBytes(g.Rank(), chunks); peak > most {
							return fmt.Errorf("%v: %d bytes of staging, want %d at most", over, peak, most)
						}
						return nil
					}))
				}
			}
		}
	}
}

// TestForcedAlgorithms: what a group cannot carry out is refused with the reason, and what it does has a name.
func TestForcedAlgorithms(t *testing.T) {
	on := func(hosts string, opt Options, f func(g *Group) error) {
		t.Helper()
		noErrors(t, onAll(t, NewInProcessOn(strings.Split(hosts, "")), opt, func(_ context.Context, g *Group) error { return f(g) }))
	}
	for hosts, why := range map[string]string{"aaaa": "on one host", "abcd": "one rank", "aaab": "3 and 1|1 and 3", "abab": "not neighbours", "aabb": "", "aaabbb": ""} {
		for _, flat := range []bool{false, true} {
			on(hosts, Options{Flat: flat}, func(g *Group) error {
				err := g.Allows(Hierarchical)
				switch {
				case flat && (err == nil || !strings.Contains(err.Error(), "at once")):
					return fmt.Errorf("%s, flat: %v", hosts, err)
				case !flat && (why == "") != (err == nil):
					return fmt.Errorf("%s: %v, want %q", hosts, err, why)
				case !flat && why != "" && !slices.ContainsFunc(strings.Split(why, "|"), func(w string) bool { return strings.Contains(err.Error(), w) }):
					return fmt.Errorf("%s: %v, want %q", hosts, err, why)
				}
				if err := g.Allows(Direct); (err != nil) != (why == "" && !flat) {
					return fmt.Errorf("%s, flat %v: direct: %v", hosts, flat, err)
				}
				want := Direct.String()
				if why == "" && !flat {
					want = Hierarchical.String()
				}
				red, err := NewReduction(g.Size(), Assign(g.Size(), g.Size()))
				if err != nil {
					return err
				}
				buf := make([]float32, 64)
				c, err := g.PrepareAllReduceTree("sum", red, [][]float32{buf}, buf)
				if err != nil {
					return err
				}
				own := Chunks(64, g.Size(), ChunkAlign)[g.Rank()]
				s, err := g.PrepareReduceScatterTree("part", red, Chunks(64, g.Size(), ChunkAlign), [][]float32{buf}, buf[own.Lo:own.Hi])
				if err != nil {
					return err
				}
				if c.Way() != want || s.Way() != want {
					return fmt.Errorf("%s, flat %v: by %s and %s, want %s", hosts, flat, c.Way(), s.Way(), want)
				}
				return nil
			})
		}
	}
	noErrors(t, onAll(t, sharing(t, 2), Options{}, func(_ context.Context, g *Group) error {
		red, err := NewReduction(2, Assign(2, 2))
		if err != nil {
			return err
		}
		for n, want := range map[int]string{64: "one round", 1 << 20: "direct"} {
			buf := make([]float32, n)
			c, err := g.PrepareAllReduceTree("sum", red, [][]float32{buf}, buf)
			if err != nil {
				return err
			}
			if c.Way() != want {
				return fmt.Errorf("%d elements: by %s, want %s", n, c.Way(), want)
			}
		}
		return nil
	}))
}

// TestChoice: large vectors go round the ring, small ones are doubled, and two members need neither.
func TestChoice(t *testing.T) {
	for _, c := range []struct {
		world, bytes int
		want         Algorithm
	}{{2, 1 << 20, Direct}, {4, 4 << 10, Doubling}, {4, 16 << 20, Ring}, {16, 64 << 10, Doubling}, {16, 16 << 20, Ring}} {
		noErrors(t, onAll(t, inProcess(t, c.world), Options{}, func(ctx context.Context, g *Group) error {
			if got := g.Choose(Auto, c.bytes); got != c.want {
				return fmt.Errorf("%d ranks, %d bytes: %v, want %v", c.world, c.bytes, got, c.want)
			}
			if got := g.Choose(Ring, 4); got != Ring {
				return fmt.Errorf("a ring that is asked for becomes %v", got)
			}
			return nil
		}))
	}
}

package comm

import (
	"context"
	"fmt"
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

func TestRingSendsItsShare(t *testing.T) {
	const world, n = 4, 4 * ChunkAlign * 50
	ts := inProcess(t, world)
	noErrors(t, onAll(t, ts, Options{}, func(ctx context.Context, g *Group) error {
		k, err := g.PrepareAllReduceFast("ring", Ring, make([]float32, n))
		if err != nil {
			return err
		}
		if err := k.Run(ctx); err != nil {
			return err
		}
		if got, want := Sum(ts[g.Rank()]).PayloadSent, int64(2*(world-1)*4*n/world); got != want {
			return fmt.Errorf("%d bytes sent, want 2(N-1)/N of the vector: %d", got, want)
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

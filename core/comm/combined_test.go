package comm

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"starling/sdk/vec"
)

// someElements are n elements with values that no rounding spares.
func someElements(e Element, n, seed int) []byte {
	random := rand.New(rand.NewPCG(uint64(seed), uint64(e)))
	b := make([]byte, n*e.Size())
	if e.whole() {
		for i := range b {
			b[i] = byte(random.Uint32())
		}
		return b
	}
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(random.NormFloat64())
	}
	switch e {
	case Float32:
		copy(b, bytesOf(x))
	case Float16:
		vec.F32ToF16(viewOf[uint16](b), x)
	default:
		vec.F32ToBF16(viewOf[uint16](b), x)
	}
	return b
}

// joined is the combination of all values, a few elements at a time.
func joined(t *testing.T, values [][]byte, e Element, how Combine) []byte {
	red, err := NewReduction(len(values), Assign(len(values), len(values)))
	if err != nil {
		t.Fatal(err)
	}
	const few = 77
	out := make([]byte, len(values[0]))
	j := &join{red: red, element: e, how: how, values: make([][]byte, len(values))}
	for lo := 0; lo < len(out); lo += few * e.Size() {
		hi := min(lo+few*e.Size(), len(out))
		for m, v := range values {
			j.values[m] = v[lo:hi]
		}
		j.into(out[lo:hi], nil)
	}
	return out
}

// TestCombinedInSharedMemory: large vectors of every type are joined where they lie if all members have mapped them, and are
// copied if one's are its own; the bits and the bytes counted are the same, also in process.
func TestCombinedInSharedMemory(t *testing.T) {
	const ranks, n = 3, 140_001
	ways := map[string]func() []Transport{"in process": func() []Transport { return inProcess(t, ranks) }, "shared": func() []Transport { return sharing(t, ranks) }}
	for way, open := range ways {
		ts := open()
		for e := Float32; e < elementCount; e++ {
			for how := CombineSum; how < combineCount; how++ {
				if e == Float32 && how == CombineSum || way == "in process" && how != CombineMean {
					continue // the former is a tree sum of its own
				}
				values := make([][]byte, ranks)
				for r := range values {
					values[r] = someElements(e, n*4/e.Size(), r)
				}
				want := joined(t, values, e, how)
				sent := map[string]int64{}
				for _, lies := range []string{"in place", "one apart"} {
					if way == "in process" && lies == "in place" {
						continue
					}
					name := fmt.Sprint(way, lies, e, how)
					before := Sum(ts[0]).PayloadSent
					noErrors(t, onAllNamed(t, ts, name, Options{}, func(ctx context.Context, g *Group) error {
						all, part := slices.Clone(values[g.Rank()]), slices.Clone(values[g.Rank()])
						if way == "shared" && (lies == "in place" || g.Rank() != 1) {
							m, err := g.Allocate(2 * pagesOf(len(all)))
							if err != nil || m == nil {
								return fmt.Errorf("memory %v: %w", m, err)
							}
							defer m.Free()
							all, part = m.Bytes()[:len(all)], m.Bytes()[pagesOf(len(all)):][:len(part)]
							copy(all, values[g.Rank()])
							copy(part, values[g.Rank()])
						}
						chunks := Chunks(len(part)/e.Size(), g.Size(), 1)
						reduce, err := g.PrepareAllReduceOf("ar", all, e, how)
						if err != nil {
							return err
						}
						scatter, err := g.PrepareReduceScatterOf("rs", chunks, part, e, how)
						if err != nil {
							return err
						}
						if mapped := way == "shared" && (lies == "in place" || g.Rank() != 1); reduce.local.places.direct != mapped || scatter.local.places.direct != mapped {
							return fmt.Errorf("its vectors are thought to be mapped: %v, %v", reduce.local.places.direct, scatter.local.places.direct)
						}
						if err := reduce.Run(ctx); err != nil {
							return err
						}
						if !bytes.Equal(all, want) {
							return fmt.Errorf("the all-reduce differs")
						}
						if err := scatter.Run(ctx); err != nil {
							return err
						}
						own, rest := inBytes(chunks, e.Size())[g.Rank()], slices.Clone(values[g.Rank()])
						copy(rest[own.Lo:own.Hi], want[own.Lo:own.Hi])
						if !bytes.Equal(part, rest) {
							return fmt.Errorf("the reduce-scatter differs")
						}
						return nil
					}))
					sent[lies] = Sum(ts[0]).PayloadSent - before
				}
				if way == "shared" && (sent["in place"] != sent["one apart"] || sent["in place"] == 0) {
					t.Errorf("%v of %v: bytes sent: %v", how, e, sent)
				}
			}
		}
	}
}

// TestCombinedBetweenHosts: reductions and gathers of every type have the same bits on several hosts.
func TestCombinedBetweenHosts(t *testing.T) {
	const ranks, n = 4, 3001
	ts := meshOn(t, ranks, ShareAuto, func(r int) string { return fmt.Sprint("host ", r/2) })
	for e := Float32; e < elementCount; e++ {
		for how := CombineSum; how < combineCount; how++ {
			values := make([][]byte, ranks)
			for r := range values {
				values[r] = someElements(e, n, r)
			}
			want := joined(t, values, e, how)
			noErrors(t, onAllNamed(t, ts, fmt.Sprint(e, how), Options{}, func(ctx context.Context, g *Group) error {
				if g.hosts == nil {
					return fmt.Errorf("the group has no hosts")
				}
				all, part := slices.Clone(values[g.Rank()]), slices.Clone(values[g.Rank()])
				if err := g.AllReduceOf(ctx, "ar", all, e, how); err != nil {
					return err
				}
				chunks := Chunks(n, g.Size(), 1)
				if err := g.ReduceScatterOf(ctx, "rs", chunks, part, e, how); err != nil {
					return err
				}
				gather, err := g.PrepareAllGatherOf("ag", chunks, part, e)
				if err != nil {
					return err
				}
				if err := gather.Run(ctx); err != nil {
					return err
				}
				if !bytes.Equal(all, want) || !bytes.Equal(part, want) {
					return fmt.Errorf("%v of %v differs", how, e)
				}
				return nil
			}))
		}
	}
}

// TestSteadyElements: neither do the collectives of elements of other types, and of lists, allocate once they have run.
func TestSteadyElements(t *testing.T) {
	for name, open := range map[string]func(t testing.TB, n int) []Transport{
		"inprocess": inProcess, "shm": sharing, "unix": func(t testing.TB, n int) []Transport { return meshOf(t, n, ShareNever) },
	} {
		for _, n := range []int{24, 200_000} {
			t.Run(fmt.Sprint(name, n), func(t *testing.T) {
				const ranks, rounds, tries = 2, 10, 4
				noErrors(t, onAll(t, open(t, ranks), Options{}, func(ctx context.Context, g *Group) error {
					buf, other := make([]byte, 8*n), make([]byte, 8*n)
					whole := Chunks(n, ranks, 1)
					list := [][]byte{make([]byte, 2*n), make([]byte, 6*n)}
					var all []*Collective
					for _, prepare := range []func() (*Collective, error){
						func() (*Collective, error) { return g.PrepareAllReduceOf("mean", buf, BFloat16, CombineMean) },
						func() (*Collective, error) { return g.PrepareAllReduceOf("sum", buf, Int8, CombineSum) },
						func() (*Collective, error) { return g.PrepareReduceScatterOf("max", whole, buf, Int64, CombineMax) },
						func() (*Collective, error) { return g.PrepareAllGatherOf("gather", whole, buf, Int64) },
						func() (*Collective, error) { return g.PrepareBroadcastOf("broadcast", 0, buf, Int32) },
						func() (*Collective, error) {
							return g.PrepareAllToAllOf("all", whole, buf[:], Chunks(n, ranks, 1), other, Int64)
						},
						func() (*Collective, error) {
							return g.PrepareScatterOf("scatter", 0, whole, buf, other[:8*whole[g.Rank()].Len()], Int64)
						},
						func() (*Collective, error) {
							return g.PrepareGatherOf("gather", 0, other[:8*whole[g.Rank()].Len()], whole, buf, Int64)
						},
						func() (*Collective, error) { return g.PrepareAllReduceListOf("list", list, Float16, CombineMin) },
					} {
						c, err := prepare()
						if err != nil {
							return err
						}
						all = append(all, c)
					}
					for _, c := range all {
						for range 5 {
							if err := c.Run(ctx); err != nil {
								return err
							}
						}
						if g.Rank() > 0 {
							for range tries * (rounds + 1) {
								if err := c.Run(ctx); err != nil {
									return err
								}
							}
							continue
						}
						var err error
						got := math.Inf(1)
						for range tries {
							got = min(got, testing.AllocsPerRun(rounds, func() {
								if e := c.Run(ctx); e != nil {
									err = e
								}
							}))
						}
						if err != nil || got >= 1 {
							return fmt.Errorf("%v: %v allocations each: %w", c.h.call, got, err)
						}
					}
					return nil
				}))
			})
		}
	}
}

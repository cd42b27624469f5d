package comm

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"testing"

	"starling/core/compress"
	"starling/sdk/vec"
)

// Sums of these are exact in float32 over some steps, so that what is computed in float64 must come out bit by bit.
func dyadic(lane, step, i int) float64 {
	return float64((i*37+lane*101+step*53)%257-128) / 64
}

// dyadicLanes are the lanes of a step.
func dyadicLanes(lanes, step, n int) [][]float32 {
	out := make([][]float32, lanes)
	for l := range out {
		out[l] = make([]float32, n)
		for i := range out[l] {
			out[l][i] = float32(dyadic(l, step, i))
		}
	}
	return out
}

// compressedTruth is the scheme in float64: what contributors have of a vector and how much of it they have not sent.
type compressedTruth struct {
	cfg            compress.Config
	rest, momentum [][]float64 // by host
	owned          []float64
}

// send takes what is sent out of x, elements [lo, hi), and returns it; also forgets the momentum of what it takes.
func (s *compressedTruth) send(x, momentum []float64, lo, hi int) []float64 {
	out := make([]float64, hi-lo)
	switch s.cfg.Kind {
	case compress.BF16:
		for i := range out {
			var q [1]uint16
			var back [1]float32
			vec.F32ToBF16(q[:], []float32{float32(x[lo+i])})
			vec.BF16ToF32(back[:], q[:])
			out[i] = float64(back[0])
			x[lo+i] -= out[i]
		}
	default:
		order := make([]int, len(out))
		for i := range order {
			order[i] = i
		}
		slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(math.Abs(x[lo+b]), math.Abs(x[lo+a])) })
		for _, i := range order[:min(len(out), int(math.Ceil(s.cfg.Ratio*float64(len(out)))))] {
			out[i], x[lo+i] = x[lo+i], 0
			if momentum != nil {
				momentum[lo+i] = 0
			}
		}
	}
	return out
}

// step is the sum of a step over hosts that have these lanes each, of chunks each of which is compressed at a time; returned says that
// owners compress it again.
func (s *compressedTruth) step(lanes []Range, step int, chunks []Range, returned bool) []float64 {
	n := len(s.owned)
	sum := make([]float64, n)
	for h, l := range lanes {
		for i := range n {
			g := 0.0
			for lane := l.Lo; lane < l.Hi; lane++ {
				g += dyadic(lane, step, i)
			}
			if s.cfg.Kind == compress.DGC {
				s.momentum[h][i] = s.cfg.Momentum*s.momentum[h][i] + g
				g = s.momentum[h][i]
			}
			s.rest[h][i] += g
		}
		var momentum []float64
		if s.cfg.Kind == compress.DGC {
			momentum = s.momentum[h]
		}
		for _, c := range chunks {
			if l.Len() == 0 {
				break
			}
			for i, v := range s.send(s.rest[h], momentum, c.Lo, c.Hi) {
				sum[c.Lo+i] += v
			}
		}
	}
	if !returned {
		return sum
	}
	for i, v := range sum {
		s.owned[i] += v
	}
	for _, c := range chunks {
		copy(sum[c.Lo:], s.send(s.owned, nil, c.Lo, c.Hi))
	}
	return sum
}

// TestCompressedSumsOverHosts: over several hosts a compressed sum is that of one contributor for each host, whose members' lanes are
// added exactly, whatever moves the bytes; each host sends each chunk to another host once; and what is not sent is kept by the member
// that would have sent it.
func TestCompressedSumsOverHosts(t *testing.T) {
	const steps = 4
	methods := []compress.Config{{Kind: compress.BF16}, {Kind: compress.TopK, Ratio: 0.1}, {Kind: compress.DGC, Ratio: 0.1, Momentum: 0.5}}
	for _, c := range []struct{ hosts, each, lanes, n int }{
		{2, 2, 4, 1000}, {2, 3, 8, 2003}, {3, 2, 8, 700}, {2, 2, 6, 40_000}, {3, 2, 3, 600}, {4, 2, 8, 5}, // the last but one: members without lanes
	} {
		world := c.hosts * c.each
		red, err := NewReduction(c.lanes, Assign(c.lanes, world))
		if err != nil {
			t.Fatal(err)
		}
		host := func(r int) string { return fmt.Sprint("host ", r/c.each) }
		names := make([]string, world)
		var lanes []Range // of each host
		for r := range world {
			names[r] = host(r)
			if r%c.each == c.each-1 {
				lanes = append(lanes, Range{red.assign[r-c.each+1].Lo, red.assign[r].Hi})
			}
		}
		for way, ts := range map[string][]Transport{
			"in process": inProcessOn(t, names), "shared memory": meshOn(t, world, ShareAuto, host), "sockets": meshOn(t, world, ShareNever, host),
		} {
			crossed := func() (bytes int64) {
				for r, x := range ts {
					for p := range world {
						if p/c.each != r/c.each {
							bytes += x.Counters(p).PayloadSent
						}
					}
				}
				return bytes
			}
			for _, cfg := range methods {
				all := cuts(c.n, world)
				all["all-reduce"] = nil
				for name, chunks := range all {
					what := fmt.Sprintf("%s, %v, %s, %+v", way, cfg, name, c)
					truth := compressedTruth{cfg: cfg, owned: make([]float64, c.n)}
					for range c.hosts {
						truth.rest, truth.momentum = append(truth.rest, make([]float64, c.n)), append(truth.momentum, make([]float64, c.n))
					}
					pieces, sent := chunks, 0 // what is compressed at a time, and what all hosts send of it
					if chunks == nil {
						for _, part := range Chunks(c.n, c.each, ChunkAlign) {
							for _, k := range Chunks(part.Len(), c.hosts, ChunkAlign) {
								pieces = append(pieces, Range{part.Lo + k.Lo, part.Lo + k.Hi})
							}
						}
					}
					giving := 0
					for _, l := range lanes {
						giving += min(l.Len(), 1)
					}
					for m, k := range pieces {
						others := giving - min(lanes[m/c.each].Len(), 1)
						if chunks == nil {
							others = giving - min(lanes[m%c.hosts].Len(), 1) + c.hosts - 1
						}
						sent += others * cfg.Size(k.Len(), 0)
					}
					var want [][]float64
					for step := range steps {
						want = append(want, truth.step(lanes, step, pieces, chunks == nil))
					}
					noErrors(t, onAllNamed(t, ts, what, Options{}, func(ctx context.Context, g *Group) error {
						at, owned := g.Hosting().Sum(c.n), 0
						if chunks != nil {
							at = g.Hosting().Scatter(chunks)
						} else {
							owned = at.Chunk.Len()
						}
						s := compress.NewStream(cfg, at.Len(), owned)
						own := make([][]float32, len(red.Nodes(g.Rank())))
						for k := range own {
							own[k] = make([]float32, c.n)
						}
						dst := make([]float32, c.n)
						if len(own) > 0 { // the memory that the trainer gives
							dst = own[0]
						}
						mine := Range{0, c.n}
						var k *Collective
						var err error
						if chunks == nil {
							k, err = g.PrepareAllReduceCompressed("gradient", red, own, dst, s)
						} else {
							mine = chunks[g.Rank()]
							k, err = g.PrepareReduceScatterCompressed("gradient", red, chunks, own, dst[mine.Lo:mine.Hi], s)
						}
						if err != nil {
							return err
						}
						var before int64
						if err := g.Barrier(ctx, "before"); err != nil {
							return err
						}
						if g.Rank() == 0 {
							before = crossed()
						}
						if err := g.Barrier(ctx, "read"); err != nil {
							return err
						}
						for step := range steps {
							for k, v := range runFold(red.Fold(g.Rank()), dyadicLanes(c.lanes, step, c.n))[:len(own)] {
								copy(own[k], v)
							}
							s.Begin(step, 1)
							if err := k.Run(ctx); err != nil {
								return err
							}
							s.Commit()
							for i := mine.Lo; i < mine.Hi; i++ {
								if float64(dst[i]) != want[step][i] {
									return fmt.Errorf("%s: element %d is %v in step %d, want %v", what, i, dst[i], step, want[step][i])
								}
							}
						}
						if err := g.Barrier(ctx, "after"); err != nil {
							return err
						}
						if got := crossed() - before; g.Rank() == 0 && got != int64(steps*sent) {
							return fmt.Errorf("%s: %d bytes crossed between hosts, want %d", what, got, steps*sent)
						}
						j := 0
						for _, part := range at.Parts {
							for i := part.Lo; i < part.Hi; i++ {
								if want := truth.rest[at.Contributor][i]; float64(s.Rest()[j]) != want {
									return fmt.Errorf("%s: member %d has %v of element %d left, want %v", what, g.Rank(), s.Rest()[j], i, want)
								}
								j++
							}
						}
						return g.Barrier(ctx, "counted")
					}))
				}
			}
		}
	}
}

// inProcessOn connects a world in this process whose ranks count as running on several hosts.
func inProcessOn(t testing.TB, hosts []string) []Transport {
	ts := NewInProcessOn(hosts)
	t.Cleanup(func() {
		for _, x := range ts {
			_ = x.Close()
		}
	})
	return ts
}

// TestCompressedSteadyAllocations: a prepared compressed sum allocates nothing once it has run.
func TestCompressedSteadyAllocations(t *testing.T) {
	const n, rounds, tries = 20_000, 30, 4
	host := func(r int) string { return fmt.Sprint("host ", r/2) }
	for name, c := range map[string]struct {
		ts  []Transport
		cfg compress.Config
	}{
		"in process": {inProcess(t, 2), compress.Config{Kind: compress.Int8, Block: 64}},
		"shm":        {sharing(t, 2), compress.Config{Kind: compress.TopK, Ratio: 0.01}},
		"hosts":      {meshOn(t, 4, ShareAuto, host), compress.Config{Kind: compress.Int8, Block: 64}},
		"hosts, dgc": {inProcessOn(t, []string{"a", "a", "b", "b"}), compress.Config{Kind: compress.DGC, Ratio: 0.01}},
	} {
		world := len(c.ts)
		red, err := NewReduction(world, Assign(world, world))
		if err != nil {
			t.Fatal(err)
		}
		for _, kind := range []string{"all-reduce", "reduce-scatter", "factors"} {
			noErrors(t, onAllNamed(t, c.ts, kind, Options{}, func(ctx context.Context, g *Group) error {
				own := [][]float32{make([]float32, n)}
				for i := range own[0] {
					own[0][i] = float32(dyadic(g.Rank(), 0, i))
				}
				chunks := Chunks(n, world, ChunkAlign)
				mine := chunks[g.Rank()]
				var k *Collective
				var err error
				begin := func() {}
				switch kind {
				case "all-reduce":
					at := g.Hosting().Sum(n)
					k, err = g.PrepareAllReduceCompressed(kind, red, own, own[0], compress.NewStream(c.cfg, at.Len(), at.Chunk.Len()))
				case "reduce-scatter":
					s := compress.NewStream(c.cfg, g.Hosting().Scatter(chunks).Len(), 0)
					k, err = g.PrepareReduceScatterCompressed(kind, red, chunks, own, own[0][mine.Lo:mine.Hi], s)
				default:
					f := compress.NewFactors(compress.Config{Kind: compress.PowerSGD, Rank: 2}, n, []compress.Matrix{{Rows: 100, Cols: 150}})
					begin = func() { f.Begin(0, 1) }
					k, err = g.PrepareSums(kind, red, own, func(all [][]float32, sum func([]float32) error) error { return f.Sum(all, own[0], sum) })
				}
				if err != nil {
					return err
				}
				once := func() {
					begin()
					if e := k.Run(ctx); e != nil {
						err = e
					}
				}
				for range 5 {
					once()
				}
				if g.Rank() > 0 {
					for range tries * (rounds + 1) {
						once()
					}
					return err
				}
				got := math.Inf(1)
				for range tries {
					got = min(got, testing.AllocsPerRun(rounds, once))
				}
				if got >= 1 {
					return fmt.Errorf("%s: %v allocations for each %s", name, got, kind)
				}
				return err
			}))
		}
	}
}

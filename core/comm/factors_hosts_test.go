package comm

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"starling/core/compress"
)

// TestFactorsOverHosts: PowerSGD over several hosts is that of one contributor for each host.
func TestFactorsOverHosts(t *testing.T) {
	const steps, rows, cols, n = 4, 40, 30, 40*30 + 77
	cfg := compress.Config{Kind: compress.PowerSGD, Rank: 2, Warmup: 3}
	mats := []compress.Matrix{{At: 50, Rows: rows, Cols: cols, Key: 7}}
	for _, c := range []struct{ hosts, each, lanes int }{{2, 2, 4}, {3, 2, 8}, {2, 3, 12}} {
		world := c.hosts * c.each
		red, err := NewReduction(c.lanes, Assign(c.lanes, world))
		if err != nil {
			t.Fatal(err)
		}
		host := func(r int) string { return fmt.Sprint("host ", r/c.each) }
		names := make([]string, world)
		for r := range names {
			names[r] = host(r)
		}
		want, left := factorsTruth(t, red, c.hosts, c.each, steps, n, cfg, mats)
		for way, ts := range map[string][]Transport{"in process": inProcessOn(t, names), "shared memory": meshOn(t, world, ShareAuto, host)} {
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
			noErrors(t, onAllNamed(t, ts, fmt.Sprint("factors ", c.lanes), Options{}, func(ctx context.Context, g *Group) error {
				f := compress.NewFactors(cfg, n, mats)
				own := make([][]float32, len(red.Nodes(g.Rank())))
				for k := range own {
					own[k] = make([]float32, n)
				}
				k, err := g.PrepareSums("gradient", red, own, func(all [][]float32, sum func([]float32) error) error { return f.Sum(all, own[0], sum) })
				if err != nil {
					return err
				}
				for step := range steps {
					for k, v := range runFold(red.Fold(g.Rank()), dyadicLanes(c.lanes, step, n))[:len(own)] {
						copy(own[k], v)
					}
					if err := g.Barrier(ctx, "before"); err != nil {
						return err
					}
					var before int64
					if g.Rank() == 0 {
						before = crossed()
					}
					if err := g.Barrier(ctx, "read"); err != nil {
						return err
					}
					f.Begin(step, 1)
					if err := k.Run(ctx); err != nil {
						return err
					}
					f.Commit()
					if !sameBits(own[0], want[step]) {
						return fmt.Errorf("%s, %+v, step %d: the sum differs from that of one contributor for each host", way, c, step)
					}
					if err := g.Barrier(ctx, "after"); err != nil {
						return err
					}
					first, second := f.Payload()
					if got, want := crossed()-before, int64(2*(c.hosts-1)*4*(first+second)); g.Rank() == 0 && got != want {
						return fmt.Errorf("%s, %+v, step %d: %d bytes crossed between hosts, want %d", way, c, step, got, want)
					}
					if err := g.Barrier(ctx, "counted"); err != nil {
						return err
					}
				}
				if !sameBits(f.Rest(), left[g.Rank()/c.each]) {
					return fmt.Errorf("%s, %+v: member %d has something else left", way, c, g.Rank())
				}
				return nil
			}))
		}
	}
}

// factorsTruth returns the sum of each step, and what each host has left, where hosts are contributors beside each other in memory.
func factorsTruth(t *testing.T, red *Reduction, hosts, each, steps, n int, cfg compress.Config, mats []compress.Matrix) (sums, left [][]float32) {
	t.Helper()
	f := make([]*compress.Factors, hosts)
	for h := range f {
		f[h] = compress.NewFactors(cfg, n, mats)
	}
	for step := range steps {
		lanes := dyadicLanes(red.lanes, step, n)
		// All hosts' sums meet: the last to come adds.
		vectors, done := make([][]float32, hosts), make([]chan struct{}, hosts)
		turn := make(chan int, hosts)
		results, errs := make([][]float32, hosts), make(chan error, hosts)
		for h := range f {
			done[h] = make(chan struct{})
			results[h] = make([]float32, n)
			var own [][]float32
			for _, node := range MaximalSubtrees(red.lanes, red.assign[h*each].Lo, red.assign[(h+1)*each-1].Hi) {
				own = append(own, treeSumOf(lanes, node))
			}
			f[h].Begin(step, 1)
			go func() {
				errs <- f[h].Sum(own, results[h], func(v []float32) error {
					vectors[h] = v
					turn <- h
					<-done[h]
					return nil
				})
			}()
		}
		for range 2 {
			for range hosts {
				<-turn
			}
			all := make([][]float32, hosts)
			for h, v := range vectors {
				all[h] = slices.Clone(v)
			}
			sum := treeSumOf(all, Tree{hosts}.Root())
			for h := range f {
				copy(vectors[h], sum)
			}
			for h := range f {
				done[h] <- struct{}{}
			}
		}
		for range hosts {
			if err := <-errs; err != nil {
				t.Fatal(err)
			}
		}
		for h := range f {
			f[h].Commit()
		}
		sums = append(sums, results[0])
	}
	for _, x := range f {
		left = append(left, x.Rest())
	}
	return sums, left
}

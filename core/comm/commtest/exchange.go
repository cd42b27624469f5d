package commtest

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"sync"
	"testing"

	"starling/core/comm"
	"starling/core/comm/mesh"
	"starling/core/compress"
	"starling/sdk/vec"
)

// exchanges checks the collectives in which every pair of members has parts of its own, of uneven lengths.
func exchanges(t *testing.T, ts []comm.Transport) {
	length := func(from, to int) int { return (from*37 + to*11) % 5 * 53 }
	part := func(from, to int) []byte { return bytes.Repeat([]byte{byte(16*from + to)}, length(from, to)) }
	onAll(t, ts, allRanks(ts), func(ctx context.Context, g *comm.Group) error {
		me := g.Rank()
		for range 3 {
			var send []byte
			var sends, recvs []comm.Range
			n := 0
			for m := range g.Size() {
				sends = append(sends, comm.Range{Lo: len(send), Hi: len(send) + length(me, m)})
				send = append(send, part(me, m)...)
				recvs = append(recvs, comm.Range{Lo: n, Hi: n + length(m, me)})
				n += length(m, me)
			}
			recv := make([]byte, n)
			if err := g.AllToAll(ctx, "tokens", sends, send, recvs, recv); err != nil {
				return err
			}
			for m, r := range recvs {
				if !bytes.Equal(recv[r.Lo:r.Hi], part(m, me)) {
					return fmt.Errorf("all-to-all: the part from %d is wrong", m)
				}
			}
			for root := range g.Size() {
				var ranges []comm.Range
				var all []byte
				if me == root {
					for m := range g.Size() {
						ranges = append(ranges, comm.Range{Lo: len(all), Hi: len(all) + length(root, m)})
						all = append(all, part(root, m)...)
					}
				}
				mine := make([]byte, length(root, me))
				if err := g.Scatter(ctx, "shards", root, ranges, all, mine); err != nil {
					return err
				}
				if !bytes.Equal(mine, part(root, me)) {
					return fmt.Errorf("scatter from %d gave other bytes", root)
				}
			}
		}
		return nil
	})
}

// lists checks that a list of vectors reduced as one gives what each gives alone.
func lists(t *testing.T, ts []comm.Transport) {
	onAll(t, ts, allRanks(ts), func(ctx context.Context, g *comm.Group) error {
		var list [][]float32
		for _, n := range []int{3, 0, 1000, 17, 1} {
			b := make([]float32, n)
			fill(b, g.Rank())
			list = append(list, b)
		}
		if err := g.AllReduceList(ctx, "small ones", list); err != nil {
			return err
		}
		for _, b := range list {
			if err := check(b, func(i int) (s float32) {
				for r := range g.Size() {
					s += value(i, r)
				}
				return s
			}); err != nil {
				return err
			}
		}
		return nil
	})
}

// axes checks the sub-groups of a mesh of 2 × 3 ranks.
func axes(t *testing.T, ts []comm.Transport) {
	m := mesh.Axes{{Name: "data", Size: 2}, {Name: "tensor", Size: 3}}
	onAll(t, ts, allRanks(ts), func(ctx context.Context, all *comm.Group) error {
		me := all.Rank()
		for _, c := range []struct {
			axes []string
			want []int
		}{
			{[]string{"tensor"}, []int{me / 3 * 3, me/3*3 + 1, me/3*3 + 2}},
			{[]string{"data"}, []int{me % 3, me%3 + 3}},
			{[]string{"data", "tensor"}, []int{0, 1, 2, 3, 4, 5}},
		} {
			g, err := comm.NewAxisGroup(ts[me], m, comm.Options{}, c.axes...)
			if err != nil {
				return err
			}
			sum := float32(0)
			for _, r := range c.want {
				sum += float32(r)
			}
			b := []float32{float32(me)}
			if err := g.AllReduce(ctx, "axis", b); err != nil {
				return err
			}
			if b[0] != sum || fmt.Sprint(g.Ranks()) != fmt.Sprint(c.want) {
				return fmt.Errorf("axes %v: members %v with sum %v, want %v with %v", c.axes, g.Ranks(), b[0], c.want, sum)
			}
			if err := g.Close(); err != nil {
				return err
			}
		}
		if _, err := comm.NewAxisGroup(ts[me], m, comm.Options{}, "pipeline"); err == nil {
			return fmt.Errorf("a group over an axis that does not exist was made")
		}
		return nil
	})
}

// axesAtWork has the groups of all axes of a mesh at work at once: each rank starts the sums of one after the other and waits for none
// before all are started, and ranks start those of different groups in different orders.
func axesAtWork(t *testing.T, ts []comm.Transport) {
	m := mesh.Axes{{Name: "data", Size: 2}, {Name: "tensor", Size: 3}}
	axes := [][]string{{"data"}, {"tensor"}, {"data", "tensor"}}
	const rounds = 3
	sizes := []int{1, 5000, 300_000}
	onAll(t, ts, allRanks(ts), func(ctx context.Context, all *comm.Group) error {
		me := all.Rank()
		type sum struct {
			handle *comm.Handle
			buf    []float32
			want   float32
		}
		var sums []sum
		groups := make([]*comm.Group, len(axes))
		for i, names := range axes {
			g, err := comm.NewAxisGroup(ts[me], m, comm.Options{}, names...)
			if err != nil {
				return err
			}
			defer g.Close()
			groups[i] = g
		}
		for round := range rounds {
			for _, size := range sizes {
				for i := range groups {
					g := groups[(i+me)%len(groups)]
					b := make([]float32, size)
					for j := range b {
						b[j] = float32(me + round + j%7)
					}
					s := sum{buf: b}
					for _, r := range g.Ranks() {
						s.want += float32(r + round)
					}
					s.handle = g.StartAllReduce("axis", b)
					sums = append(sums, s)
				}
			}
		}
		for k := len(sums) - 1; k >= 0; k-- { // the last first
			s := sums[k]
			if err := s.handle.Wait(ctx); err != nil {
				return err
			}
			members := float32(len(groups[(k%len(groups)+me)%len(groups)].Ranks()))
			for j, x := range s.buf {
				if want := s.want + members*float32(j%7); x != want {
					return fmt.Errorf("sum %d, element %d is %v, want %v", k, j, x, want)
				}
			}
		}
		return nil
	})
}

// compressedSums checks sums of compressed vectors: all members get the same, and over several steps what they get and what they
// keep is what they gave.
func compressedSums(t *testing.T, ts []comm.Transport) {
	const steps = 4
	lanes := 2*len(ts) - 1
	red, err := comm.NewReduction(lanes, comm.Assign(lanes, len(ts)))
	if err != nil {
		t.Fatal(err)
	}
	type outcome struct{ left, got [][]float32 } // of each member: what it keeps, as a whole vector, and what it got in all steps
	var mu sync.Mutex
	outcomes := map[string]*outcome{}
	onAll(t, ts, allRanks(ts), func(ctx context.Context, g *comm.Group) error {
		for _, cfg := range []compress.Config{{Kind: compress.Int8, Block: 16}, {Kind: compress.BF16}, {Kind: compress.TopK, Ratio: 0.1, Warmup: 2}} {
			for _, n := range []int{1, 100, 1000} {
				at := g.Hosting().Sum(n)
				s := compress.NewStream(cfg, at.Len(), at.Chunk.Len())
				own := make([][]float32, len(red.Nodes(g.Rank())))
				for k := range own {
					own[k] = make([]float32, n)
				}
				dst, total := make([]float32, n), make([]float32, n)
				if len(own) > 0 {
					dst = own[0]
				}
				c, err := g.PrepareAllReduceCompressed("gradient", red, own, dst, s)
				if err != nil {
					return err
				}
				for step := range steps {
					s.Begin(step, 1)
					for k := range own {
						fill(own[k], g.Rank()+10*k+step)
					}
					if err := c.Run(ctx); err != nil {
						return err
					}
					s.Commit()
					vec.AddTo(total, dst)
				}
				left := make([]float32, n)
				copy(left[at.Parts[0].Lo:], s.Rest())
				vec.AddTo(left[at.Chunk.Lo:at.Chunk.Hi], s.Owned())
				mu.Lock()
				name := fmt.Sprintf("%v, %d elements", cfg, n)
				if outcomes[name] == nil {
					outcomes[name] = &outcome{make([][]float32, len(ts)), make([][]float32, len(ts))}
				}
				outcomes[name].left[g.Rank()], outcomes[name].got[g.Rank()] = left, total
				mu.Unlock()
			}
		}
		return sumsBetween(ctx, g)
	})
	for name, o := range outcomes {
		for i := range o.got[0] {
			want, left := 0.0, 0.0
			for m := range ts {
				left += float64(o.left[m][i])
				for k := range red.Nodes(m) {
					for step := range steps {
						want += float64(value(i, m+10*k+step))
					}
				}
			}
			for m, v := range o.got {
				if v[i] != o.got[0][i] || math.Abs(float64(v[i])+left-want) > 1e-3*(1+math.Abs(want)) {
					t.Fatalf("%s, rank %d, element %d: %v delivered (rank 0: %v) and %v kept of %v", name, m, i, v[i], o.got[0][i], left, want)
				}
			}
		}
	}
}

// sumsBetween checks a collective of two sums, the second of which depends on the first.
func sumsBetween(ctx context.Context, g *comm.Group) error {
	a, b := make([]float32, 100), make([]float32, 3)
	red, err := comm.NewReduction(g.Size(), comm.Assign(g.Size(), g.Size()))
	if err != nil {
		return err
	}
	own := make([]float32, len(a))
	c, err := g.PrepareSums("two sums", red, [][]float32{own}, func(own [][]float32, sum func([]float32) error) error {
		copy(a, own[0])
		if err := sum(a); err != nil {
			return err
		}
		copy(b, a[97:])
		return sum(b)
	})
	whole := func(i int) (v float32) {
		for r := range g.Size() {
			v += value(i, r)
		}
		return v
	}
	if err != nil {
		return err
	}
	for range 2 {
		fill(own, g.Rank())
		if err := c.Run(ctx); err != nil {
			return err
		}
		if err := check(a, whole); err != nil {
			return err
		}
		if err := check(b, func(i int) float32 { return float32(g.Size()) * whole(97+i) }); err != nil {
			return err
		}
	}
	return nil
}

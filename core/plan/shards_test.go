package plan

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"starling/core/comm"
	"starling/core/device"
	"starling/core/graph"
	"starling/core/tensor"
)

// The table of the ZeRO paper (figure 1): 7.5 billion parameters on 64 ranks, mixed precision with Adam.
func TestEstimateIsThePapersTable(t *testing.T) {
	for stage, want := range []float64{120, 31.4, 16.6, 1.9} {
		e := EstimateState(7.5e9, stage, 64, 64, ElementBytes{Weight: 2, Grad: 2, State: 12})
		if got := e.Total() / 1e9; math.Abs(got-want) > 0.05 {
			t.Errorf("stage %d: %.2f GB, want %.1f", stage, got, want)
		}
	}
}

// expression writes the canonical sum over a node's lanes with its parentheses.
func expression(lanes int, node comm.Range) string {
	left, right, ok := comm.Tree{Lanes: lanes}.Children(node)
	if !ok {
		return fmt.Sprint(node.Lo)
	}
	return "(" + expression(lanes, left) + "+" + expression(lanes, right) + ")"
}

// Whatever the number of lanes and ranks, the rounds add in the canonical order.
func TestRoundsAddInTreeOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		lanes := rapid.IntRange(1, 40).Draw(t, "lanes")
		world := rapid.IntRange(2, 40).Draw(t, "world")
		if world > lanes {
			t.Skip("more ranks than lanes")
		}
		rounds, slots, err := planRounds(Settings{Lanes: lanes, MicroBatches: lanes, World: world})
		if err != nil {
			t.Fatal(err)
		}
		held := make([]string, slots)
		for _, r := range rounds {
			for _, s := range r.Sums {
				if held[s.Slot] != "" {
					t.Fatalf("slot %d is written while it holds %s", s.Slot, held[s.Slot])
				}
				held[s.Slot] = expression(lanes, s.Node)
			}
			for _, a := range r.Adds {
				held[a.Dst], held[a.Src] = "("+held[a.Dst]+"+"+held[a.Src]+")", ""
			}
		}
		want := expression(lanes, comm.Tree{Lanes: lanes}.Root())
		if held[0] != want || strings.Join(held[1:], "") != "" {
			t.Fatalf("%d lanes on %d ranks: the rounds leave %q, want %s", lanes, world, held, want)
		}
		if aligned := lanes%world == 0 && world&(world-1) == 0; aligned && slots > 1+int(math.Ceil(math.Log2(float64(lanes/world)))) {
			t.Fatalf("%d lanes on %d ranks need %d partial sums, want at most 1 + log2 of %d", lanes, world, slots, lanes/world)
		}
	})
}

func sharded(world, rank, stage, lanes int) Settings {
	s := settings(world, rank)
	s.Zero, s.Lanes, s.MicroBatches = stage, lanes, 12
	return s
}

// Every rank's plan is sound at every stage, the ranks' shares make up every parameter, and they are cut where norm blocks end.
func TestSharesMakeUpEveryParameter(t *testing.T) {
	g := gpt(t, gptSize{B: 1, T: 8, C: 64, V: 200, Layers: 2, Heads: 2}, true)
	for _, lanes := range []int{6, 12} {
		for stage := 1; stage <= 3; stage++ {
			for world := 2; world <= 5; world++ {
				owned := map[string]int{}
				for rank := range world {
					s := sharded(world, rank, stage, lanes)
					s.Half = []tensor.DType{tensor.F32, tensor.BF16, tensor.F16}[world%3]
					s.BucketBytes, s.KeepGathered, s.NoOverlap = 60<<10, rank == 1, rank == 2
					p := mustBuild(t, g, s)
					forward := gpt(t, gptSize{B: 1, T: 8, C: 64, V: 200, Layers: 2, Heads: 2}, false)
					if err := p.AddForward("evaluate", forward); err != nil {
						t.Fatal(err)
					}
					if err := Check(p); err != nil {
						t.Fatal(err)
					}
					for _, q := range p.Params {
						if q.Owned.Len() == 0 {
							continue
						}
						if q.Owned.Lo != owned[q.Name] || q.Owned.Lo%graph.SumSquaresBlock != 0 {
							t.Fatalf("zero %d, rank %d of %d: %s from element %d, want %d, at a norm block", stage, rank, world, q.Name, q.Owned.Lo, owned[q.Name])
						}
						owned[q.Name] = q.Owned.Hi
					}
					if rank < world-1 {
						continue
					}
					for _, q := range p.Params {
						if owned[q.Name] != q.Whole.Shape.Numel() {
							t.Fatalf("zero %d on %d ranks: %d elements of %s have an owner, of %d", stage, world, owned[q.Name], q.Name, q.Whole.Shape.Numel())
						}
					}
				}
			}
		}
	}
}

// Under hybrid sharding each group of ranks keeps every parameter once, replicas keep the same, and each element is updated by one rank.
func TestGroupsKeepOneCopyEach(t *testing.T) {
	size := gptSize{B: 1, T: 8, C: 64, V: 200, Layers: 2, Heads: 2}
	for _, c := range []struct{ world, shard int }{{4, 2}, {6, 3}, {6, 2}, {4, 1}, {6, 6}} {
		for _, half := range []tensor.DType{tensor.F32, tensor.BF16} {
			var plans []*Plan
			for rank := range c.world {
				s := sharded(c.world, rank, 3, 12)
				s.Shard, s.Half, s.BucketBytes, s.NoOverlap = c.shard, half, 60<<10, c.world == 4
				p := mustBuild(t, gpt(t, size, true), s)
				if err := p.AddForward("evaluate", gpt(t, size, false)); err != nil {
					t.Fatal(err)
				}
				if err := Check(p); err != nil {
					t.Fatalf("%+v, rank %d: %v", c, rank, err)
				}
				plans = append(plans, p)
			}
			for i, q := range plans[0].Params {
				updated, kept := 0, make([]int, c.world/c.shard)
				for _, r := range plans[0].ShareOrder(&q) {
					if own := plans[r].Params[i].Owned; own.Len() > 0 {
						if own.Lo != updated {
							t.Fatalf("%+v: rank %d updates %s from element %d, want %d", c, r, q.Name, own.Lo, updated)
						}
						updated = own.Hi
					}
				}
				for r, p := range plans {
					held, own := p.Params[i].Held, p.Params[i].Owned
					if own.Len() > 0 && (own.Lo < held.Lo || own.Hi > held.Hi) {
						t.Fatalf("%+v: rank %d updates %v of %s and keeps %v", c, r, own, q.Name, held)
					}
					if held != plans[r%c.shard].Params[i].Held {
						t.Fatalf("%+v: rank %d keeps %v of %s, its replica %d %v", c, r, held, q.Name, r%c.shard, plans[r%c.shard].Params[i].Held)
					}
					kept[r/c.shard] += held.Len()
				}
				n := q.Whole.Shape.Numel()
				for g, k := range kept {
					if k != n || updated != n {
						t.Fatalf("%+v: group %d keeps %d elements of %s and all ranks update %d, of %d", c, g, k, q.Name, updated, n)
					}
				}
			}
		}
	}
}

// What parameters cost under hybrid sharding: memory by the group, moments by the world, and no gathering between groups.
func TestHybridShardingTakesItsShare(t *testing.T) {
	g := gpt(t, gptSize{B: 1, T: 4, C: 128, V: 20, Layers: 12, Heads: 2}, true)
	of := func(shard int) Summary {
		s := sharded(8, 0, 3, 12)
		s.MicroBatches, s.Shard = 12, shard
		return mustBuild(t, g, s).Summary()
	}
	all, two := of(0), of(4)
	whole := float64(4 * all.Parameters)
	if a, b := float64(all.Arenas[device.Params])*8/whole, float64(two.Arenas[device.Params])*4/whole; math.Abs(a-1) > 0.05 || math.Abs(b-1) > 0.05 {
		t.Errorf("parameters take %.2f of an eighth on 8 ranks, and %.2f of a quarter in groups of 4", a, b)
	}
	if a, b := all.Arenas[device.State], two.Arenas[device.State]; math.Abs(float64(a)-float64(b)) > 0.05*float64(a) {
		t.Errorf("the optimizer's state takes %d bytes in groups of 4, want about %d as over all ranks", b, a)
	}
	if of(8).String() != all.String() {
		t.Error("groups of all ranks have another plan than none")
	}
	// A group's gathering, twice for each of two rounds of lanes, and once the update between two replicas.
	want := whole/4*3*4 + whole/8
	if got := float64(two.GatherSentBytes); math.Abs(got-want) > 0.1*want {
		t.Errorf("%.0f bytes are sent to complete parameters, want about %.0f", got, want)
	}
}

func TestShardMustDivideData(t *testing.T) {
	for _, c := range []struct {
		zero, shard int
		want        string
	}{{3, 4, "it must divide data; use shard = 3"}, {3, 7, "use shard = 6"}, {3, -1, "use shard = 1"}, {2, 3, "it needs zero = 3"}} {
		s := sharded(6, 0, c.zero, 12)
		s.Shard = c.shard
		if err := s.Validate(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("zero = %d, shard = %d on 6 ranks: %v; want %q", c.zero, c.shard, err, c.want)
		}
	}
}

// Collectives run in one order on all ranks, whatever they own: nothing else keeps them from waiting for each other.
func TestRanksAgreeOnTheOrderOfCollectives(t *testing.T) {
	g := gpt(t, gptSize{B: 1, T: 8, C: 32, V: 50, Layers: 3, Heads: 2}, true)
	for stage := 1; stage <= 3; stage++ {
		var want string
		for rank := range 4 {
			p := mustBuild(t, g, sharded(4, rank, stage, 12))
			var b strings.Builder
			for _, name := range p.SegmentNames() {
				for _, in := range p.Segments[name].Instrs {
					if in.Kind == device.Start {
						fmt.Fprintf(&b, "%s %s %d\n", name, in.Collective, in.Bucket)
					}
				}
			}
			if want == "" {
				want = b.String()
			}
			if b.String() != want || want == "" {
				t.Fatalf("zero %d: rank %d starts\n%srank 0\n%s", stage, rank, b.String(), want)
			}
		}
	}
}

// At stage 3 no rank has room for the whole model, not even for the time of a step: what is gathered at once is a few blocks.
func TestGatheredBlocksComeAndGo(t *testing.T) {
	size := gptSize{B: 1, T: 4, C: 64, V: 20, Layers: 12, Heads: 2}
	p := mustBuild(t, gpt(t, size, true), sharded(4, 0, 3, 12))
	s := p.Summary()
	whole := 4 * s.Parameters
	if s.GatheredBytes == 0 || s.GatheredBytes > whole/4 {
		t.Errorf("%d bytes of parameters are gathered at once, want at most a quarter of %d", s.GatheredBytes, whole)
	}
	keep := sharded(4, 0, 3, 12)
	keep.KeepGathered = true
	if k := mustBuild(t, gpt(t, size, true), keep).Summary(); k.GatheredBytes < whole/2 || k.GatherSentBytes >= s.GatherSentBytes {
		t.Errorf("kept gathered: %d bytes at once, %d sent; want most of %d, and less than %d sent", k.GatheredBytes, k.GatherSentBytes, whole, s.GatherSentBytes)
	}
}

// A tensor larger than any bucket is met when planning, at every stage: it travels in a bucket of its own, and a note says so.
func TestATensorLargerThanABucket(t *testing.T) {
	m := newTracer(t)
	x := m.input("x", tensor.F32, 1, 1024)
	targets := m.input("targets", tensor.I32, 1)
	ce := m.ops(graph.OpCrossEntropy, graph.CrossEntropyAttrs{Ignore: -1}, m.op(graph.OpLinear, nil, x, m.param("w", 512412, 1024)), targets)
	m.b.Output(OutputLoss, ce[0])
	m.b.Output(OutputWeight, ce[1])
	for stage := range 4 {
		s := sharded(3, 1, stage, 12)
		s.BucketBytes = 400e6
		p := mustBuild(t, m.b.G, s)
		if len(p.Buckets) != 1 || len(p.Notes) != 1 || !strings.Contains(p.Notes[0], "the gradient of w takes 1.95 GiB, more than a bucket of 381.5 MiB") {
			t.Errorf("zero %d: %d buckets and the notes %q", stage, len(p.Buckets), p.Notes)
		}
		if q := p.Param("w"); stage > 0 && math.Abs(float64(q.Owned.Len())-524709888/3.0) > graph.SumSquaresBlock {
			t.Errorf("zero %d: rank 1 owns %d elements, want a third", stage, q.Owned.Len())
		}
	}
}

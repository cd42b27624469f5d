package plan

import (
	"slices"
	"strings"
	"testing"

	"starling/core/device"
	"starling/core/device/ref"
	"starling/core/graph"
	"starling/core/tensor"
)

var deepGPT = gptSize{B: 4, T: 16, C: 32, V: 20, Layers: 12, Heads: 2}

// Bit for bit the same weights, whatever is computed again: dropout, tied weights, several lanes, three steps.
func TestRecomputingChangesNoBit(t *testing.T) {
	size := gptSize{B: 1, T: 4, C: 8, V: 12, Layers: 3, Heads: 2}
	g := gpt(t, size, true)
	var want []*graph.Array
	for i, r := range []Recompute{{}, {All: true}, {Every: 2}, {Blocks: []string{"h.1"}}, {Blocks: []string{"h.*"}}} {
		s := settings(2, 0)
		s.Recompute = r
		w := newWorld(t, g, s)
		for range 3 {
			w.step(func(m int) ref.Feeds { return randomBatch(g, m, 12) }, testHyper, 1.0/64)
		}
		var got []*graph.Array
		for _, q := range w.ranks[0].plan.Params {
			got = append(got, w.ranks[0].read(q.Place))
		}
		if i == 0 {
			want = got
		}
		for k := range got {
			if !slices.Equal(got[k].Data, want[k].Data) {
				t.Errorf("%+v: parameter %d differs", r, k)
			}
		}
	}
}

func TestRecomputingSavesMemory(t *testing.T) {
	g := gpt(t, deepGPT, true)
	work := func(r Recompute, half tensor.DType) int64 {
		s := settings(1, 0)
		s.Recompute, s.Half = r, half
		return mustBuild(t, g, s).ArenaBytes[device.Work]
	}
	for _, half := range []tensor.DType{tensor.F32, tensor.BF16} {
		kept, all, every := work(Recompute{}, half), work(Recompute{All: true}, half), work(Recompute{Every: 2}, half)
		if float64(all) > 0.4*float64(kept) {
			t.Errorf("%v: activations take %d bytes, %d with every block recomputed: want at least 60%% fewer", half, kept, all)
		}
		if !(all < every && every < kept) {
			t.Errorf("%v: every second block recomputed takes %d bytes, want between %d and %d", half, every, all, kept)
		}
	}
}

func TestABudgetIsKept(t *testing.T) {
	g := gpt(t, deepGPT, true)
	s := settings(1, 0)
	kept := mustBuild(t, g, s).ArenaBytes[device.Work]
	before := 0
	for _, share := range []int64{2, 3, 5} {
		s.Recompute.Budget = kept * share / 6
		p := mustBuild(t, g, s)
		n := len(p.Settings.Recompute.Blocks)
		if p.ArenaBytes[device.Work] > s.Recompute.Budget || n == 0 || before > 0 && n > before {
			t.Errorf("a budget of %d of %d bytes: %d bytes with %d blocks recomputed, after %d blocks for a smaller one", s.Recompute.Budget, kept, p.ArenaBytes[device.Work], n, before)
		}
		before = n
	}
	s.Recompute.Budget = kept
	if p := mustBuild(t, g, s); len(p.Settings.Recompute.Blocks) > 0 {
		t.Errorf("%v are recomputed where everything fits", p.Settings.Recompute.Blocks)
	}
	s.Recompute.Budget = kept / 100
	if _, err := Build(g, s); err == nil || !strings.Contains(err.Error(), "smaller micro_batch") {
		t.Errorf("a budget that nothing meets: error %v, want one with advice", err)
	}
	s.Recompute = Recompute{Blocks: []string{"layer.*"}}
	if _, err := Build(g, s); err == nil || !strings.Contains(err.Error(), "h.0, h.1") {
		t.Errorf("a pattern that matches nothing: error %v, want one that lists the blocks", err)
	}
}

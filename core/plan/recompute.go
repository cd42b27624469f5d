package plan

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"starling/core/graph"
)

// Recompute says of which blocks of the model the activations are dropped after the forward pass and computed again for the
// backward pass (Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016). A block is named as blockOf names it: h.3
// for everything in h.3.attn and h.3.mlp. What passes from one block to the next is kept. Nothing is dropped by the zero value.
type Recompute struct {
	// All blocks, or those with number 0, Every, 2·Every … in the order of the trace, or those whose name matches one of Blocks (globs
	// in which * crosses dots).
	All    bool
	Every  int
	Blocks []string
	// Budget, if not 0, is how many bytes the activations of a micro-batch may take: blocks are dropped, those first that cost the least
	// arithmetic for the memory they free, until it fits.
	Budget int64
}

func (r Recompute) active() bool { return r.All || r.Every > 0 || len(r.Blocks) > 0 }

// recompute makes the backward pass compute what it needs of the chosen blocks from what is kept. A node that is run again has the same
// attributes as the first time, so that random draws, which are keyed by them, come out equal.
func recompute(s *State) error {
	if !s.Settings.Recompute.active() {
		return nil
	}
	blocks := blocksOf(s.Graph)
	chosen, err := s.Settings.Recompute.choose(blocks)
	if err != nil {
		return err
	}
	r := rematerializer{rewriter: newRewriter(), settings: s.Settings, chosen: chosen, again: map[*graph.Value]*graph.Value{}}
	r.kept = keptValues(s.Graph)
	for _, n := range s.Graph.Nodes {
		if !isBackward(n) {
			r.copy(n)
			continue
		}
		in := make([]*graph.Value, len(n.In))
		for i, v := range n.In {
			in[i] = r.value(v)
		}
		out := r.apply(n, n.Op, n.Attrs, in...)
		for i, v := range n.Out {
			r.env[v] = out[i]
		}
	}
	s.Graph = r.finish(s.Graph)
	return nil
}

// blocksOf lists the blocks of the forward pass in the order of the trace.
func blocksOf(g *graph.Graph) []string {
	var out []string
	for _, n := range g.Nodes {
		if b := blockOf(n.Block); n.Block != "" && !isBackward(n) && !isSource(n) && !slices.Contains(out, b) {
			out = append(out, b)
		}
	}
	return out
}

func (r Recompute) choose(blocks []string) (map[string]bool, error) {
	chosen := map[string]bool{}
	for i, b := range blocks {
		chosen[b] = r.All || r.Every > 0 && i%r.Every == 0
	}
	for _, pattern := range r.Blocks {
		found := false
		for _, b := range blocks {
			ok, err := path.Match(pattern, b)
			if err != nil {
				return nil, fmt.Errorf("recompute.blocks(%q): %w", pattern, err)
			}
			if ok {
				chosen[b], found = true, true
			}
		}
		if !found {
			if len(blocks) == 0 {
				return nil, fmt.Errorf("recompute.blocks(%q): the model has no blocks; call its layers through nn.block(name, fn, …)", pattern)
			}
			return nil, fmt.Errorf("recompute.blocks(%q): no block has such a name; the model's blocks are %s", pattern, strings.Join(blocks, ", "))
		}
	}
	return chosen, nil
}

// keptValues are the forward values that stay: outputs, and what one block hands to another.
func keptValues(g *graph.Graph) map[*graph.Value]bool {
	kept := map[*graph.Value]bool{}
	keep := func(v *graph.Value) { kept[rootOf(v)] = true }
	for _, o := range g.Outputs {
		keep(o.Value)
	}
	for _, n := range g.Nodes {
		if isBackward(n) {
			continue
		}
		for _, v := range n.In {
			if d := rootOf(v).Def; blockOf(d.Block) != blockOf(n.Block) {
				keep(v)
			}
		}
	}
	return kept
}

type rematerializer struct {
	*rewriter
	settings Settings
	chosen   map[string]bool
	kept     map[*graph.Value]bool
	again    map[*graph.Value]*graph.Value // values that are computed again
}

// value is what a backward node reads where it read v.
func (r *rematerializer) value(v *graph.Value) *graph.Value {
	n := v.Def
	if isBackward(n) || isSource(n) || r.settings.isWeight(n) || len(n.In) == 0 || !r.chosen[blockOf(n.Block)] || r.kept[v] || r.kept[rootOf(v)] && !n.Op.View {
		return r.env[v]
	}
	if w := r.again[v]; w != nil {
		return w
	}
	in := make([]*graph.Value, len(n.In))
	for i, x := range n.In {
		in[i] = r.value(x)
	}
	r.b.Pos, r.b.Block, r.b.Phase = n.Pos, n.Block, graph.Backward
	out := r.b.Must(n.Op, n.Attrs, in...)
	for i, x := range n.Out {
		r.again[x] = out[i]
	}
	return r.again[v]
}

// fitBudget builds the plan with as few blocks recomputed as the budget needs.
func fitBudget(train *graph.Graph, s Settings) (*Plan, error) {
	budget := s.Recompute.Budget
	s.Recompute = Recompute{}
	build := func(blocks []string) (*Plan, error) {
		s := s
		s.Recompute.Blocks = blocks
		return Build(train, s)
	}
	p, err := build(nil)
	if err != nil || p.activations() <= budget {
		return p, err
	}
	order := p.cheapestFirst()
	least := p
	lo, hi := 1, len(order) // the least number that fits lies in [lo, hi], if any does
	var fits *Plan
	for lo <= hi {
		mid := (lo + hi) / 2
		if p, err = build(order[:mid]); err != nil {
			return nil, err
		}
		if p.activations() < least.activations() {
			least = p
		}
		if p.activations() <= budget {
			fits, hi = p, mid-1
		} else {
			lo = mid + 1
		}
	}
	if fits == nil && len(order) == 0 {
		return nil, fmt.Errorf("recompute.budget: the model has no blocks to recompute; call its layers through nn.block(name, fn, …)")
	}
	if fits == nil {
		return nil, fmt.Errorf("recompute.budget: activations take %s even with %d of %d blocks recomputed, more than the budget of %s; use a smaller micro_batch, or a budget of at least that",
			bytesString(least.activations()), len(least.Settings.Recompute.Blocks), len(order), bytesString(budget))
	}
	fits.Notes = append(fits.Notes, fmt.Sprintf("recomputed to stay within %s: %s", bytesString(budget), strings.Join(fits.Settings.Recompute.Blocks, ", ")))
	return fits, nil
}

// activations is the Work memory of a micro-batch without gathered parameters.
func (p *Plan) activations() int64 {
	for _, l := range p.lowered {
		if l.name == SegmentMicro {
			return p.Segments[l.name].WorkBytes - l.gatherBytes
		}
	}
	return 0
}

// cheapestFirst orders the blocks by the arithmetic that recomputing them takes for each byte that it frees.
func (p *Plan) cheapestFirst() []string {
	g := p.Passes[len(p.Passes)-1].Graph
	flops, bytes := map[string]int64{}, map[string]int64{}
	kept := keptValues(g)
	needed := map[*graph.Value]bool{}
	for _, n := range g.Nodes {
		if isBackward(n) {
			for _, v := range n.In {
				needed[rootOf(v)] = true
			}
		}
	}
	for _, n := range g.Nodes {
		if isBackward(n) || isSource(n) || n.Op.View || p.Settings.isWeight(n) {
			continue
		}
		f, _ := cost(n)
		flops[blockOf(n.Block)] += f
		for _, v := range n.Out {
			if needed[v] && !kept[v] {
				bytes[blockOf(n.Block)] += v.Bytes()
			}
		}
	}
	blocks := slices.DeleteFunc(blocksOf(g), func(b string) bool { return bytes[b] == 0 })
	slices.SortStableFunc(blocks, func(a, b string) int {
		x, y := float64(flops[a])/float64(bytes[a]), float64(flops[b])/float64(bytes[b])
		switch {
		case x < y:
			return -1
		case x > y:
			return 1
		}
		return 0
	})
	return blocks
}

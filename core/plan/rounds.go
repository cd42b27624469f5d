package plan

import (
	"fmt"
	"slices"

	"starling/core/comm"
	"starling/core/tensor"
)

// Round is one turn of lanes under sharded gradients: rank r runs lane Lanes.Lo + r, and when the lanes are finished, each
// bucket is summed over them and only the owner of each piece keeps the result.
//
// Running neighbouring lanes at the same time is what makes the sum small: the lanes of a round are one subtree of the
// canonical tree, or a few, so that an owner keeps as many partial sums of its own piece as the tree is deep, instead of every
// rank's.
type Round struct {
	Lanes comm.Range
	// Runs is how often every rank runs the micro segment: the micro-batches of the round's longest lane. A rank whose lane
	// is shorter, or that has none, first takes part in the collectives without computing.
	Runs int
	Sums []RoundSum
	// Adds join sums of this and earlier rounds once all of Sums are there: slot Dst becomes slot Dst + slot Src.
	Adds []comm.Add
}

// RoundSum is one subtree of the canonical tree over lanes and the slot that its sum goes to.
type RoundSum struct {
	Node      comm.Range
	Reduction *comm.Reduction
	Slot      int
}

// planRounds cuts the lanes into rounds of one lane for each rank and follows the canonical tree through them. It returns the
// number of slots that partial sums need; the whole sum ends in slot 0.
func planRounds(s Settings) ([]Round, int, error) {
	var rounds []Round
	type part struct {
		node comm.Range
		slot int
	}
	var live []part // ascending
	slots := 0
	for lo := 0; lo < s.Lanes; lo += s.World {
		r := Round{Lanes: comm.Range{Lo: lo, Hi: min(lo+s.World, s.Lanes)}}
		for l := r.Lanes.Lo; l < r.Lanes.Hi; l++ {
			r.Runs = max(r.Runs, s.LaneMicroBatches(l).Len())
		}
		for _, node := range comm.MaximalSubtrees(s.Lanes, r.Lanes.Lo, r.Lanes.Hi) {
			red, err := s.reductionOf(lo, node)
			if err != nil {
				return nil, 0, err
			}
			slot := 0
			for slices.ContainsFunc(live, func(p part) bool { return p.slot == slot }) {
				slot++
			}
			slots = max(slots, slot+1)
			live = append(live, part{node, slot})
			r.Sums = append(r.Sums, RoundSum{node, red, slot})
		}
		for i := 0; i+1 < len(live); {
			left, right := live[i], live[i+1]
			whole := comm.Range{Lo: left.node.Lo, Hi: right.node.Hi}
			if !siblings(s.Lanes, left.node, right.node) {
				i++
				continue
			}
			r.Adds = append(r.Adds, comm.Add{Dst: left.slot, Src: right.slot})
			live = slices.Delete(live, i+1, i+2)
			live[i].node = whole
			i = max(0, i-1)
		}
		rounds = append(rounds, r)
	}
	if len(live) != 1 || live[0].slot != 0 {
		return nil, 0, fmt.Errorf("plan: broken invariant: %d lanes on %d ranks leave the sums %v", s.Lanes, s.World, live)
	}
	return rounds, slots, nil
}

// siblings reports whether two nodes are the children of one.
func siblings(lanes int, a, b comm.Range) bool {
	t := comm.Tree{Lanes: lanes}
	whole := comm.Range{Lo: a.Lo, Hi: b.Hi}
	if a.Hi != b.Lo || !t.IsNode(whole) {
		return false
	}
	left, _, _ := t.Children(whole)
	return left == a
}

// reductionOf sums the lanes of one node, each from the rank that runs it in the round that begins at lane lo. A subtree of n
// lanes has the shape of the tree over n lanes.
func (s Settings) reductionOf(lo int, node comm.Range) (*comm.Reduction, error) {
	assign := make([]comm.Range, s.World)
	at := 0
	for r := range assign {
		assign[r] = comm.Range{Lo: at, Hi: at}
		if lane := lo + r; node.Lo <= lane && lane < node.Hi {
			at++
			assign[r].Hi = at
		}
	}
	red, err := comm.NewReduction(node.Len(), assign)
	if err != nil {
		return nil, err
	}
	return s.rounded(red), nil
}

// rounded is a reduction as sums over lanes are made: in fp32, or rounded at each node.
func (s Settings) rounded(r *comm.Reduction) *comm.Reduction {
	switch s.Reduce {
	case tensor.BF16:
		return r.Rounded(comm.BFloat16)
	case tensor.F16:
		return r.Rounded(comm.Float16)
	}
	return r
}

// Rounding is the type to which a bucket's sums over lanes are rounded, Invalid where they stay in fp32.
func (p *Plan) Rounding(b Bucket) tensor.DType {
	if b.Buffers {
		return tensor.Invalid
	}
	return p.Settings.Reduce
}

// ReductionFor is a reduction of the plan as it is made of a bucket: buffers are not rounded.
func (p *Plan) ReductionFor(b Bucket, r *comm.Reduction) *comm.Reduction {
	if b.Buffers {
		return r.Exact()
	}
	return r
}

// sumBytes is what an element of a bucket's sums takes on its way.
func (p *Plan) sumBytes(b Bucket) int64 {
	if p.Rounding(b) != tensor.Invalid {
		return 2
	}
	return 4
}

// LaneStep is one lane as the rank runs it: which micro-batches, the gradient buffer they accumulate into and how often
// the top of the stack of buffers is then added into the buffer below it (device.Env.Merges).
type LaneStep struct {
	Lane         int // -1 where the rank only takes part in a round's collectives
	MicroBatches comm.Range
	Buffer       int
	Merges       int
	// Round is the number of the round under sharded gradients, and Idle how often the rank runs the micro segment without
	// work of its own before its micro-batches.
	Round, Idle int
}

// LaneSteps lists the lanes of the plan's rank in the order in which it runs them. It follows the canonical tree of
// comm.NewFold, or the rounds of sharded gradients.
func (p *Plan) LaneSteps() []LaneStep { return p.laneSteps(p.Settings.Rank) }

func (p *Plan) laneSteps(rank int) []LaneStep {
	if p.Rounds == nil {
		fold := p.Reduction.Fold(rank)
		steps := make([]LaneStep, len(fold.Steps))
		for i, f := range fold.Steps {
			steps[i] = LaneStep{Lane: f.Lane, MicroBatches: p.Settings.LaneMicroBatches(f.Lane), Buffer: f.Buffer, Merges: len(f.Adds)}
		}
		return steps
	}
	steps := make([]LaneStep, len(p.Rounds))
	for i, r := range p.Rounds {
		steps[i] = LaneStep{Lane: -1, Round: i, Idle: r.Runs}
		if lane := r.Lanes.Lo + rank; lane < r.Lanes.Hi {
			m := p.Settings.LaneMicroBatches(lane)
			steps[i] = LaneStep{Lane: lane, MicroBatches: m, Round: i, Idle: r.Runs - m.Len()}
		}
	}
	return steps
}

// Schedule lists the micro-batches that a rank runs in a step, ascending.
func (p *Plan) Schedule(rank int) []int {
	var out []int
	for _, l := range p.laneSteps(rank) {
		for m := l.MicroBatches.Lo; m < l.MicroBatches.Hi; m++ {
			out = append(out, m)
		}
	}
	return out
}

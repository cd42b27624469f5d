package plan

import (
	"starling/core/device"
	"starling/core/graph"
	"starling/core/tensor"
)

// buildMicro lowers one micro-batch. Behind the instruction that completes a bucket stand its Fold, where this rank
// runs several lanes, and its Start, where there are other ranks.
func (p *Plan) buildMicro(st *State) error {
	complete := map[*graph.Node][]int{} // node → the buckets that it completes
	for _, b := range p.Buckets {
		last := st.Graph.Output(b.Grads[len(b.Grads)-1].Output()).Def
		complete[last] = append(complete[last], b.Index)
	}
	l := &lowering{plan: p, g: st.Graph, where: binding{nowhere, p.accumulatorPlace}}
	if p.Rounds != nil {
		l.before = p.freeBuckets(st, l)
	}
	l.after = func(n *graph.Node) {
		for _, i := range complete[n] {
			o := []device.Operand{p.Buckets[i].Place}
			to := p.Rounding(p.Buckets[i])
			if to != tensor.Invalid {
				l.seg.Instrs = append(l.seg.Instrs, device.Instr{Kind: device.Round, Out: o, When: device.LastInLane, Bucket: i, Rounding: to,
					Bytes: 2 * o[0].Bytes(), FLOPs: o[0].Bytes() / 4})
			}
			if p.GradBuffers > 1 {
				l.seg.Instrs = append(l.seg.Instrs, device.Instr{Kind: device.Fold, Out: o, When: device.LastInLane, Bucket: i, Rounding: to,
					Bytes: 3 * o[0].Bytes(), FLOPs: o[0].Bytes() / 4})
			}
			if p.Settings.World > 1 {
				l.seg.Instrs = append(l.seg.Instrs, device.Instr{Kind: device.Start, Out: o, When: p.leaves(), Bucket: i,
					Group: dataGroup, Collective: p.reduction()})
			}
		}
	}
	return l.lower(SegmentMicro)
}

// leaves is the moment at which a complete bucket leaves for other ranks.
func (p *Plan) leaves() device.When {
	if p.Rounds != nil {
		return device.LastInLane
	}
	return device.LastOnRank
}

// reduction is the collective by which buckets are summed.
func (p *Plan) reduction() string {
	if len(p.Units) > 0 {
		return ReduceScatter
	}
	return AllReduce
}

// freeBuckets returns what puts a Wait before the first write into a bucket whose memory may still be on its way: that of the
// round before, and where gradients only pass through that of an earlier bucket.
func (p *Plan) freeBuckets(st *State, l *lowering) func(*graph.Node) {
	writes := map[*graph.Node]int{}
	for _, b := range p.Buckets {
		for _, gr := range b.Grads {
			writes[st.Graph.Output(gr.Output()).Def] = b.Index
		}
	}
	opened := make([]bool, len(p.Buckets))
	return func(n *graph.Node) {
		i, ok := writes[n]
		if !ok || opened[i] {
			return
		}
		opened[i] = true
		free := []int{i}
		if p.Settings.passing() {
			free = free[:0]
			switch {
			case i == 0: // the last buckets of the round before
				for k := max(0, len(p.Buckets)-2); k < len(p.Buckets); k++ {
					free = append(free, k)
				}
			case i >= 2:
				free = append(free, i-2)
			}
		}
		for _, k := range free {
			l.seg.Instrs = append(l.seg.Instrs, device.Instr{Kind: device.Wait, Bucket: k, Out: []device.Operand{p.Buckets[k].Place},
				Group: dataGroup, Collective: p.reduction()})
		}
	}
}

// accumulatorPlace finds the place of a gradient by its output's name.
func (p *Plan) accumulatorPlace(name string) (device.Operand, bool) {
	o, ok := p.grads[name]
	return o, ok
}

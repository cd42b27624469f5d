package plan

import (
	"cmp"
	"slices"

	"starling/core/device"
	"starling/core/graph"
	"starling/core/tensor"
)

// residency is a stretch of a segment during which a sharded unit's parameters are whole in Work: gathered ahead of the
// first use, and given up after the last one.
type residency struct {
	unit *Unit
	// Indices of nodes: the start stands before start, the wait before first.
	start, first, last int
	place              device.Operand
}

// splitAfter is how many other units must be used between two uses of one for it to be given up in between. A
// tied table that is the last layer's weight, too, would otherwise be gathered for the whole of the step.
const splitAfter = 2

// planResidencies decides when each sharded unit is whole. A unit is gathered while the one before it is in use, so that
// communication has that one's computation to hide behind, and no more than that is whole at a time.
func (l *lowering) planResidencies() {
	type use struct {
		at   int
		unit *Unit
	}
	var all []use
	firstNode := -1
	for i, n := range l.g.Nodes {
		if l.passive(n) {
			continue
		}
		if firstNode < 0 {
			firstNode = i
		}
		for _, v := range n.In {
			if q := l.sharded[rootOf(v)]; q != nil {
				all = append(all, use{i, l.plan.Units[q.Unit]})
			}
		}
	}
	current := map[*Unit]*residency{}
	since := map[*Unit]map[*Unit]bool{} // units used since the last use of a unit
	last := map[*Unit]int{}             // end of the unit's residency before the current one
	for _, u := range all {
		r := current[u.unit]
		if r != nil && len(since[u.unit]) >= splitAfter && !(l.plan.Settings.KeepGathered) {
			last[u.unit] = r.last
			r = nil
		}
		if r == nil {
			r = &residency{unit: u.unit, first: u.at, start: -1}
			if end, ok := last[u.unit]; ok {
				r.start = end
			}
			current[u.unit] = r
			l.gathered = append(l.gathered, r)
		}
		r.last = u.at
		since[u.unit] = map[*Unit]bool{}
		for other, seen := range since {
			if other != u.unit {
				seen[u.unit] = true
			}
		}
	}
	slices.SortStableFunc(l.gathered, func(a, b *residency) int { return a.first - b.first })
	for j, r := range l.gathered {
		ahead := firstNode
		if j > 0 {
			ahead = l.gathered[j-1].first
		}
		if l.plan.Settings.NoOverlap {
			ahead = r.first
		}
		r.start = min(r.first, max(ahead, r.start+1))
		for l.passive(l.g.Nodes[r.start]) {
			r.start++
		}
	}
	slices.SortStableFunc(l.gathered, func(a, b *residency) int { return cmp.Or(a.start-b.start, a.first-b.first) })
}

// placeGathered gives the residencies memory behind the segment's other transient values.
func (l *lowering) placeGathered() {
	if len(l.gathered) == 0 {
		return
	}
	var blocks []*block
	for _, r := range l.gathered {
		r.place = device.Operand{Type: l.plan.vector(r.unit, r.unit.Elements), Space: device.Work}
		blocks = append(blocks, &block{bytes: aligned(r.place.Bytes()), start: r.start, end: r.last})
	}
	base := l.seg.WorkBytes
	l.gatherBytes = placeBlocks(blocks)
	l.seg.WorkBytes += l.gatherBytes
	least, _ := leastBytes(blocks)
	l.leastWork += least
	for i, r := range l.gathered {
		r.place.Offset = base + blocks[i].offset
	}
}

// gather appends the starts and waits that stand before node i.
func (l *lowering) gather(i int) {
	for _, r := range l.gathered {
		if r.start == i {
			l.seg.Instrs = append(l.seg.Instrs, l.plan.gatherInstr(device.Start, r.unit, r.place))
		}
	}
	for _, r := range l.gathered {
		if r.first == i {
			l.seg.Instrs = append(l.seg.Instrs, l.plan.gatherInstr(device.Wait, r.unit, r.place))
		}
	}
}

// residentPlace is where a sharded parameter lies while node i runs.
func (l *lowering) residentPlace(q *Param, i int) device.Operand {
	for _, r := range l.gathered {
		if r.unit.Index == q.Unit && r.first <= i && i <= r.last {
			return l.plan.memberPlace(r.place, r.unit, q)
		}
	}
	panic("plan: broken invariant: parameter " + q.Name + " is not gathered where it is used")
}

// memberPlace is where a parameter lies in its unit's whole vector at vec.
func (p *Plan) memberPlace(vec device.Operand, u *Unit, q *Param) device.Operand {
	t := p.Settings.used(q.Whole, u.Buffers)
	return device.Operand{Type: t, Space: vec.Space, Offset: vec.Offset + int64(u.memberOf(q.Name).At)*int64(t.DType.Size())}
}

func (p *Plan) gatherInstr(kind device.Kind, u *Unit, place device.Operand) device.Instr {
	group := dataGroup
	switch {
	case !u.Sharded && p.early():
		group = UpdatedGroup
	case u.Sharded && p.Settings.Hybrid() && place.Space == device.Params:
		group = ReplicaGroup
	case u.Sharded:
		group = ShardGroup
	}
	return device.Instr{Kind: kind, Bucket: u.Index, Out: []device.Operand{place}, Group: group, Collective: AllGather}
}

// used is a parameter's type as it is used: rounded under half precision, unless it is a buffer.
func (s Settings) used(t graph.Type, buffer bool) graph.Type {
	if s.half() && !buffer {
		t.DType = s.Half
	}
	return t
}

// vector is the type of n elements of a unit's parameters as they are used.
func (p *Plan) vector(u *Unit, n int) graph.Type {
	return p.Settings.used(graph.Type{DType: tensor.F32, Shape: tensor.Shape{n}}, u.Buffers)
}

package plan

import (
	"slices"

	"starling/core/comm"
	"starling/core/device"
)

// Where nothing about the whole gradient decides on the update (no norm to bound, no overflow to skip), it need not wait for the whole
// gradient. The norm and update segments then fall into one part for each bucket, in the order in which buckets leave, and the micro
// segment says from when on each part may run: once its bucket has left and nothing reads the parameters any more that it completes.
// The trainer runs it when the bucket has arrived, if that is before the backward pass is over, and waits for none before that. So the
// update, and what makes every rank whole again after it, lie beside the backward pass and the buckets that are still on their way. When
// a part runs differs from rank to rank, so what it gathers travels in a group of its own, in which it keeps its order.

// Renewal is the part of the norm and of the update segment that one bucket lets run, as ranges of instructions.
type Renewal struct{ Norm, Update comm.Range }

// early reports whether buckets are updated as they arrive.
func (p *Plan) early() bool {
	s := &p.Settings
	return s.Early && s.World > 1 && !s.NoOverlap && !s.ClipValue && !s.Compress.Active() &&
		!slices.ContainsFunc(p.Params, func(q Param) bool { return q.External() })
}

// planRenewals cuts the norm and update segments at the buckets and puts what runs their parts into the micro segment.
func (p *Plan) planRenewals() {
	if !p.early() {
		return
	}
	norm, update := p.Segments[SegmentNorm], p.Segments[SegmentUpdate]
	norms := cutAt(norm.Instrs, len(p.Buckets), func(in *device.Instr) int {
		if in.Kind == device.Wait {
			return in.Bucket
		}
		return p.turns[in.Node]
	})
	updates := cutAt(update.Instrs, len(p.Buckets), func(in *device.Instr) int {
		switch in.Kind {
		case device.Start:
			return p.unitTurn(p.Units[in.Bucket])
		case device.Wait:
			return len(p.Buckets)
		}
		return p.turns[in.Node]
	})
	for i := range norms {
		p.Renewals = append(p.Renewals, Renewal{norms[i], updates[i]})
	}
	p.Announce = p.firstBehindLoss()
	// An update after which nothing is gathered gains nothing from lying in the backward pass: it keeps later buckets from leaving, and
	// behind the pass fills the time until they have come. Parts that need memory of their own would write over the micro segment's values.
	if norm.WorkBytes == 0 && update.WorkBytes == 0 {
		p.placeRenewals(p.gathering(updates))
	}
}

// cutAt cuts instructions, whose turns ascend, into one range for each of n turns and one for what follows.
func cutAt(instrs []device.Instr, n int, turn func(*device.Instr) int) []comm.Range {
	out := make([]comm.Range, n+1)
	at := 0
	for k := range out {
		lo := at
		for at < len(instrs) && (k == n || turn(&instrs[at]) <= k) {
			at++
		}
		out[k] = comm.Range{Lo: lo, Hi: at}
	}
	return out
}

// gathering is how many buckets there are up to the last one after whose update parameters are gathered.
func (p *Plan) gathering(updates []comm.Range) int {
	n := 0
	for b, r := range updates[:len(p.Buckets)] {
		if slices.ContainsFunc(p.Segments[SegmentUpdate].Instrs[r.Lo:r.Hi], func(in device.Instr) bool { return in.Kind == device.Start }) {
			n = b + 1
		}
	}
	return n
}

// placeRenewals puts a Renew for each of the first so many buckets behind its start and the last instruction that needs what it completes.
// Those that would come after the last kernel are left out: the end of the step makes up for them.
func (p *Plan) placeRenewals(buckets int) {
	micro := p.Segments[SegmentMicro]
	started := make([]int, len(p.Buckets)) // the instruction that starts each bucket
	read := p.lastReads(micro)
	end := 0 // of the kernels
	for i := range micro.Instrs {
		switch in := &micro.Instrs[i]; {
		case in.Kind == device.Kernel:
			end = i
		case in.Kind == device.Start && in.Collective != AllGather:
			started[in.Bucket] = i
		}
	}
	behind := map[int][]int{} // instruction → the buckets whose turn comes behind it
	if p.Announce == len(p.Buckets) {
		return
	}
	at := started[p.Announce] // before which no rank knows the weight of the step
	for b := range buckets {
		at = max(at, started[b], read[b])
		if at >= end {
			break
		}
		behind[at] = append(behind[at], b)
	}
	var out []device.Instr
	for i, in := range micro.Instrs {
		out = append(out, in)
		for _, b := range behind[i] {
			out = append(out, device.Instr{Kind: device.Renew, When: device.LastOnRank, Bucket: b, Out: []device.Operand{p.Buckets[b].Place}})
		}
	}
	micro.Instrs = out
}

// lastReads is, for each bucket, the last instruction of a segment that reads a parameter that the bucket completes, or makes it whole.
func (p *Plan) lastReads(seg *device.Segment) []int {
	var whole []*Param     // that lie whole in Params
	units := map[int]int{} // sharded unit → bucket
	for _, q := range p.trained() {
		if q.Sharded {
			units[q.Unit] = p.turn(q)
		} else {
			whole = append(whole, q)
		}
	}
	last := make([]int, len(p.Buckets))
	for i := range seg.Instrs {
		in := &seg.Instrs[i]
		if in.Collective == AllGather {
			if b, ok := units[in.Bucket]; ok {
				last[b] = i
			}
			continue
		}
		for _, o := range in.In {
			if o.Space != device.Params {
				continue
			}
			for _, q := range whole {
				if overlap(q.Place, o) {
					last[p.turn(q)] = i
				}
			}
		}
	}
	return last
}

// firstBehindLoss is the first bucket that leaves when the loss and the weight of a micro-batch are known, len(p.Buckets) if there is none. What
// batch norm has seen of a micro-batch leaves before.
func (p *Plan) firstBehindLoss() int {
	micro := p.Segments[SegmentMicro]
	first, known := 0, 0
	for i := range micro.Instrs {
		in := &micro.Instrs[i]
		if in.Kind == device.Start && in.Collective != AllGather {
			first = max(first, in.Bucket+1)
		}
		for _, o := range in.Out {
			if overlap(micro.Outputs[OutputLoss], o) || overlap(micro.Outputs[OutputWeight], o) {
				known = first
			}
		}
	}
	return known
}

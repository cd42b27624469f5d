package plan

import (
	"slices"

	"starling/core/comm"
	"starling/core/device"
)

// Where nothing about the whole gradient decides on the update (no norm to bound, no overflow to skip), it need not wait for the whole
// gradient. The norm and update segments then fall into one part for each bucket, in the order in which buckets leave, and the micro
// segment says when each part may run: once the bucket has had time to arrive and nothing reads the parameters any more that
// it completes. So the update, and what makes every rank whole again after it, lie beside the backward pass and the buckets
// that are still on their way.

// Renewal is the part of the norm and of the update segment that one bucket lets run, as ranges of instructions.
type Renewal struct{ Norm, Update comm.Range }

// renewalLag is how many later buckets must have left before the program waits for one. Two keep the link busy while
// it waits, and as many have memory where gradients only pass through.
const renewalLag = 2

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
	// Where nothing is gathered after it, an update gains nothing from lying in the backward pass, which would wait for a slow link; and
	// parts that need memory of their own would write over the micro segment's values.
	if p.Settings.Zero > 0 && norm.WorkBytes == 0 && update.WorkBytes == 0 {
		p.placeRenewals()
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

// placeRenewals puts a Renew for each bucket behind the start of the second one after it and the last instruction that needs what it
// completes. Those that would come after the last kernel are left out: the end of the step makes up for them.
func (p *Plan) placeRenewals() {
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
	for b := 0; b+renewalLag < len(p.Buckets); b++ {
		at = max(at, started[b+renewalLag], read[b])
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

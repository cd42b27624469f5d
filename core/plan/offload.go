package plan

import (
	"starling/core/device"
	"starling/core/graph"
)

// Activations off the device (Settings.OffloadActivations): a value of the forward pass that the backward pass needs is copied to Offload
// when the forward pass has read it for the last time, and back ahead of its first use in the backward pass. Between the two its place in Work is free.
// Both copies run beside computation: the way out has until the end of the next block, the way back begins with the block that is
// computed before the one that needs it (in the order of the backward pass). Together with recomputation it is what passes from block to block that leaves.

// offloadFrom is the size of a value from which a copy is worth its beginning and its end.
const offloadFrom = 16 << 10

// trip is the way of a value off the device and back. Numbers are indices of nodes.
type trip struct {
	value *graph.Value
	// The value is made at born, read last in the forward pass at left, and its copy out is over behind gone. The copy in begins before back;
	// in the backward pass it is read from needed on.
	born, left, gone, back, needed int
	out, in                        *block // in Work, before and after
	away                           *block // in Offload
	outPlace, inPlace, awayPlace   device.Operand
	number                         int // of the copy out; the copy in is the next
}

// planTrips decides which values leave. last is the node that reads each root last.
func (l *lowering) planTrips(last map[*graph.Value]int) {
	l.trips = map[*graph.Value]*trip{}
	if !l.plan.Settings.OffloadActivations {
		return
	}
	starts, ends, turn := l.stretches()
	if turn == len(l.g.Nodes) {
		return // there is no backward pass
	}
	left, needed := map[*graph.Value]int{}, map[*graph.Value]int{}
	for i, n := range l.g.Nodes {
		if l.passive(n) {
			continue
		}
		for _, v := range n.In {
			r := rootOf(v)
			if i < turn {
				left[r] = i
			} else if _, ok := needed[r]; !ok {
				needed[r] = i
			}
		}
	}
	for i, n := range l.g.Nodes[:turn] {
		if l.passive(n) {
			continue
		}
		for _, v := range n.Out {
			b, ok := needed[v]
			if _, fixed := l.place[v]; fixed || !ok || v.Bytes() < offloadFrom {
				continue
			}
			t := &trip{value: v, born: i, left: max(i, left[v]), needed: b, number: 2 * len(l.trips)}
			t.gone = ends[min(ends[t.left]+1, turn-1)]
			t.back = starts[max(starts[b]-1, turn)]
			for l.passive(l.g.Nodes[t.gone]) { // what stands for no work runs nothing
				t.gone--
			}
			for l.passive(l.g.Nodes[t.back]) {
				t.back++
			}
			if ends[t.gone]+1 >= t.back {
				continue // it would come back as soon as it is gone
			}
			l.trips[v] = t
			l.ordered = append(l.ordered, t)
		}
	}
}

// stretches cuts the nodes into runs that belong to one block of the model, forward and backward apart, and returns for each node
// the first and the last of its run, and where the backward pass begins. Nodes in no block belong to the run before them.
func (l *lowering) stretches() (starts, ends []int, turn int) {
	n := len(l.g.Nodes)
	starts, ends, turn = make([]int, n), make([]int, n), n
	for i, x := range l.g.Nodes {
		if isBackward(x) && !l.passive(x) {
			turn = i
			break
		}
	}
	key, first := "", 0
	for i, x := range l.g.Nodes {
		k := key
		if !l.passive(x) && x.Block != "" {
			k = blockOf(x.Block)
		}
		if i == turn || k != key && key != "" {
			first = i
		}
		key = k
		starts[i] = first
	}
	for i := n - 1; i >= 0; i-- {
		ends[i] = i
		if i+1 < n && starts[i+1] == starts[i] {
			ends[i] = ends[i+1]
		}
	}
	return starts, ends, turn
}

// placeTrips gives the values that leave their places, once the blocks of Work are placed.
func (l *lowering) placeTrips() {
	var away []*block
	for _, t := range l.ordered {
		t.away = &block{bytes: aligned(t.value.Bytes()), start: t.left, end: t.needed}
		away = append(away, t.away)
	}
	if len(away) == 0 {
		return
	}
	l.plan.ArenaBytes[device.Offload] = max(l.plan.ArenaBytes[device.Offload], placeBlocks(away))
	for _, t := range l.ordered {
		t.outPlace = device.Operand{Type: t.value.Type, Space: device.Work, Offset: t.out.offset}
		t.inPlace = device.Operand{Type: t.value.Type, Space: device.Work, Offset: t.in.offset}
		t.awayPlace = device.Operand{Type: t.value.Type, Space: device.Offload, Offset: t.away.offset}
	}
}

// at is where the value lies while node i runs.
func (t *trip) at(i int) device.Operand {
	if i < t.back {
		return t.outPlace
	}
	return t.inPlace
}

// fetch appends the copies that stand before node i: those that bring values back.
func (l *lowering) fetch(i int) {
	for _, t := range l.ordered {
		if t.back == i {
			l.copy(device.Copy, t.number+1, t.awayPlace, t.inPlace)
		}
	}
	for _, t := range l.ordered {
		if t.needed == i {
			l.copy(device.Copied, t.number+1, t.awayPlace, t.inPlace)
		}
	}
}

// send appends the copies that stand behind node i: those that take values away.
func (l *lowering) send(i int) {
	for _, t := range l.ordered {
		if t.left == i {
			l.copy(device.Copy, t.number, t.outPlace, t.awayPlace)
		}
	}
	for _, t := range l.ordered {
		if t.gone == i {
			l.copy(device.Copied, t.number, t.outPlace, t.awayPlace)
		}
	}
}

func (l *lowering) copy(kind device.Kind, number int, from, to device.Operand) {
	in := device.Instr{Kind: kind, Bucket: number, In: []device.Operand{from}, Out: []device.Operand{to}}
	if kind == device.Copy {
		in.Bytes = 2 * from.Bytes()
	}
	l.seg.Instrs = append(l.seg.Instrs, in)
}

package comm

import "math"

// Reduce-scatter and all-gather over several hosts, for what is cut over all members: gradients and parameters under ZeRO.
//
// The members' chunks go in waves, in each of them a slice of every chunk. In a wave of a reduce-scatter a host's members first
// add, for every host in turn, the slices of that host's chunks: the member at place i gets the slice of the member at place i
// there. Then each rail gives every slice to its owner, which completes the tree. What crosses is again one partial sum for
// each maximal subtree of a host's lanes. An all-gather goes the other way: first along the rails, so that each chunk crosses
// to a host once instead of once for each of its members, then inside the hosts.

// waveBytes is how much of a vector the chunks of one host have in a wave: what a collective of the host adds at a time.
const waveBytes = 1 << 20

// at returns the member at a place of a host.
func (y *hierarchy) at(host, place int) int { return host*y.each + place }

// wave returns the elements of a chunk in a wave, of four bytes each.
func (y *hierarchy) wave(g *Group) int {
	return max(min(waveBytes, pieceFloats(g.opt.PieceBytes)*4*hierarchySegment)/4/y.each, ChunkAlign)
}

// waves calls f for each wave with the slices of all members' chunks, step long.
func (y *hierarchy) waves(chunks []Range, step int, f func(wave int, slices []Range)) {
	longest := 0
	for _, c := range chunks {
		longest = max(longest, c.Len())
	}
	for w := range max(pieces(longest, step), 1) {
		slices := make([]Range, len(chunks))
		for m, c := range chunks {
			lo := min(c.Lo+w*step, c.Hi)
			slices[m] = Range{lo, min(lo+step, c.Hi)}
		}
		f(w, slices)
	}
}

// prepareScatter prepares the sum of own over all members, of which each gets its chunk in dst.
func (y *hierarchy) prepareScatter(g *Group, call Call, red *Reduction, chunks []Range, own [][]float32, dst []float32) (*Collective, error) {
	between, inside, err := y.split(g, red)
	if err != nil {
		return nil, err
	}
	p := &hierarchyPlan{}
	at := 0 // of dst
	y.waves(chunks, y.wave(g), func(wave int, slices []Range) {
		mine := dst[at : at+slices[g.self].Len()]
		at += len(mine)
		p.segments = append(p.segments, y.prepareWave(wave%hierarchySegments, call.Label, inside, between, own, mine, slices))
	})
	return g.prepare(call, p.run).by(Hierarchical.String()), nil
}

// prepareWave prepares a wave of a reduce-scatter.
func (y *hierarchy) prepareWave(slot int, label string, inside []*Reduction, between *Reduction, own [][]float32, mine []float32, slices []Range) (s hierarchyStep) {
	// The slices of this member's rail lie one behind the other in the memory of sums.
	rail := make([]Range, y.hosts)
	n := 0
	for h := range rail {
		rail[h] = Range{n, n + slices[y.at(h, y.host.self)].Len()}
		n = rail[h].Hi
	}
	sums := y.sums(slot, len(inside), n)
	k := 0 // of own
	for i, red := range inside {
		parts := own[k : k+len(red.Nodes(y.host.self))]
		k += len(parts)
		for h, r := range rail {
			s.add = append(s.add, y.host.prepareScatterOf(label, red, slices[h*y.each:(h+1)*y.each], parts, sums[i][r.Lo:r.Hi]))
		}
	}
	s.cross = y.rail.prepareScatterOf(label, between, rail, sums, mine)
	return s
}

// prepareScatterOf prepares a reduce-scatter of some ranges of a vector, one for each member, that need not be all of it.
func (g *Group) prepareScatterOf(label string, red *Reduction, chunks []Range, own [][]float32, dst []float32) *Collective {
	// The ranges are moved to the front of a shorter vector where they lie close together, since what is staged, and what is small, goes
	// by the vector's length.
	lo, hi := math.MaxInt, 0
	for _, c := range chunks {
		if c.Len() > 0 {
			lo, hi = min(lo, c.Lo), max(hi, c.Hi)
		}
	}
	lo = min(lo, hi)
	moved, views := make([]Range, len(chunks)), make([][]float32, len(own))
	for m, c := range chunks {
		if c.Len() > 0 {
			moved[m] = Range{c.Lo - lo, c.Hi - lo}
		}
	}
	for k, o := range own {
		views[k] = o[lo:hi]
	}
	call := Call{Op: OpReduceScatterTree, Element: Float32, Label: label, Bytes: 4 * int64(extent(moved)), Detail: detail(red.digest, moved)}
	return g.prepareTree(call, red, moved, views, dst, nil)
}

// prepareGather prepares the completion of buf, of which each member has its part.
func (y *hierarchy) prepareGather(g *Group, call Call, parts []Range, buf []byte) *Collective {
	p := &hierarchyPlan{}
	y.waves(parts, 4*y.wave(g), func(_ int, slices []Range) {
		var s hierarchyStep
		rail := make([]Range, y.hosts)
		for h := range rail {
			rail[h] = slices[y.at(h, y.host.self)]
			s.gather = append(s.gather, y.host.prepareGatherOf(call, slices[h*y.each:(h+1)*y.each], buf))
		}
		s.cross = y.rail.prepareGatherOf(call, rail, buf)
		p.segments = append(p.segments, s)
	})
	return g.prepare(call, p.run).by(Hierarchical.String())
}

// prepareGatherOf prepares an all-gather, labelled as another, of some ranges of buf, one for each member, that need not be all
// of it.
func (g *Group) prepareGatherOf(call Call, parts []Range, buf []byte) *Collective {
	call = Call{Op: OpAllGather, Element: call.Element, Label: call.Label, Bytes: int64(len(buf)), Detail: detail(parts)}
	c := g.prepare(call, func(r *run) error { return r.allGather(parts, buf) })
	if g.shared != nil {
		c.local = g.allGatherShared(parts, buf)
		c.brief = c.local.publish != nil
	}
	return c
}

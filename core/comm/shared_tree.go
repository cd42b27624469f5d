package comm

import "starling/sdk/vec"

// The canonical tree sum in shared memory.
//
// Small vectors take one round: every member publishes its partial sums whole, and everybody adds all of them, alike.
// Large ones are cut into a chunk per member and go piece by piece: a member publishes its partial sums of everybody
// else's next piece, adds the last piece of its own chunk from the others' slots, publishes the result, and copies the
// others' results of the piece before. So the only memory touched outside the caches is the vector itself, once to read
// and once to write. Vectors that all members have mapped are not copied at all: see shared_direct.go.

// What a rank may have to read in the one-round form, in bytes, before the other form is faster: more where ranks outnumber
// cores, since each wait for another then costs a turn of the machine's scheduler.
const (
	oneRound        = 96 << 10
	oneRoundCrowded = 384 << 10
)

// fitsOneRound reports whether members that publish so many bytes each, at most, do it in one round.
func (x *shared) fitsOneRound(members, bytes int) bool {
	limit := oneRound
	if x.t.crowded {
		limit = oneRoundCrowded
	}
	return bytes <= slotBytes && (members-1)*bytes <= limit
}

// treePiece is how much of a chunk goes through a slot at a time.
const treePiece = 64 << 10

// strip is how many elements of a piece are carried through the whole tree at a time, so that intermediate sums stay in
// the innermost cache.
const strip = 4096

// treeShared sums own over all members; mine is where this member's chunk of the result goes, all the whole result or nil.
func (g *Group) treeShared(red *Reduction, chunks []Range, own [][]float32, mine, all []float32) (body sharedBody, brief bool) {
	n := extent(chunks)
	most := 0 // partial sums of the member that has most
	for m := range g.ranks {
		most = max(most, red.first[m+1]-red.first[m])
	}
	t := &sharedTree{g: g, red: red, chunks: chunks, own: own, mine: mine, all: all, n: n, values: make([][]float32, len(red.leaves))}

	if g.shared.fitsOneRound(len(g.ranks), 4*n*most) {
		return sharedBody{publish: t.publishWhole, rest: t.addWhole}, true
	}
	t.piece = min(g.opt.PieceBytes, treePiece, slotBytes/(most*(len(g.ranks)-1))) / 4
	if t.piece > ChunkAlign {
		t.piece -= t.piece % ChunkAlign
	}
	for m := range g.ranks {
		t.count = max(t.count, pieces(chunks[m].Len(), t.piece))
	}
	at := t.places()
	return sharedBody{places: at, rest: func(c *Collective) error {
		direct, err := c.run.inPlace(at)
		switch {
		case err != nil:
			return err
		case direct:
			return t.inPlace(&c.run)
		}
		return t.run(c)
	}}, false
}

// sharedTree is one prepared tree collective.
type sharedTree struct {
	g      *Group
	red    *Reduction
	chunks []Range
	own    [][]float32
	mine   []float32
	all    []float32
	n      int

	piece  int // elements
	count  int // pieces of the longest chunk
	values [][]float32

	// In place: everybody's partial sums, where everybody wants the sum, and of the latter those of a stretch.
	leaves, results, also [][]float32
}

// places returns where the vectors lie.
func (t *sharedTree) places() places {
	var vectors [][]byte
	for _, o := range t.own {
		vectors = append(vectors, bytesOf(o))
	}
	if t.all != nil {
		vectors = append(vectors, bytesOf(t.all))
	}
	return t.g.shared.placesOf(vectors...)
}

// publishWhole writes this member's partial sums into its slot.
func (t *sharedTree) publishWhole(slot []byte) {
	for k, o := range t.own {
		copy(slot[4*k*t.n:], bytesOf(o))
	}
}

// addWhole adds everybody's.
func (t *sharedTree) addWhole(c *Collective) error {
	if err := c.run.await(everyone(c.base)); err != nil {
		return err
	}
	g, x := t.g, t.g.shared
	part, dst := Range{0, t.n}, t.all
	if dst == nil {
		part, dst = t.chunks[g.self], t.mine
	}
	for m := range g.ranks {
		first := t.red.first[m]
		for k := range t.red.first[m+1] - first {
			if m == g.self {
				t.values[first+k] = t.own[k][part.Lo:part.Hi]
			} else {
				t.values[first+k] = floatsOf(x.slot(m, c.base), k*t.n+part.Lo, part.Len())
			}
		}
	}
	t.red.evaluate(dst, nil, t.values, g.scratchFor(t.red.scratch()))
	x.finish(c.base)
	if t.all == nil {
		t.moved()
		return nil
	}
	for _, m := range g.peers {
		nodes := t.red.first[m+1] - t.red.first[m]
		x.moved(g.ranks[m], 4*t.n*len(t.own), 4*t.n*nodes)
	}
	return nil
}

// moved counts what the members have read of each other's chunks, or had written for them.
func (t *sharedTree) moved() {
	mine, size := t.chunks[t.g.self].Len(), t.red.element.Size()
	for _, m := range t.g.peers {
		nodes := t.red.first[m+1] - t.red.first[m]
		theirs := t.chunks[m].Len()
		sent, received := theirs*len(t.own), mine*nodes
		if t.all != nil {
			sent, received = sent+mine, received+theirs
		}
		t.g.shared.moved(t.g.ranks[m], size*sent, size*received)
	}
}

// run is the pipelined form.
func (t *sharedTree) run(c *Collective) error {
	g, x, r := t.g, t.g.shared, &c.run
	var sums, results [2]uint64 // rounds of the last two pieces
	for p := -1; p <= t.count; p++ {
		if p+1 < t.count {
			if err := r.await(needSlot(x.next)); err != nil {
				return err
			}
			t.contribute(p+1, x.slot(g.self, x.next))
			sums[(p+1)&1] = x.next
			x.next++
			x.publish(sums[(p+1)&1])
		}
		if p >= 0 && p < t.count {
			if err := r.await(everyone(sums[p&1])); err != nil {
				return err
			}
			var result []byte
			if t.all != nil {
				if err := r.await(needSlot(x.next)); err != nil {
					return err
				}
				result = x.slot(g.self, x.next)
			}
			t.add(p, sums[p&1], result)
			x.heads[g.self].finished.Store(sums[p&1] + 1)
			if t.all != nil {
				results[p&1] = x.next
				x.next++
				x.heads[g.self].published.Store(results[p&1] + 1)
			}
			x.ring()
		}
		if p > 0 && t.all != nil {
			if err := r.await(everyone(results[(p-1)&1])); err != nil {
				return err
			}
			t.collect(p-1, results[(p-1)&1])
			x.finish(results[(p-1)&1])
		}
	}
	t.moved()
	return nil
}

// place returns where, in the slot of a member with so many partial sums, its k-th for member to begins, in elements.
func (t *sharedTree) place(from, to, k int) int {
	if to > from {
		to-- // it keeps none for itself
	}
	return (to*(t.red.first[from+1]-t.red.first[from]) + k) * t.piece
}

// of returns piece p of a member's chunk, empty past its end.
func (t *sharedTree) of(m, p int) Range {
	c := t.chunks[m]
	lo := min(c.Lo+p*t.piece, c.Hi)
	return Range{lo, min(lo+t.piece, c.Hi)}
}

// contribute writes this member's partial sums of everybody else's piece p.
func (t *sharedTree) contribute(p int, slot []byte) {
	for _, m := range t.g.peers {
		c := t.of(m, p)
		for k, o := range t.own {
			copy(slot[4*t.place(t.g.self, m, k):], bytesOf(o[c.Lo:c.Hi]))
		}
	}
}

// add sums piece p of this member's chunk, into mine and also into result unless that is nil.
func (t *sharedTree) add(p int, round uint64, result []byte) {
	g, x := t.g, t.g.shared
	c := t.of(g.self, p)
	if c.Len() == 0 {
		return
	}
	for m := range g.ranks {
		first := t.red.first[m]
		for k := range t.red.first[m+1] - first {
			if m == g.self {
				t.values[first+k] = t.own[k][c.Lo:c.Hi]
			} else {
				t.values[first+k] = floatsOf(x.slot(m, round), t.place(m, g.self, k), c.Len())
			}
		}
	}
	t.also = t.also[:0]
	if result != nil {
		t.also = append(t.also, floatsOf(result, 0, c.Len()))
	}
	from := c.Lo - t.chunks[g.self].Lo
	t.red.evaluate(t.mine[from:from+c.Len()], t.also, t.values, g.scratchFor(t.red.scratch()))
}

// collect copies everybody else's results of piece p.
func (t *sharedTree) collect(p int, round uint64) {
	for _, m := range t.g.peers {
		c := t.of(m, p)
		copy(bytesOf(t.all[c.Lo:c.Hi]), t.g.shared.slot(m, round))
	}
}

// scratch is the memory that evaluate needs, in elements: for intermediate sums, and for a strip in 16 bits where they are rounded.
func (r *Reduction) scratch() int {
	n := r.temps * strip
	if r.element != Float32 {
		n += strip / 2
	}
	return n
}

// evaluate adds the values of all leaves in tree order into dst, and copies that into each of also. All have one length; dst
// and also may be among the values. temp holds scratch elements.
func (r *Reduction) evaluate(dst []float32, also, values [][]float32, temp []float32) {
	leaves := len(r.leaves)
	for lo := 0; lo < len(dst); lo += strip {
		hi := min(lo+strip, len(dst))
		value := func(i int) []float32 {
			if i < leaves {
				return values[i][lo:hi]
			}
			return temp[r.temp[i-leaves]*strip:][:hi-lo]
		}
		for i, s := range r.sums {
			out := dst[lo:hi]
			if i < len(r.sums)-1 {
				out = value(leaves + i)
			}
			vec.Add(out, value(s.left), value(s.right))
			if r.element != Float32 {
				r.round(out, halves(temp[r.temps*strip:]))
			}
		}
		if len(r.sums) == 0 {
			copy(dst[lo:hi], values[0][lo:hi])
		}
		for _, a := range also {
			copy(a[lo:hi], dst[lo:hi])
		}
	}
}

// planTemps gives every intermediate sum a place that is free again once it has been added.
func (r *Reduction) planTemps() {
	var free []int
	for i, s := range r.sums {
		for _, v := range []int{s.left, s.right} {
			if v >= len(r.leaves) {
				free = append(free, r.temp[v-len(r.leaves)])
			}
		}
		switch {
		case i == len(r.sums)-1:
			r.temp = append(r.temp, 0) // the result, which has its own place
		case len(free) > 0:
			r.temp = append(r.temp, free[len(free)-1])
			free = free[:len(free)-1]
		default:
			r.temp = append(r.temp, r.temps)
			r.temps++
		}
	}
}

// scratchFor returns n elements for intermediate sums.
func (g *Group) scratchFor(n int) []float32 {
	if n > len(g.scratch) {
		g.scratch = make([]float32, n)
	}
	return g.scratch[:n]
}

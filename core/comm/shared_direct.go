package comm

import (
	"fmt"
	"unsafe"
)

// Collectives on vectors that lie in memory which the members have mapped (Group.Allocate): they are read and written where
// they lie, so that no byte is moved that need not be. Each member says with its entry where its vectors are, or that they
// are elsewhere; only where all can be reached does a collective run in place, which all members find alike from the entries.
//
// A gather reads each member's part from its own vector. In a sum each member adds its own chunk of the vector, straight from everybody's partial sums and in the tree's order, and
// writes the result into everybody's vector, a strip at a time. No element is touched by two members, and who has entered has
// finished writing its vectors; so the members need only wait for each other's entry, and at the end for everybody's word
// that it has finished, before their vectors are theirs again.

// directPlaces is how many vectors a member can announce; one with more partial sums is copied.
const directPlaces = 16

// stretch is how many bytes of its chunk a member goes through before it tells the others, whose deadline counts from the
// last they have heard.
const stretch = 4 << 20

// places says where a member's vectors lie in the memory that the ranks of a host share.
type places struct {
	direct bool // all of them lie there
	list   []uint64
}

// placesOf returns the places of vectors.
func (x *shared) placesOf(vectors ...[]byte) (p places) {
	for _, v := range vectors {
		at, ok := x.t.seg.place(v)
		if !ok || len(p.list) == directPlaces {
			return places{}
		}
		p.list = append(p.list, at)
	}
	p.direct = true
	return p
}

// place returns where v lies in the segment, and false if it does not. A vector without elements may be anywhere.
func (s *segment) place(v []byte) (uint64, bool) {
	if len(v) == 0 {
		return 0, true
	}
	mem := s.mem.Bytes()
	at := uintptr(unsafe.Pointer(unsafe.SliceData(v))) - uintptr(unsafe.Pointer(unsafe.SliceData(mem)))
	return uint64(at), at < uintptr(len(mem)) && len(v) <= len(mem)-int(at)
}

// vector returns the n bytes at a place that another member has announced, of elements of size bytes.
func (s *segment) vector(at uint64, n, size int) ([]byte, error) {
	mem := s.mem.Bytes()
	switch {
	case n == 0:
		return nil, nil
	case at%uint64(size) != 0 || at < segmentHead || at > uint64(len(mem)) || n > len(mem)-int(at):
		return nil, fmt.Errorf("it says that its vector of %d bytes lies at %d, outside the memory of this host's ranks", n, at)
	}
	return mem[at:][:n], nil
}

// inPlace reports whether the vectors of all members can be reached, for which it waits until they have entered. A member
// whose own cannot need not wait.
func (r *run) inPlace(own places) (bool, error) {
	if !own.direct {
		return false, nil
	}
	if err := r.await(need{entered, -1, r.seq + 1}); err != nil {
		return false, err
	}
	for _, m := range r.others {
		if !r.g.shared.entry(m, r.seq).direct {
			return false, nil
		}
	}
	return true, nil
}

// vector returns the i-th vector that member m has announced, n bytes of elements of size bytes.
func (r *run) vector(m, i, n, size int) ([]byte, error) {
	x := r.g.shared
	v, err := x.t.seg.vector(x.heads[m].places[r.seq%entryCount][i], n, size)
	if err != nil {
		return nil, &PeerError{Rank: r.g.ranks[m], Cause: err}
	}
	return v, nil
}

// vectors fills to with the vectors of n elements that member m has announced, from the first-th on.
func (r *run) vectors(to [][]float32, m, first, n int) error {
	for i := range to {
		v, err := r.vector(m, first+i, 4*n, 4)
		if err != nil {
			return err
		}
		to[i] = viewOf[float32](v)
	}
	return nil
}

// stretches lets this member go through a chunk of so many bytes in stretches, and waits until all have gone through theirs,
// of which the longest has longest bytes. step gets the bounds of a stretch, in bytes.
func (r *run) stretches(mine, longest int, step func(lo, hi int)) error {
	x := r.g.shared
	base, count := x.next, pieces(longest, stretch)
	x.next += uint64(count)
	for p := range count {
		if lo := p * stretch; lo < mine {
			step(lo, min(lo+stretch, mine))
		}
		round := base + uint64(p)
		x.heads[r.g.self].finished.Store(round + 1) // these rounds have no slots
		x.publish(round)
		r.moved() // own work is progress too: the deadline is for waiting
		if err := r.g.Err(); err != nil {
			return err
		}
	}
	for p := range count {
		if err := r.await(everyone(base + uint64(p))); err != nil {
			return err
		}
	}
	return nil
}

// inPlace is the sum of vectors that all members have mapped.
func (t *sharedTree) inPlace(r *run) error {
	g := t.g
	if t.leaves == nil {
		t.leaves = make([][]float32, len(t.red.leaves))
		t.results = make([][]float32, len(g.ranks))
		t.also = make([][]float32, 0, len(g.ranks))
	}
	longest := 0
	for m, c := range t.chunks {
		longest = max(longest, 4*c.Len())
		first, end := t.red.first[m], t.red.first[m+1]
		if m == g.self {
			copy(t.leaves[first:], t.own)
			continue
		}
		if err := r.vectors(t.leaves[first:end], m, 0, t.n); err != nil {
			return err
		}
		if t.all != nil {
			if err := r.vectors(t.results[m:m+1], m, end-first, t.n); err != nil {
				return err
			}
		}
	}
	if err := r.stretches(4*len(t.mine), longest, t.addInPlace); err != nil {
		return err
	}
	t.moved()
	return nil
}

// addInPlace adds the bytes [lo, hi) of this member's chunk, on everybody's behalf if everybody wants the sum.
func (t *sharedTree) addInPlace(lo, hi int) {
	g := t.g
	lo, hi = lo/4, hi/4
	from := t.chunks[g.self].Lo
	for i, v := range t.leaves {
		t.values[i] = v[from+lo : from+hi]
	}
	t.also = t.also[:0]
	if t.all != nil {
		for _, m := range g.peers {
			t.also = append(t.also, t.results[m][from+lo:from+hi])
		}
	}
	t.red.evaluate(t.mine[lo:hi], t.also, t.values, g.scratchFor(t.red.scratch()))
}

// gatherInPlace returns the gather of parts of vectors that all members have mapped.
func (g *Group) gatherInPlace(parts []Range, buf []byte) func(*run) error {
	longest := 0
	for _, p := range parts {
		longest = max(longest, p.Len())
	}
	theirs := make([][]byte, len(parts))
	step := func(lo, hi int) {
		for _, m := range g.peers {
			from, to := min(parts[m].Lo+lo, parts[m].Hi), min(parts[m].Lo+hi, parts[m].Hi)
			copy(buf[from:to], theirs[m][from:])
		}
	}
	return func(r *run) error {
		for _, m := range g.peers {
			v, err := r.vector(m, 0, len(buf), 1)
			if err != nil {
				return err
			}
			theirs[m] = v
		}
		if err := r.stretches(longest, longest, step); err != nil {
			return err
		}
		for _, m := range g.peers {
			g.shared.moved(g.ranks[m], parts[g.self].Len(), parts[m].Len())
		}
		return nil
	}
}

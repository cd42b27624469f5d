package comm

import (
	"fmt"
	"hash/fnv"
	"unsafe"

	"starling/sdk/vec"
)

// Sums that travel in 16 bits. Every partial sum that a member contributes is a value of the element type already (whoever
// makes it has rounded it), and so is each node of the tree above: two of them are added in float32 and the result is rounded
// once. The bits are then those of one member that rounds its nodes alike, and half the bytes travel. Vectors that all
// members have mapped do not travel: they are added where they lie, with the same rounding.

// Rounded returns the same sum with every node rounded to e, Float16 or BFloat16. The vectors that take part hold float32 with
// values of that type.
func (r *Reduction) Rounded(e Element) *Reduction {
	if e != Float16 && e != BFloat16 {
		panic(fmt.Sprintf("comm: sums cannot be rounded to %v", e))
	}
	out := *r
	out.element = e
	h := fnv.New64a()
	fmt.Fprint(h, r.digest, e)
	out.digest = h.Sum64()
	return &out
}

// Exact returns the same sum with no node rounded.
func (r *Reduction) Exact() *Reduction {
	if r.element == Float32 {
		return r
	}
	out := *r
	out.element = Float32
	h := fnv.New64a()
	fmt.Fprint(h, r.digest, Float32)
	out.digest = h.Sum64()
	return &out
}

// roundedAs returns the sum with its nodes rounded as those of other are.
func (r *Reduction) roundedAs(other *Reduction) *Reduction {
	if other.element == Float32 {
		return r
	}
	return r.Rounded(other.element)
}

// Element is the type to which the sum's nodes are rounded, and in which they travel; Float32 where they are not.
func (r *Reduction) Element() Element { return r.element }

// halfStaging is the staging memory of a sum in 16 bits, in elements: what this rank sends, and what others send for its chunk.
func (r *Reduction) halfStaging(rank int, chunks []Range) (out, in int) {
	own := r.first[rank+1] - r.first[rank]
	n, mine := extent(chunks), chunks[rank].Len()
	return max(own*(n-mine), n), (len(r.leaves) - own) * mine
}

// convert returns how elements of the sum's type are made of float32, and the other way.
func (r *Reduction) convert() (narrow func([]uint16, []float32), widen func([]float32, []uint16)) {
	if r.element == Float16 {
		return vec.F32ToF16, vec.F16ToF32
	}
	return vec.F32ToBF16, vec.BF16ToF32
}

// round rounds x, a strip at most, in place.
func (r *Reduction) round(x []float32, bits []uint16) {
	narrow, widen := r.convert()
	narrow(bits[:len(x)], x)
	widen(x, bits[:len(x)])
}

// halfTree is a tree collective whose sums travel in 16 bits.
type halfTree struct {
	g      *Group
	red    *Reduction
	chunks []Range
	own    [][]float32
	mine   []float32
	all    []float32 // nil: each member keeps its chunk

	out, in []uint16 // staging
	values  [][]float32
	narrow  func(dst []uint16, src []float32)
	widen   func(dst []float32, src []uint16)

	send, receive, chunk, finished parts // of the exchanges
}

func (g *Group) prepareHalfTree(call Call, red *Reduction, chunks []Range, own [][]float32, mine, all []float32) *Collective {
	t := &halfTree{g: g, red: red, chunks: chunks, own: own, mine: mine, all: all, values: make([][]float32, len(red.leaves))}
	t.narrow, t.widen = red.convert()
	t.send, t.receive = t.part, t.place
	t.chunk = func(m int) []byte { return bytesOf(t.out[chunks[m].Lo:chunks[m].Hi]) }
	t.finished = func(int) []byte { return t.chunk(g.self) }
	call.Element, call.Bytes = red.element, call.Bytes/2
	c := g.prepareExchange(call, t.run)
	if g.shared != nil {
		// Nothing has to be narrowed where it is added where it lies.
		s := &sharedTree{g: g, red: red, chunks: chunks, own: own, mine: mine, all: all, n: extent(chunks), values: t.values}
		at, exchanged := s.places(), c.local.rest
		c.local = sharedBody{places: at, rest: func(c *Collective) error {
			direct, err := c.run.inPlace(at)
			switch {
			case err != nil:
				return err
			case direct:
				return s.inPlace(&c.run)
			}
			return exchanged(c)
		}}
	}
	return c
}

// run exchanges partial sums, adds those of this member's chunk, and exchanges results where everybody wants the whole.
func (t *halfTree) run(x exchange) error {
	outLen, inLen := t.red.halfStaging(t.g.self, t.chunks)
	staging := halves(t.g.stagingFor((outLen+1)/2 + (inLen+1)/2))
	t.out, t.in = staging[:outLen], staging[(outLen+1)&^1:][:inLen]
	for _, m := range t.g.peers {
		t.encode(m)
	}
	if err := x(0, t.send, t.receive); err != nil {
		return err
	}
	t.add()
	if t.all == nil {
		return nil
	}
	self := t.chunks[t.g.self]
	t.narrow(t.out[self.Lo:self.Hi], t.mine)
	if err := x(1, t.finished, t.chunk); err != nil {
		return err
	}
	for m, c := range t.chunks {
		if m != t.g.self {
			t.widen(t.all[c.Lo:c.Hi], t.out[c.Lo:c.Hi])
		}
	}
	return nil
}

// partOf is where this member's partial sums of member m's chunk are staged, one behind the other.
func (t *halfTree) partOf(m int) []uint16 {
	c := t.chunks[m]
	at := len(t.own) * c.Lo
	if c.Lo >= t.chunks[t.g.self].Hi {
		at -= len(t.own) * t.chunks[t.g.self].Len()
	}
	return t.out[at : at+len(t.own)*c.Len()]
}

func (t *halfTree) encode(m int) {
	c, to := t.chunks[m], t.partOf(m)
	for k, o := range t.own {
		t.narrow(to[k*c.Len():(k+1)*c.Len()], o[c.Lo:c.Hi])
	}
}

func (t *halfTree) part(m int) []byte { return bytesOf(t.partOf(m)) }

// place is where member m's partial sums of this member's chunk go.
func (t *halfTree) place(m int) []byte {
	n := t.chunks[t.g.self].Len()
	lo, hi := t.leaf(t.red.first[m]), t.leaf(t.red.first[m+1])
	return bytesOf(t.in[lo*n : hi*n])
}

// leaf is the place in staging, in units of this member's chunk, of the i-th leaf, one that others hold.
func (t *halfTree) leaf(i int) int {
	first, end := t.red.first[t.g.self], t.red.first[t.g.self+1]
	if i >= end {
		i -= end - first
	}
	return i
}

// add sums this member's chunk in tree order, a strip at a time.
func (t *halfTree) add() {
	red, c := t.red, t.chunks[t.g.self]
	leaves := len(red.leaves)
	scratch := t.g.scratchFor(leaves*strip + red.scratch())
	first, end := red.first[t.g.self], red.first[t.g.self+1]
	for lo := 0; lo < c.Len(); lo += strip {
		n := min(strip, c.Len()-lo)
		for i := range leaves {
			if i >= first && i < end {
				t.values[i] = t.own[i-first][c.Lo+lo:][:n]
				continue
			}
			t.values[i] = scratch[i*strip:][:n]
			t.widen(t.values[i], t.in[t.leaf(i)*c.Len()+lo:][:n])
		}
		red.evaluate(t.mine[lo:lo+n], nil, t.values, scratch[leaves*strip:])
	}
}

// halves views float32 memory as twice as many 16-bit elements.
func halves(x []float32) []uint16 {
	if len(x) == 0 {
		return nil
	}
	return unsafe.Slice((*uint16)(unsafe.Pointer(unsafe.SliceData(x))), 2*len(x))
}

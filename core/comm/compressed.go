package comm

import (
	"errors"
	"fmt"
	"slices"

	"starling/sdk/vec"
)

// Sums of compressed vectors. Every contributor compresses its part of each chunk once and sends it to the chunk's owner; the owner
// adds the parts in the order of a tree over the contributors, and where everybody gets the whole sum compresses it once more. A
// contributor is a member, or over several hosts a host, whose members have added first (compressed_hosts.go).

// Compressor is one member's side of a compressed sum of one vector. How many bytes a chunk makes depends on its length alone,
// and on nothing in which members could differ.
type Compressor interface {
	// Size is the number of bytes that n elements make this time.
	Size(n int) int
	// Send compresses the sum of own, at least one vector, into dst: the elements from at on of what this member compresses (Compressing).
	Send(dst []byte, own [][]float32, at int) error
	// Receive writes what a member has sent to dst; what makes no sense is an error, of that member's unless it is an OwnError.
	Receive(dst []float32, src []byte) error
	// Return compresses the sum of this member's own chunk into dst.
	Return(dst []byte, sum []float32) error
}

// OwnError is a failure to decode for which the member who sent is not to blame.
type OwnError struct{ Err error }

func (e *OwnError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *OwnError) Unwrap() error { return e.Err }

// PrepareAllReduceCompressed prepares the sum of own over all members, compressed by z, into dst on every member. red says how
// many partial sums each member has; dst may be own[0]. Between hosts only is anything compressed, where the group has several: what
// is z's says Hosting.Sum. own may be overwritten.
func (g *Group) PrepareAllReduceCompressed(label string, red *Reduction, own [][]float32, dst []float32, z Compressor) (*Collective, error) {
	chunks := Chunks(len(dst), g.Size(), ChunkAlign)
	if err := g.checkTree(red, chunks, own, len(dst)); err != nil {
		return nil, err
	}
	call := Call{Op: OpAllReduceTree, Element: Float32, Label: label, Bytes: 4 * int64(len(dst)), Detail: detail(red.digest, "compressed")}
	if y := g.hosts; y != nil {
		return y.prepareCompressed(g, call, red, own, dst, z)
	}
	return g.prepareCompressed(call, red, chunks, cutBy(chunks, own), dst[chunks[g.self].Lo:chunks[g.self].Hi], dst, z), nil
}

// PrepareReduceScatterCompressed prepares the same sum, of which each member gets its chunk, as it was added. What is z's says
// Hosting.Scatter.
func (g *Group) PrepareReduceScatterCompressed(label string, red *Reduction, chunks []Range, own [][]float32, dst []float32, z Compressor) (*Collective, error) {
	n := vectorLen(own, chunks)
	if err := g.checkTree(red, chunks, own, n); err != nil {
		return nil, err
	}
	if want := chunks[g.self].Len(); len(dst) != want {
		return nil, fmt.Errorf("the result has %d elements, this rank's chunk %d", len(dst), want)
	}
	call := Call{Op: OpReduceScatterTree, Element: Float32, Label: label, Bytes: 4 * int64(n), Detail: detail(red.digest, chunks, "compressed")}
	if y := g.hosts; y != nil {
		return y.prepareScatterCompressed(g, call, red, chunks, own, dst, z)
	}
	return g.prepareCompressed(call, red, chunks, cutBy(chunks, own), dst, nil, z), nil
}

// cutBy returns what own has of each chunk.
func cutBy(chunks []Range, own [][]float32) [][][]float32 {
	parts := make([][][]float32, len(chunks))
	for m, c := range chunks {
		for _, o := range own {
			parts[m] = append(parts[m], o[c.Lo:c.Hi])
		}
	}
	return parts
}

// compressed is one compressed sum.
type compressed struct {
	g      *Group
	z      Compressor
	chunks []Range       // of what is compressed
	own    [][][]float32 // of each chunk, what this member adds to it
	mine   []float32     // the sum of this member's chunk
	all    []float32     // the whole sum, or nil

	givers []int // members that have partial sums, ascending
	gives  bool  // this one has
	out    pieces64
	in     pieces64
	stack  [][]float32

	// Made once, since they would be allocated each time.
	outOf, inOf, result parts
}

// pieces64 is a buffer with a part for each member, each at a multiple of 64 bytes.
type pieces64 struct {
	buf   []byte
	parts []Range
}

// lay gives member m a part of sizes(m) bytes.
func (p *pieces64) lay(members int, sizes func(m int) int) {
	p.parts = p.parts[:0]
	at := 0
	for m := range members {
		n := sizes(m)
		p.parts = append(p.parts, Range{at, at + n})
		at += (n + 63) &^ 63
	}
	p.buf = slices.Grow(p.buf[:0], at)[:at]
}

func (p *pieces64) of(m int) []byte { return p.buf[p.parts[m].Lo:p.parts[m].Hi] }

func (g *Group) prepareCompressed(call Call, red *Reduction, chunks []Range, own [][][]float32, mine, all []float32, z Compressor) *Collective {
	k := &compressed{g: g, z: z, chunks: chunks, own: own, mine: mine, all: all, gives: len(red.Nodes(g.self)) > 0}
	for m := range chunks {
		if len(red.Nodes(m)) > 0 {
			k.givers = append(k.givers, m)
		}
	}
	k.outOf, k.inOf = k.out.of, k.in.of
	k.result = func(int) []byte { return k.in.of(g.self) }
	return g.prepareExchange(call, k.run)
}

func (k *compressed) run(x exchange) error {
	self, n := k.g.self, len(k.mine)
	k.out.lay(len(k.chunks), func(m int) int {
		if !k.gives {
			return 0
		}
		return k.z.Size(k.chunks[m].Len())
	})
	k.in.lay(len(k.chunks), func(m int) int {
		if m == self || !slices.Contains(k.givers, m) {
			return 0
		}
		return k.z.Size(n)
	})
	if k.gives {
		for m, c := range k.chunks {
			if err := k.z.Send(k.out.of(m), k.own[m], c.Lo); err != nil {
				return err
			}
		}
	}
	if err := x(0, k.outOf, k.inOf); err != nil {
		return err
	}
	if err := k.add(Tree{len(k.givers)}.Root(), k.mine, 0); err != nil {
		return err
	}
	if k.all == nil {
		return nil
	}
	k.in.lay(len(k.chunks), func(m int) int { return k.z.Size(k.chunks[m].Len()) })
	if err := k.z.Return(k.in.of(self), k.mine); err != nil {
		return err
	}
	if err := x(1, k.result, k.inOf); err != nil {
		return err
	}
	for m, c := range k.chunks {
		if err := k.receive(m, k.all[c.Lo:c.Hi], k.in.of(m)); err != nil {
			return err
		}
	}
	return nil
}

// add makes dst the sum of the node's givers.
func (k *compressed) add(node Range, dst []float32, depth int) error {
	left, right, ok := (Tree{}).Children(node)
	if !ok {
		if node.Len() == 0 {
			clear(dst)
			return nil
		}
		m := k.givers[node.Lo]
		if m == k.g.self {
			return k.receive(m, dst, k.out.of(m))
		}
		return k.receive(m, dst, k.in.of(m))
	}
	if err := k.add(left, dst, depth+1); err != nil {
		return err
	}
	for len(k.stack) <= depth {
		k.stack = append(k.stack, make([]float32, len(k.mine)))
	}
	other := k.stack[depth]
	if err := k.add(right, other, depth+1); err != nil {
		return err
	}
	vec.AddTo(dst, other)
	return nil
}

func (k *compressed) receive(m int, dst []float32, src []byte) error {
	if err := k.z.Receive(dst, src); err != nil {
		var own *OwnError
		if errors.As(err, &own) {
			return err
		}
		return &PeerError{Rank: k.g.ranks[m], Cause: err}
	}
	return nil
}

// PrepareSums prepares a collective that consists of several sums over the contributors, with computation between them that every
// member does alike. What contributors have is own, whose sums over the lanes of red body gets: this member's, or over several hosts
// what its host has added, the same on all its members; own is then overwritten. sum adds a vector in place, which must have one length
// on all members and one place in memory each time, in the order of the tree with one lane per contributor.
func (g *Group) PrepareSums(label string, red *Reduction, own [][]float32, body func(own [][]float32, sum func([]float32) error) error) (*Collective, error) {
	if len(own) == 0 {
		return nil, errors.New("every member of a collective of several sums needs a part of its own, and this rank has none")
	}
	n := len(own[0])
	if err := g.checkTree(red, Chunks(n, g.Size(), ChunkAlign), own, n); err != nil {
		return nil, err
	}
	call := Call{Op: OpAllReduceTree, Element: Float32, Label: label, Bytes: 4 * int64(n), Detail: detail(red.digest, "sums")}
	if y := g.hosts; y != nil {
		return y.prepareSums(g, call, red, own, body)
	}
	s := &sums{g: g}
	s.of = func(m int) []byte { return bytesOf(s.v[s.chunks[m].Lo:s.chunks[m].Hi]) }
	s.mine = func(int) []byte { return s.of(g.self) }
	s.theirs = func(m int) []byte { return bytesOf(s.contributions[m]) }
	sum := s.sum
	return g.prepareExchange(call, func(x exchange) error {
		s.x, s.phase = x, 0
		return body(own, sum)
	}), nil
}

// sums are the sums of one prepared collective, over all members at once.
type sums struct {
	g                    *Group
	x                    exchange
	phase                int
	v                    []float32
	chunks               []Range
	contributions, stack [][]float32
	of, mine, theirs     parts
}

func (s *sums) sum(v []float32) error {
	g := s.g
	s.v, s.chunks = v, chunksInto(s.chunks[:0], len(v), g.Size(), ChunkAlign)
	c := s.chunks[g.self]
	mine := v[c.Lo:c.Hi]
	s.contributions = sized(s.contributions, g.Size(), len(mine))
	s.stack = sized(s.stack, g.Size(), len(mine))
	if err := s.x(s.phase, s.of, s.theirs); err != nil {
		return err
	}
	copy(s.contributions[g.self], mine)
	addTree(Tree{g.Size()}.Root(), s.contributions, mine, s.stack)
	s.phase += 2
	return s.x(s.phase-1, s.mine, s.of)
}

// addTree makes dst the sum of a node's vectors.
func addTree(node Range, vectors [][]float32, dst []float32, stack [][]float32) {
	left, right, ok := (Tree{}).Children(node)
	if !ok {
		copy(dst, vectors[node.Lo])
		return
	}
	addTree(left, vectors, dst, stack[1:])
	addTree(right, vectors, stack[0], stack[1:])
	vec.AddTo(dst, stack[0])
}

// sized gives a list count vectors of n elements each.
func sized(list [][]float32, count, n int) [][]float32 {
	for len(list) < count {
		list = append(list, nil)
	}
	for i := range list {
		list[i] = slices.Grow(list[i][:0], n)[:n]
	}
	return list
}

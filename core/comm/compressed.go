package comm

import (
	"errors"
	"fmt"
	"slices"

	"starling/sdk/vec"
)

// Sums of compressed vectors. Every member compresses its part of each chunk once and sends it to the chunk's owner; the owner
// adds the parts in the order of a tree over the members, and where everybody gets the whole sum compresses it once more.

// Compressor is one member's side of a compressed sum of one vector. How many bytes a chunk makes depends on its length alone,
// and on nothing in which members could differ.
type Compressor interface {
	// Size is the number of bytes that n elements make this time.
	Size(n int) int
	// Send compresses elements [lo, hi) of the sum of own into dst.
	Send(dst []byte, own [][]float32, lo, hi int) error
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
// many partial sums each member has; dst may be own[0]. Between hosts only is anything compressed, where the group has several.
func (g *Group) PrepareAllReduceCompressed(label string, red *Reduction, own [][]float32, dst []float32, z Compressor) (*Collective, error) {
	chunks := Chunks(len(dst), g.Size(), ChunkAlign)
	if err := g.checkTree(red, chunks, own, len(dst)); err != nil {
		return nil, err
	}
	call := Call{Op: OpAllReduceTree, Element: Float32, Label: label, Bytes: 4 * int64(len(dst)), Detail: detail(red.digest, "compressed")}
	if y := g.hosts; y != nil {
		return y.prepareSum(g, call, red, own, dst, max(len(dst), 1), func(between *Reduction, sums [][]float32, mine []float32) (*Collective, error) {
			return y.rail.PrepareAllReduceCompressed(label, between, sums, mine, z)
		})
	}
	return g.prepareCompressed(call, red, chunks, own, dst[chunks[g.self].Lo:chunks[g.self].Hi], dst, z), nil
}

// PrepareReduceScatterCompressed prepares the same sum, of which each member gets its chunk, as it was added.
func (g *Group) PrepareReduceScatterCompressed(label string, red *Reduction, chunks []Range, own [][]float32, dst []float32, z Compressor) (*Collective, error) {
	n := vectorLen(own, chunks)
	if err := g.checkTree(red, chunks, own, n); err != nil {
		return nil, err
	}
	if want := chunks[g.self].Len(); len(dst) != want {
		return nil, fmt.Errorf("the result has %d elements, this rank's chunk %d", len(dst), want)
	}
	call := Call{Op: OpReduceScatterTree, Element: Float32, Label: label, Bytes: 4 * int64(n), Detail: detail(red.digest, chunks, "compressed")}
	return g.prepareCompressed(call, red, chunks, own, dst, nil, z), nil
}

// Compressing says what a member compresses of a vector of n elements in PrepareAllReduceCompressed: a part of it, as one of
// several contributors of that part, whose sum it returns for a chunk of the part.
type Compressing struct {
	Part                      Range
	Contributor, Contributors int
	Chunk                     Range // of the vector
}

// Compressing returns what this member compresses of a vector of n elements.
func (g *Group) Compressing(n int) Compressing {
	c := Compressing{Part: Range{0, n}, Contributor: g.self, Contributors: g.Size()}
	if y := g.hosts; y != nil {
		c.Part = Chunks(n, y.each, ChunkAlign)[y.host.self]
		c.Contributor, c.Contributors = y.rail.self, y.hosts
	}
	c.Chunk = Chunks(c.Part.Len(), c.Contributors, ChunkAlign)[c.Contributor]
	c.Chunk = Range{c.Part.Lo + c.Chunk.Lo, c.Part.Lo + c.Chunk.Hi}
	return c
}

// compressed is one compressed sum.
type compressed struct {
	g      *Group
	z      Compressor
	chunks []Range
	own    [][]float32
	mine   []float32 // the sum of this member's chunk
	all    []float32 // the whole sum, or nil

	givers []int // members that have partial sums, ascending
	gives  bool  // this one has
	out    pieces64
	in     pieces64
	stack  [][]float32
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

func (g *Group) prepareCompressed(call Call, red *Reduction, chunks []Range, own [][]float32, mine, all []float32, z Compressor) *Collective {
	k := &compressed{g: g, z: z, chunks: chunks, own: own, mine: mine, all: all, gives: len(own) > 0}
	for m := range chunks {
		if len(red.Nodes(m)) > 0 {
			k.givers = append(k.givers, m)
		}
	}
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
			if err := k.z.Send(k.out.of(m), k.own, c.Lo, c.Hi); err != nil {
				return err
			}
		}
	}
	if err := x(0, k.out.of, k.in.of); err != nil {
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
	err := x(1, func(int) []byte { return k.in.of(self) }, k.in.of)
	if err != nil {
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

// PrepareSums prepares a collective that consists of several sums over the members, with computation between them that every
// member does alike. sum adds a vector in place, which must have one length on all members, in the order of the tree with one
// lane per member.
func (g *Group) PrepareSums(label string, body func(sum func([]float32) error) error) *Collective {
	var contributions, stack [][]float32
	return g.prepareExchange(Call{Op: OpAllReduceTree, Element: Float32, Label: label, Bytes: -1, Detail: detail("sums")}, func(x exchange) error {
		phase := 0
		return body(func(v []float32) error {
			chunks := Chunks(len(v), g.Size(), ChunkAlign)
			mine := v[chunks[g.self].Lo:chunks[g.self].Hi]
			contributions = sized(contributions, g.Size(), len(mine))
			stack = sized(stack, g.Size(), len(mine))
			of := func(m int) []byte { return bytesOf(v[chunks[m].Lo:chunks[m].Hi]) }
			if err := x(phase, of, func(m int) []byte { return bytesOf(contributions[m]) }); err != nil {
				return err
			}
			copy(contributions[g.self], mine)
			addTree(Tree{g.Size()}.Root(), contributions, mine, stack)
			phase += 2
			return x(phase-1, func(int) []byte { return bytesOf(mine) }, of)
		})
	})
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

package comm

import (
	"context"
	"fmt"
)

// Lists of vectors of one element type that go as one collective: small tensors then cost one exchange together instead of one
// each. They are packed on their way; a sum has the bits that each vector's own would have.

// packing lays parts of the vectors of a list one behind the other, owner by owner.
type packing struct {
	list   [][]byte
	parts  [][]Range // by owner and vector, in bytes
	at     []Range   // by owner: its parts in packed
	packed []byte
}

// newPacking packs vectors of which each owner has a part: all of them if there is one.
func newPacking(list [][]byte, parts [][]Range) *packing {
	p := &packing{list: list, parts: parts}
	n := 0
	for _, of := range parts {
		from := n
		for _, r := range of {
			n += r.Len()
		}
		p.at = append(p.at, Range{from, n})
	}
	p.packed = make([]byte, n)
	return p
}

// pack fills an owner's parts, and unpack takes them out.
func (p *packing) pack(owner int) {
	to := p.packed[p.at[owner].Lo:]
	for i, r := range p.parts[owner] {
		to = to[copy(to, p.list[i][r.Lo:r.Hi]):]
	}
}

func (p *packing) unpack(owner int) {
	from := p.packed[p.at[owner].Lo:]
	for i, r := range p.parts[owner] {
		from = from[copy(p.list[i][r.Lo:r.Hi], from):]
	}
}

// prepared completes a collective on packed vectors.
func (p *packing) prepared(c *Collective, err error, before, after func()) (*Collective, error) {
	if err != nil {
		return nil, err
	}
	c.h.call.Detail = detail(c.h.call.Detail, p.parts) // the lengths must agree one by one
	c.before, c.after = before, after
	return c, nil
}

// wholeList packs all of every vector.
func wholeList(list [][]byte, e Element) (*packing, error) {
	var parts []Range
	for i, x := range list {
		if err := checkElements(x, e); err != nil {
			return nil, fmt.Errorf("vector %d: %w", i, err)
		}
		parts = append(parts, Range{0, len(x)})
	}
	return newPacking(list, [][]Range{parts}), nil
}

// chunkedList packs every vector member by member, and returns the members' chunks of what is packed, in elements.
func (g *Group) chunkedList(list [][]byte, chunks [][]Range, e Element) (*packing, []Range, error) {
	if err := checkElements(nil, e); err != nil {
		return nil, nil, err
	}
	if len(chunks) != len(list) {
		return nil, nil, fmt.Errorf("%d lists of chunks for %d vectors", len(chunks), len(list))
	}
	parts := make([][]Range, g.Size())
	for i, x := range list {
		err := checkElements(x, e)
		if err == nil {
			err = checkChunks(chunks[i], g.Size(), len(x)/e.Size())
		}
		if err != nil {
			return nil, nil, fmt.Errorf("vector %d: %w", i, err)
		}
		for m, r := range inBytes(chunks[i], e.Size()) {
			parts[m] = append(parts[m], r)
		}
	}
	p := newPacking(list, parts)
	packed := make([]Range, g.Size())
	for m, r := range p.at {
		packed[m] = Range{r.Lo / e.Size(), r.Hi / e.Size()}
	}
	return p, packed, nil
}

// PrepareAllReduceListOf prepares PrepareAllReduceOf of several vectors as one collective.
func (g *Group) PrepareAllReduceListOf(label string, list [][]byte, e Element, how Combine) (*Collective, error) {
	p, err := wholeList(list, e)
	if err != nil {
		return nil, err
	}
	c, err := g.PrepareAllReduceOf(label, p.packed, e, how)
	return p.prepared(c, err, func() { p.pack(0) }, func() { p.unpack(0) })
}

// PrepareReduceScatterListOf prepares PrepareReduceScatterOf of several vectors, each with chunks of its own, as one collective.
func (g *Group) PrepareReduceScatterListOf(label string, chunks [][]Range, list [][]byte, e Element, how Combine) (*Collective, error) {
	p, packed, err := g.chunkedList(list, chunks, e)
	if err != nil {
		return nil, err
	}
	c, err := g.PrepareReduceScatterOf(label, packed, p.packed, e, how)
	return p.prepared(c, err, func() {
		for m := range g.ranks {
			p.pack(m)
		}
	}, func() { p.unpack(g.self) })
}

// PrepareAllGatherListOf prepares PrepareAllGatherOf of several vectors, each with chunks of its own, as one collective.
func (g *Group) PrepareAllGatherListOf(label string, chunks [][]Range, list [][]byte, e Element) (*Collective, error) {
	p, packed, err := g.chunkedList(list, chunks, e)
	if err != nil {
		return nil, err
	}
	c, err := g.PrepareAllGatherOf(label, packed, p.packed, e)
	return p.prepared(c, err, func() { p.pack(g.self) }, func() {
		for _, m := range g.peers {
			p.unpack(m)
		}
	})
}

// PrepareBroadcastListOf prepares PrepareBroadcastOf of several vectors as one collective.
func (g *Group) PrepareBroadcastListOf(label string, root int, list [][]byte, e Element) (*Collective, error) {
	p, err := wholeList(list, e)
	if err != nil {
		return nil, err
	}
	c, err := g.PrepareBroadcastOf(label, root, p.packed, e)
	if g.self == root {
		return p.prepared(c, err, func() { p.pack(0) }, nil)
	}
	return p.prepared(c, err, nil, func() { p.unpack(0) })
}

// PrepareAllReduceList prepares the sum of several vectors of float32 as one collective.
func (g *Group) PrepareAllReduceList(label string, list [][]float32) (*Collective, error) {
	views := make([][]byte, len(list))
	for i, x := range list {
		views[i] = bytesOf(x)
	}
	return g.PrepareAllReduceListOf(label, views, Float32, CombineSum)
}

// AllReduceList is PrepareAllReduceList and Run.
func (g *Group) AllReduceList(ctx context.Context, label string, list [][]float32) error {
	c, err := g.PrepareAllReduceList(label, list)
	return perform(ctx, OpAllReduceTree, label, c, err)
}

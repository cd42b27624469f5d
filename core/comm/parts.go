package comm

import (
	"context"
	"fmt"
)

// Collectives in which members have parts of their own for each other, of any element type. Ranges are given in elements.

// checkParts reports ranges of a buffer of n elements that are not one for each member, inside it.
func (g *Group) checkParts(what string, ranges []Range, n int) error {
	if len(ranges) != g.Size() {
		return fmt.Errorf("%d ranges to %s for %d members", len(ranges), what, g.Size())
	}
	for m, r := range ranges {
		if r.Lo < 0 || r.Hi < r.Lo || r.Hi > n {
			return fmt.Errorf("the range to %s of member %d is %v, outside a buffer of %d elements", what, m, r, n)
		}
	}
	return nil
}

// checkedParts checks ranges of elements of buf and gives the member's part of each.
func (g *Group) checkedParts(what string, ranges []Range, buf []byte, e Element) (parts, error) {
	if err := checkElements(buf, e); err != nil {
		return nil, err
	}
	if err := g.checkParts(what, ranges, len(buf)/e.Size()); err != nil {
		return nil, err
	}
	of := inBytes(ranges, e.Size())
	return func(m int) []byte { return buf[of[m].Lo:of[m].Hi] }, nil
}

func noParts(int) []byte { return nil }

// PrepareAllToAllOf prepares the exchange of a part of send for a part of recv with every member: sends[m] of this member
// arrives in recvs[rank] of member m. Parts may be uneven and empty, but the two sides of each must agree in length.
func (g *Group) PrepareAllToAllOf(label string, sends []Range, send []byte, recvs []Range, recv []byte, e Element) (*Collective, error) {
	out, err := g.checkedParts("send", sends, send, e)
	if err != nil {
		return nil, err
	}
	in, err := g.checkedParts("receive", recvs, recv, e)
	if err != nil {
		return nil, err
	}
	if own, want := recvs[g.self].Len(), sends[g.self].Len(); own != want {
		return nil, fmt.Errorf("this member sends itself %d elements and expects %d", want, own)
	}
	return g.prepareExchange(Call{Op: OpAllToAll, Element: e, Label: label, Bytes: -1}, func(x exchange) error {
		copy(in(g.self), out(g.self))
		return x(0, out, in)
	}), nil
}

// AllToAll exchanges bytes.
func (g *Group) AllToAll(ctx context.Context, label string, sends []Range, send []byte, recvs []Range, recv []byte) error {
	c, err := g.PrepareAllToAllOf(label, sends, send, recvs, recv, Untyped)
	return perform(ctx, OpAllToAll, label, c, err)
}

// PrepareScatterOf prepares that every member gets its range of root's send in recv, whose length is that of the range. The
// others' send and ranges are not looked at.
func (g *Group) PrepareScatterOf(label string, root int, ranges []Range, send, recv []byte, e Element) (*Collective, error) {
	if err := g.checkRoot(root); err != nil {
		return nil, err
	}
	out := noParts
	in := func(m int) []byte {
		if m != root {
			return nil
		}
		return recv
	}
	if err := checkElements(recv, e); err != nil {
		return nil, err
	}
	if g.self == root {
		var err error
		if out, err = g.checkedParts("send", ranges, send, e); err != nil {
			return nil, err
		}
		if want := len(out(root)); len(recv) != want {
			return nil, fmt.Errorf("root's own range has %d bytes, the memory for it %d", want, len(recv))
		}
		in = noParts
	}
	return g.prepareExchange(Call{Op: OpScatter, Element: e, Label: label, Bytes: -1, Detail: detail(root)}, func(x exchange) error {
		copy(recv, out(root))
		return x(0, out, in)
	}), nil
}

// Scatter is PrepareScatterOf for bytes and Run.
func (g *Group) Scatter(ctx context.Context, label string, root int, ranges []Range, send, recv []byte) error {
	c, err := g.PrepareScatterOf(label, root, ranges, send, recv, Untyped)
	return perform(ctx, OpScatter, label, c, err)
}

// PrepareGatherOf prepares that every member's send, whose length is that of its range, gets into that range of root's recv.
// The others' recv and ranges are not looked at. Gather is for lengths that root does not know.
func (g *Group) PrepareGatherOf(label string, root int, send []byte, ranges []Range, recv []byte, e Element) (*Collective, error) {
	if err := g.checkRoot(root); err != nil {
		return nil, err
	}
	if err := checkElements(send, e); err != nil {
		return nil, err
	}
	in := noParts
	out := func(m int) []byte {
		if m != root {
			return nil
		}
		return send
	}
	if g.self == root {
		var err error
		if in, err = g.checkedParts("receive", ranges, recv, e); err != nil {
			return nil, err
		}
		if want := len(in(root)); len(send) != want {
			return nil, fmt.Errorf("root sends itself %d bytes, its own range has %d", len(send), want)
		}
		out = noParts
	}
	return g.prepareExchange(Call{Op: OpGather, Element: e, Label: label, Bytes: -1, Detail: detail(root, "in place")}, func(x exchange) error {
		copy(in(root), send)
		return x(0, out, in)
	}), nil
}

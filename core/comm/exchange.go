package comm

import (
	"context"
	"encoding/binary"
	"fmt"
)

// parts names, for every other member, memory to send to it or to receive from it.
type parts func(m int) []byte

// exchange moves this member's parts to the others and theirs to it. A collective may do so several times; phase numbers
// them.
type exchange func(phase int, send, recv parts) error

// prepareExchange makes a collective that consists of exchanges and of what is done between them.
func (g *Group) prepareExchange(call Call, body func(exchange) error) *Collective {
	c := g.prepare(call, func(r *run) error { return body(r.exchange) })
	c.local.rest = func(c *Collective) error { return body(c.run.exchangeShared) }
	return c
}

// exchange over messages.
func (r *run) exchange(phase int, send, recv parts) error {
	for _, m := range r.others {
		r.eachPiece(recv(m), func(p int, piece []byte) { r.recv(m, phase<<28|p, piece, makeID(kindOther, 0, p)) })
	}
	for _, m := range r.others {
		r.eachPiece(send(m), func(p int, piece []byte) { r.send(m, phase<<28|p, piece, makeID(kindOther, 0, p)) })
	}
	if err := r.allEntered(); err != nil {
		return err
	}
	return r.drain()
}

// exchangeShared is exchange in shared memory. In a first round everybody says how much it has for whom, so that all know
// how many rounds follow; a slot holds a piece for each member.
func (r *run) exchangeShared(_ int, send, recv parts) error {
	g, x := r.g, r.g.shared
	room := min(slotBytes/len(g.ranks)&^63, g.opt.PieceBytes)
	round := x.next
	if err := r.await(needSlot(round)); err != nil {
		return err
	}
	mine := x.slot(g.self, round)
	for m := range g.ranks {
		n := 0
		if m != g.self {
			n = len(send(m))
		}
		binary.LittleEndian.PutUint64(mine[8*m:], uint64(n))
	}
	x.next++
	x.publish(round)
	if err := r.await(everyone(round)); err != nil {
		return err
	}
	count := 0
	for m := range g.ranks {
		slot := x.slot(m, round)
		for to := range g.ranks {
			n := binary.LittleEndian.Uint64(slot[8*to:])
			if to == g.self && m != g.self && n != uint64(len(recv(m))) {
				return lengthError(g.ranks[m], g.ranks[g.self], int(n), len(recv(m)))
			}
			count = max(count, pieces(int(n), room))
		}
	}
	x.finish(round)
	base := x.next
	x.next += uint64(count)
	piece := func(b []byte, p int) []byte { return b[min(p*room, len(b)):min((p+1)*room, len(b))] }
	for p := 0; p <= count; p++ {
		if p < count {
			if err := r.await(needSlot(base + uint64(p))); err != nil {
				return err
			}
			slot := x.slot(g.self, base+uint64(p))
			for _, m := range r.others {
				copy(slot[m*room:], piece(send(m), p))
			}
			x.publish(base + uint64(p))
		}
		if p > 0 {
			if err := r.await(everyone(base + uint64(p-1))); err != nil {
				return err
			}
			for _, m := range r.others {
				copy(piece(recv(m), p-1), x.slot(m, base+uint64(p-1))[g.self*room:])
			}
			x.finish(base + uint64(p-1))
		}
	}
	for _, m := range r.others {
		x.moved(g.ranks[m], len(send(m)), len(recv(m)))
	}
	return nil
}

// checkParts reports ranges of a buffer of n bytes that are not one for each member, inside it.
func (g *Group) checkParts(what string, ranges []Range, n int) error {
	if len(ranges) != g.Size() {
		return fmt.Errorf("%d ranges to %s for %d members", len(ranges), what, g.Size())
	}
	for m, r := range ranges {
		if r.Lo < 0 || r.Hi < r.Lo || r.Hi > n {
			return fmt.Errorf("the range to %s of member %d is %v, outside a buffer of %d bytes", what, m, r, n)
		}
	}
	return nil
}

// PrepareAllToAll prepares the exchange of a part of send for a part of recv with every member: sends[m] of this member
// arrives in recvs[rank] of member m. Parts may be uneven and empty, but the two sides of each must agree in length.
func (g *Group) PrepareAllToAll(label string, sends []Range, send []byte, recvs []Range, recv []byte) (*Collective, error) {
	if err := g.checkParts("send", sends, len(send)); err != nil {
		return nil, err
	}
	if err := g.checkParts("receive", recvs, len(recv)); err != nil {
		return nil, err
	}
	if own, want := recvs[g.self].Len(), sends[g.self].Len(); own != want {
		return nil, fmt.Errorf("this member sends itself %d bytes and expects %d", want, own)
	}
	return g.prepareExchange(Call{Op: OpAllToAll, Label: label, Bytes: -1}, func(x exchange) error {
		copy(recv[recvs[g.self].Lo:recvs[g.self].Hi], send[sends[g.self].Lo:sends[g.self].Hi])
		return x(0, func(m int) []byte { return send[sends[m].Lo:sends[m].Hi] }, func(m int) []byte { return recv[recvs[m].Lo:recvs[m].Hi] })
	}), nil
}

// AllToAll is PrepareAllToAll and Run.
func (g *Group) AllToAll(ctx context.Context, label string, sends []Range, send []byte, recvs []Range, recv []byte) error {
	c, err := g.PrepareAllToAll(label, sends, send, recvs, recv)
	if err != nil {
		return fmt.Errorf("comm: all_to_all %q: %w", label, err)
	}
	return c.Run(ctx)
}

// Scatter gives every member its range of root's send, in recv, whose length is that of the range. The others' send and
// ranges are not looked at.
func (g *Group) Scatter(ctx context.Context, label string, root int, ranges []Range, send, recv []byte) error {
	bad := func(err error) error { return fmt.Errorf("comm: scatter %q: %w", label, err) }
	if root < 0 || root >= g.Size() {
		return bad(fmt.Errorf("root %d is no member of a group of %d", root, g.Size()))
	}
	if g.self == root {
		if err := g.checkParts("send", ranges, len(send)); err != nil {
			return bad(err)
		}
		if want := ranges[root].Len(); len(recv) != want {
			return bad(fmt.Errorf("root's own range has %d bytes, the memory for it %d", want, len(recv)))
		}
	}
	return g.prepareExchange(Call{Op: OpScatter, Label: label, Bytes: -1, Detail: detail(root)}, func(x exchange) error {
		if g.self == root {
			copy(recv, send[ranges[root].Lo:ranges[root].Hi])
		}
		return x(0, func(m int) []byte {
			if g.self != root {
				return nil
			}
			return send[ranges[m].Lo:ranges[m].Hi]
		}, func(m int) []byte {
			if g.self == root || m != root {
				return nil
			}
			return recv
		})
	}).Run(ctx)
}

package comm

import "encoding/binary"

// parts names, for every other member, memory to send to it or to receive from it.
type parts func(m int) []byte

// exchange moves this member's parts to the others and theirs to it. A collective may do so several times; phase numbers
// them.
type exchange func(phase int, send, recv parts) error

// prepareExchange makes a collective that consists of exchanges and of what is done between them.
func (g *Group) prepareExchange(call Call, body func(exchange) error) *Collective {
	c := g.prepare(call, nil)
	messages, shared := c.run.exchange, c.run.exchangeShared // made once, since making them allocates
	c.body = func(*run) error { return body(messages) }
	c.local.rest = func(*Collective) error { return body(shared) }
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

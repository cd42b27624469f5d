package comm

import (
	"encoding/binary"
	"fmt"
)

// The collectives that only move bytes, in shared memory.

// sharedBody is a collective in shared memory. A brief one consists of what publish writes into this member's slot
// (nothing, for a barrier) and of what rest does once it has waited for everybody's; the others do all in rest.
type sharedBody struct {
	publish func(slot []byte)
	rest    func(c *Collective) error
	places  places // of the vectors of one that may be carried out in place
}

// everyone is the need for all slots of a round.
func everyone(round uint64) need { return need{published, -1, round + 1} }

// barrierShared waits for everybody's entry.
func barrierShared() sharedBody {
	return sharedBody{rest: func(c *Collective) error { return c.run.await(need{entered, -1, c.run.seq + 1}) }}
}

// movePiece is how much of a large part goes through a slot at a time: little enough that it is still in the cache when
// it is read.
const movePiece = 128 << 10

// pieceBytes returns the size of pieces in shared memory, at most limit.
func (g *Group) pieceBytes(limit int) int { return min(g.opt.PieceBytes, limit) }

// broadcastShared moves root's buf to everybody.
func (g *Group) broadcastShared(root int, buf []byte) sharedBody {
	size := g.pieceBytes(movePiece)
	count := pieces(len(buf), size)
	return sharedBody{rest: func(c *Collective) error {
		x, r := g.shared, &c.run
		base := x.next
		x.next += uint64(count)
		if g.self != root {
			if count > 0 { // the others' slots of these rounds stay unwritten
				x.heads[g.self].published.Store(base + uint64(count))
			}
			for p := range count {
				round := base + uint64(p)
				if err := r.await(need{published, root, round + 1}); err != nil {
					return err
				}
				copy(buf[p*size:min((p+1)*size, len(buf))], x.slot(root, round))
				x.finish(round)
			}
			x.moved(g.ranks[root], 0, len(buf))
			return nil
		}
		for p := range count {
			round := base + uint64(p)
			if err := r.await(needSlot(round)); err != nil {
				return err
			}
			copy(x.slot(root, round), buf[p*size:min((p+1)*size, len(buf))])
			x.heads[root].finished.Store(round + 1)
			x.publish(round)
		}
		for _, m := range r.others {
			x.moved(g.ranks[m], len(buf), 0)
		}
		return nil
	}}
}

// allGatherShared moves every member's part of buf to everybody, piece by piece: this member's next piece is published
// before the others' last is read.
func (g *Group) allGatherShared(parts []Range, buf []byte) sharedBody {
	size := g.pieceBytes(movePiece)
	count := 0
	for _, p := range parts {
		count = max(count, pieces(p.Len(), size))
	}
	piece := func(m, p int) []byte {
		from := min(parts[m].Lo+p*size, parts[m].Hi)
		return buf[from:min(from+size, parts[m].Hi)]
	}
	take := func(r *run, p int, round uint64) {
		x := g.shared
		for _, m := range r.others {
			dst := piece(m, p)
			copy(dst, x.slot(m, round))
			x.moved(g.ranks[m], 0, len(dst))
		}
		x.finish(round)
	}
	if count <= 1 {
		return sharedBody{
			publish: func(slot []byte) { copy(slot, piece(g.self, 0)) },
			rest: func(c *Collective) error {
				if err := c.run.await(everyone(c.base)); err != nil {
					return err
				}
				take(&c.run, 0, c.base)
				g.sentToAll(parts[g.self].Len())
				return nil
			},
		}
	}
	at := g.shared.placesOf(buf)
	inPlace := g.gatherInPlace(parts, buf)
	return sharedBody{places: at, rest: func(c *Collective) error {
		x, r := g.shared, &c.run
		if direct, err := r.inPlace(at); direct || err != nil {
			if err == nil {
				err = inPlace(r)
			}
			return err
		}
		base := x.next
		x.next += uint64(count)
		for p := 0; p <= count; p++ {
			if p < count {
				round := base + uint64(p)
				if err := r.await(needSlot(round)); err != nil {
					return err
				}
				copy(x.slot(g.self, round), piece(g.self, p))
				x.publish(round)
			}
			if p > 0 {
				round := base + uint64(p-1)
				if err := r.await(everyone(round)); err != nil {
					return err
				}
				take(r, p-1, round)
			}
		}
		g.sentToAll(parts[g.self].Len())
		return nil
	}}
}

// sentToAll counts bytes that every other member has read.
func (g *Group) sentToAll(n int) {
	for _, m := range g.peers {
		g.shared.moved(g.ranks[m], n, 0)
	}
}

// gatherShared gives every member's bytes to root, or to everybody if root is negative, in out. The length and the first
// bytes go in one round, what is left in further ones, of which all members know the number from the lengths.
func (g *Group) gatherShared(root int, mine []byte, out *[][]byte) sharedBody {
	const ahead = slotBytes - 8
	taker := root < 0 || root == g.self
	return sharedBody{
		publish: func(slot []byte) {
			binary.LittleEndian.PutUint64(slot, uint64(len(mine)))
			copy(slot[8:], mine)
		},
		rest: func(c *Collective) error {
			x, r := g.shared, &c.run
			if err := r.await(everyone(c.base)); err != nil {
				return err
			}
			r.ctx = nil // from here on it goes through
			all := make([][]byte, len(g.ranks))
			all[g.self] = append([]byte{}, mine...)
			more := pieces(max(len(mine)-ahead, 0), slotBytes)
			for _, m := range r.others {
				slot := x.slot(m, c.base)
				n := binary.LittleEndian.Uint64(slot)
				if n > maxGather {
					return fmt.Errorf("comm: %s %q: rank %d announces %d bytes; at most %d can be gathered", r.call.Op, r.call.Label, g.ranks[m], n, maxGather)
				}
				more = max(more, pieces(max(int(n)-ahead, 0), slotBytes))
				if taker {
					all[m] = make([]byte, n)
					copy(all[m], slot[8:])
				}
			}
			x.finish(c.base)
			base := x.next
			x.next += uint64(more)
			for p := range more {
				round := base + uint64(p)
				from := ahead + p*slotBytes
				if err := r.await(needSlot(round)); err != nil {
					return err
				}
				copy(x.slot(g.self, round), mine[min(from, len(mine)):])
				x.publish(round)
				if taker {
					if err := r.await(everyone(round)); err != nil {
						return err
					}
					for _, m := range r.others {
						copy(all[m][min(from, len(all[m])):], x.slot(m, round))
					}
				}
				x.finish(round)
			}
			for _, m := range r.others {
				x.moved(g.ranks[m], 0, len(all[m]))
				if root < 0 || root == m {
					x.moved(g.ranks[m], len(mine), 0)
				}
			}
			if taker {
				*out = all
			}
			return nil
		},
	}
}

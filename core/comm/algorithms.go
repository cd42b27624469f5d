package comm

import (
	"encoding/binary"
	"fmt"

	"starling/sdk/vec"
)

// The bodies of the collectives. Each hands its messages to the transport at once, in pieces, and then reacts to
// completions in whatever order they come; what is computed never depends on that order.

// Kinds of messages, in the ids of a run.
const (
	kindOther = iota
	kindPartSent
	kindPartCame
	kindDownCame
)

// resultIndex marks messages that carry finished pieces, to tell them from partial sums between the same two ranks.
const resultIndex = 1 << 31

// maxGather bounds what a member may send in a gather of bytes.
const maxGather = 1 << 30

// eachPiece calls f for every piece of a byte buffer.
func (r *run) eachPiece(b []byte, f func(p int, piece []byte)) {
	cutUp(b, r.g.opt.PieceBytes, f)
}

func cutUp(b []byte, size int, f func(p int, piece []byte)) {
	for p := 0; p*size < len(b); p++ {
		f(p, b[p*size:min((p+1)*size, len(b))])
	}
}

// relayPiece bounds the pieces of what members pass on to each other: the last of them waits for one piece for each hop.
const relayPiece = 256 << 10

// broadcast sends pieces down a binomial tree of members rooted at root; a piece is passed on as soon as it has come.
func (r *run) broadcast(root int, buf []byte) error {
	g := r.g
	size := len(g.ranks)
	length := g.pieceBytes(relayPiece)
	at := (g.self - root + size) % size
	low := at & -at // this member's children are at + 1, 2, 4, … below its lowest bit
	if at == 0 {
		low = size
	}
	top := 1
	for 2*top < low && at+2*top < size {
		top *= 2
	}
	down := func(p int, piece []byte) {
		for d := top; d > 0; d /= 2 { // the child with the largest subtree first
			if d < low && at+d < size {
				r.send((at+d+root)%size, p, piece, makeID(kindOther, 0, p))
			}
		}
	}
	if at == 0 {
		cutUp(buf, length, down)
		return r.drain()
	}
	parent := (at&(at-1) + root) % size
	cutUp(buf, length, func(p int, piece []byte) { r.recv(parent, p, piece, makeID(kindDownCame, 0, p)) })
	for r.open > 0 {
		id, err := r.next()
		if err != nil {
			return err
		}
		if _, kind, _, p := splitID(id); kind == kindDownCame {
			down(p, buf[p*length:min((p+1)*length, len(buf))])
		}
	}
	return nil
}

// allGather sends this member's part to every other and receives theirs in place.
func (r *run) allGather(parts []Range, buf []byte) error {
	part := func(m int) []byte { return buf[parts[m].Lo:parts[m].Hi] }
	for _, m := range r.others {
		r.eachPiece(part(m), func(p int, piece []byte) { r.recv(m, p, piece, makeID(kindOther, 0, p)) })
	}
	for _, m := range r.others {
		r.eachPiece(part(r.g.self), func(p int, piece []byte) { r.send(m, p, piece, makeID(kindOther, 0, p)) })
	}
	return r.drain()
}

// gatherBytes sends mine to the members in to and returns what the members in from send, with mine in its own place. A
// length goes ahead of the bytes.
func (r *run) gatherBytes(mine []byte, to, from []int) ([][]byte, error) {
	size := len(r.g.ranks)
	length := binary.LittleEndian.AppendUint64(nil, uint64(len(mine)))
	lengths := make([][8]byte, size)
	for _, m := range from {
		r.recv(m, 0, lengths[m][:], makeID(kindDownCame, 0, 0))
	}
	for _, m := range to {
		r.send(m, 0, length, makeID(kindOther, 0, 0))
		r.eachPiece(mine, func(p int, piece []byte) { r.send(m, p+1, piece, makeID(kindOther, 0, p)) })
	}
	out := make([][]byte, size)
	out[r.g.self] = append([]byte{}, mine...)
	for r.open > 0 {
		id, err := r.next()
		if err != nil {
			return nil, err
		}
		m, kind, _, _ := splitID(id)
		if kind != kindDownCame {
			continue
		}
		n := binary.LittleEndian.Uint64(lengths[m][:])
		if n > maxGather {
			return nil, fmt.Errorf("comm: %s %q: rank %d announces %d bytes; at most %d can be gathered", r.call.Op, r.call.Label, r.g.ranks[m], n, maxGather)
		}
		out[m] = make([]byte, n)
		r.eachPiece(out[m], func(p int, piece []byte) { r.recv(m, p+1, piece, makeID(kindOther, 0, p)) })
	}
	return out, nil
}

// pair sends or receives one message.
func (r *run) pair(m int, buf []byte) error {
	r.eachPiece(buf, func(p int, piece []byte) {
		if r.stream == StreamSend {
			r.send(m, p, piece, makeID(kindOther, 0, p))
		} else {
			r.recv(m, p, piece, makeID(kindOther, 0, p))
		}
	})
	if err := r.allEntered(); err != nil {
		return err
	}
	return r.drain()
}

// treeReduce is the state of one tree collective on one rank. Every member sends its partial sums of each chunk to the
// chunk's owner; the owner adds piece by piece in tree order and, in an all-reduce, sends each finished piece to everyone.
type treeReduce struct {
	r      *run
	red    *Reduction
	chunks []Range
	own    [][]float32 // this rank's partial sums, whole vectors
	mine   []float32   // where this rank's chunk of the result goes
	all    []float32   // where the whole result goes, or nil

	piece   int       // elements per piece
	count   int       // pieces in this rank's own chunk
	depth   int       // pieces staged at once
	width   int       // elements of a staged piece
	foreign int       // partial sums that others send per piece
	staging []float32 // [depth][foreign][width]
	arrived []int     // per staged piece: partial sums that have come
	unsent  [][]int   // per member and piece of its chunk: own partial sums not yet sent (all-reduce only)

	values [][]float32 // scratch of evaluate
	staged []bool      // whether values[i] lies in staging and may be overwritten
}

// reduce carries the collective out over messages. What it has allocated before it keeps.
func (t *treeReduce) reduce(r *run) error {
	g, red, mine, all := r.g, t.red, t.mine, t.all
	if t.values == nil {
		t.r = r
		t.piece = red.pieceFloats(g.opt.PieceBytes)
		t.count = pieces(len(mine), t.piece)
		t.depth = min(stagingDepth, t.count)
		t.width = min(t.piece, len(mine))
		t.foreign = len(red.leaves) - len(t.own)
		t.arrived = make([]int, t.depth)
		t.values = make([][]float32, len(red.leaves)+len(red.sums))
		t.staged = make([]bool, len(t.values))
		t.unsent = make([][]int, len(g.ranks))
		if all != nil {
			for _, m := range r.others {
				t.unsent[m] = make([]int, pieces(t.chunks[m].Len(), t.piece))
			}
		}
	}
	t.staging = g.stagingFor(t.depth * t.foreign * t.width)
	clear(t.arrived)
	for p := range t.depth {
		t.offer(p)
	}
	for _, m := range r.others {
		t.sendParts(m)
	}
	if t.foreign == 0 {
		for p := range t.count {
			t.finish(p)
		}
	}
	for r.open > 0 {
		id, err := r.next()
		if err != nil {
			return err
		}
		m, kind, _, p := splitID(id)
		switch kind {
		case kindPartCame:
			slot := p % t.depth
			if t.arrived[slot]++; t.arrived[slot] == t.foreign {
				t.arrived[slot] = 0
				t.finish(p)
				if p+t.depth < t.count {
					t.offer(p + t.depth)
				}
			}
		case kindPartSent:
			if all != nil {
				if t.unsent[m][p]--; t.unsent[m][p] == 0 {
					t.offerResult(m, p)
				}
			}
		}
	}
	return nil
}

// slot returns the staging memory of leaf i for piece p; the leaves this rank holds itself have none.
func (t *treeReduce) slot(i, p, n int) []float32 {
	first, end := t.red.first[t.r.g.self], t.red.first[t.r.g.self+1]
	if i >= end {
		i -= end - first
	}
	at := ((p%t.depth)*t.foreign + i) * t.width
	return t.staging[at : at+n]
}

// offer makes the staging of piece p of this rank's chunk available to all members.
func (t *treeReduce) offer(p int) {
	self := t.r.g.self
	n := pieceOf(t.chunks[self], p, t.piece).Len()
	for _, m := range t.r.others {
		first, nodes := t.red.first[m], t.red.first[m+1]-t.red.first[m]
		for k := range nodes {
			t.r.recv(m, p*nodes+k, bytesOf(t.slot(first+k, p, n)), makeID(kindPartCame, k, p))
		}
	}
}

// sendParts hands over this rank's partial sums of member m's chunk. A piece of the result may land on the memory of the
// partial sum, so it is only asked for when the partial sums of that piece have gone.
func (t *treeReduce) sendParts(m int) {
	count := pieces(t.chunks[m].Len(), t.piece)
	for p := range count {
		c := pieceOf(t.chunks[m], p, t.piece)
		if t.all != nil {
			t.unsent[m][p] = len(t.own)
			if len(t.own) == 0 {
				t.offerResult(m, p)
			}
		}
		for k, o := range t.own {
			t.r.send(m, p*len(t.own)+k, bytesOf(o[c.Lo:c.Hi]), makeID(kindPartSent, k, p))
		}
	}
}

// offerResult asks member m for finished piece p of its chunk.
func (t *treeReduce) offerResult(m, p int) {
	c := pieceOf(t.chunks[m], p, t.piece)
	t.r.recv(m, resultIndex|p, bytesOf(t.all[c.Lo:c.Hi]), makeID(kindOther, 0, p))
}

// finish adds piece p of this rank's chunk in tree order and passes the result on.
func (t *treeReduce) finish(p int) {
	self := t.r.g.self
	c := pieceOf(t.chunks[self], p, t.piece)
	first, end := t.red.first[self], t.red.first[self+1]
	for i := range t.red.leaves {
		t.staged[i] = i < first || i >= end
		if t.staged[i] {
			t.values[i] = t.slot(i, p, c.Len())
		} else {
			t.values[i] = t.own[i-first][c.Lo:c.Hi]
		}
	}
	result := t.mine[p*t.piece : p*t.piece+c.Len()]
	if len(t.red.sums) == 0 {
		copy(result, t.values[0])
	}
	for i, s := range t.red.sums {
		// The sum replaces an operand in staging. One of them is: two subtrees that are both this rank's own and are siblings
		// would be one subtree. The last sum is the root.
		at := len(t.red.leaves) + i
		dst := result
		if i < len(t.red.sums)-1 {
			dst = t.values[s.right]
			if t.staged[s.left] {
				dst = t.values[s.left]
			}
		}
		vec.Add(dst, t.values[s.left], t.values[s.right])
		t.values[at], t.staged[at] = dst, true
	}
	if t.all != nil {
		for _, m := range t.r.others {
			t.r.send(m, resultIndex|p, bytesOf(result), makeID(kindOther, 0, p))
		}
	}
}

// stagingFor returns n elements of the group's staging memory.
func (g *Group) stagingFor(n int) []float32 {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.stagingPeak = max(g.stagingPeak, 4*n)
	g.growStaging(4 * n)
	return g.staging[:n]
}

func (g *Group) growStaging(bytes int) {
	if n := (bytes + 3) / 4; n > len(g.staging) {
		g.staging = make([]float32, n)
	}
}

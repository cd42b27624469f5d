package comm

import (
	"fmt"
	"math/bits"

	"starling/sdk/vec"
)

// Sums that give up the canonical order. A member contributes one vector, whatever lanes it holds, and members are added in
// the order that the algorithm has by nature: the bits then depend on the number of members and on the algorithm, and still
// not on time. All members get the same bits.

// Algorithm is how a sum outside the canonical order is carried out.
type Algorithm uint8

// The algorithms.
const (
	Auto         Algorithm = iota // chosen by size, members and topology: Group.Choose
	Ring                          // reduce-scatter and all-gather around a ring: 2(N-1) steps, 2(N-1)/N of the vector sent (Patarasuk and Yuan, 2009)
	Doubling                      // recursive doubling: log2(N) steps, in each the whole vector
	Direct                        // every member sends each owner its part: canonical, or with one lane for each member
	Hierarchical                  // the same inside each host, then between hosts: see hierarchy.go
)

// String returns the name by which a recipe asks for it.
func (a Algorithm) String() string {
	return [...]string{"auto", "ring", "doubling", "direct", "hierarchical"}[a]
}

// ParseAlgorithm reads a name.
func ParseAlgorithm(s string) (Algorithm, error) {
	for a := Auto; a <= Hierarchical; a++ {
		if a.String() == s {
			return a, nil
		}
	}
	return 0, fmt.Errorf("no algorithm %q: choose auto, ring, doubling, direct or hierarchical", s)
}

// Allows returns why the group cannot carry out sums by an algorithm that is asked for, or nil.
func (g *Group) Allows(a Algorithm) error {
	switch {
	case (a == Ring || a == Doubling) && g.shared != nil:
		return fmt.Errorf("%v: the %d ranks share memory, where every sum is direct; connect them in another way (--transport unix, or tcp), or do not ask for an algorithm", a, len(g.ranks))
	case a == Hierarchical && g.hosts == nil && len(g.ranks) > 1:
		return fmt.Errorf("%v: %s; leave the choice to the run, or declare hosts that can be summed one by one", a, g.flat)
	case a == Direct && g.hosts != nil:
		return fmt.Errorf("%v: the group sums host by host (Options.Flat)", a)
	}
	return nil
}

// What a step of a collective over connections costs, whatever it moves, and what a byte does, in seconds: the choice between
// algorithms that differ in both needs no better figures.
const (
	stepCost = 40e-6
	byteCost = 1e-9
)

// Choose returns the algorithm for a vector of so many bytes, a itself unless it is Auto. In shared memory every sum is
// direct, and hosts of several ranks are summed host by host.
func (g *Group) Choose(a Algorithm, bytes int) Algorithm {
	switch {
	case a != Auto:
		return a
	case g.shared != nil:
		return Direct
	case g.hosts != nil:
		return Hierarchical
	}
	return a.Over(len(g.ranks), bytes)
}

// Over returns the algorithm for a vector of so many bytes over connections between n members, a itself unless it is Auto.
func (a Algorithm) Over(n, bytes int) Algorithm {
	switch {
	case a != Auto:
		return a
	case n < 3:
		return Direct
	}
	rounds := float64(bits.Len(uint(n)) - 1)
	if n&(n-1) != 0 {
		rounds += 2
	}
	doubling := rounds * (stepCost + byteCost*float64(bytes))
	ring := 2 * float64(n-1) * (stepCost + byteCost*float64(bytes)/float64(n))
	if doubling <= ring {
		return Doubling
	}
	return Ring
}

// SentBytes returns the payload that a member sends for a vector cut into chunks, of which everybody gets all or, unless whole, its
// chunk: a is Ring, Doubling or Direct, with one lane for each member.
func (a Algorithm) SentBytes(rank int, chunks []Range, whole bool) int {
	n := len(chunks)
	all, own := extent(chunks), chunks[rank].Len()
	switch a {
	case Ring:
		sent := all - own // what comes by on its way to its owner
		if whole {
			sent += all - chunks[(rank+1)%n].Len()
		}
		return 4 * sent
	case Doubling:
		core := 1 << (bits.Len(uint(n)) - 1)
		times := bits.Len(uint(core)) - 1
		if rank >= core {
			times = 1
		} else if rank+core < n {
			times++
		}
		return 4 * times * all
	}
	sent := all - own
	if whole {
		sent += (n - 1) * own
	}
	return 4 * sent
}

// StagingBytes returns the staging memory of such a sum, with pieces of the default size.
func (a Algorithm) StagingBytes(rank int, chunks []Range) int {
	longest := 0
	for _, c := range chunks {
		longest = max(longest, c.Len())
	}
	switch a {
	case Ring:
		return 4 * stagingDepth * min(pieceFloats(min(DefaultPieceBytes, ringPiece)), longest)
	case Doubling:
		return 4 * extent(chunks)
	}
	lanes := Assign(len(chunks), len(chunks))
	return newReduction(len(chunks), Tree{len(chunks)}.Root(), lanes).StagingBytes(rank, chunks, 0)
}

// PrepareAllReduceFast prepares the sum of buf over the members, in place.
func (g *Group) PrepareAllReduceFast(label string, a Algorithm, buf []float32) (*Collective, error) {
	return g.prepareFast(label, a, Chunks(len(buf), g.Size(), ChunkAlign), buf, true)
}

// PrepareReduceScatterFast prepares the sum of buf over the members, of which each gets its chunk in place; what the rest of
// buf holds afterwards is undefined.
func (g *Group) PrepareReduceScatterFast(label string, a Algorithm, chunks []Range, buf []float32) (*Collective, error) {
	return g.prepareFast(label, a, chunks, buf, false)
}

func (g *Group) prepareFast(label string, a Algorithm, chunks []Range, buf []float32, whole bool) (*Collective, error) {
	if err := checkChunks(chunks, g.Size(), len(buf)); err != nil {
		return nil, err
	}
	if a == Ring || a == Doubling {
		if err := g.Allows(a); err != nil {
			return nil, err
		}
	}
	call := Call{Op: OpReduceScatterTree, Element: Float32, Label: label, Bytes: 4 * int64(len(buf)), Detail: detail("fast", a, chunks)}
	if whole {
		call.Op = OpAllReduceTree
	}
	switch a = g.Choose(a, 4*len(buf)); a {
	case Ring:
		t := &ringReduce{chunks: chunks, buf: buf, whole: whole}
		return g.prepare(call, t.reduce).by(Ring.String()), nil
	case Doubling:
		t := &doublingReduce{buf: buf}
		return g.prepare(call, t.reduce).by(Doubling.String()), nil
	}
	red, err := NewReduction(g.Size(), Assign(g.Size(), g.Size()))
	if err != nil {
		return nil, err
	}
	if whole {
		return g.PrepareAllReduceTree(label, red, [][]float32{buf}, buf)
	}
	own := chunks[g.self]
	return g.PrepareReduceScatterTree(label, red, chunks, [][]float32{buf}, buf[own.Lo:own.Hi])
}

// ringReduce is the sum around a ring. In step s of N-1 a member sends chunk self-1-s to its right, what it has of it so far,
// and adds to chunk self-2-s what comes from its left; so chunk self is whole at the end. In as many further steps finished
// chunks go round. A piece of a chunk goes on as soon as it has come.
type ringReduce struct {
	r      *run
	chunks []Range
	buf    []float32
	whole  bool

	piece, count, width int // elements of a piece; pieces of the longest chunk; elements of a staged piece
	items               []ringItem
	at                  map[ringItem]int
	staging             []float32
	left, right         int
}

// ringItem is a piece that comes from the left in a step.
type ringItem struct{ step, piece int }

func (t *ringReduce) chunk(i int) Range {
	n := len(t.chunks)
	return t.chunks[((i%n)+n)%n]
}

// of returns the memory of a piece of a chunk.
func (t *ringReduce) of(chunk, p int) []float32 {
	c := pieceOf(t.chunk(chunk), p, t.piece)
	return t.buf[c.Lo:c.Hi]
}

func (t *ringReduce) reduce(r *run) error {
	g := r.g
	n, self := len(g.ranks), g.self
	if t.items == nil {
		t.r, t.left, t.right = r, (self+n-1)%n, (self+1)%n
		t.piece = pieceFloats(min(g.opt.PieceBytes, ringPiece))
		t.at = map[ringItem]int{}
		for _, c := range t.chunks {
			t.count = max(t.count, pieces(c.Len(), t.piece))
			t.width = max(t.width, min(t.piece, c.Len()))
		}
		for s := range n - 1 {
			for p := range pieces(t.chunk(self-2-s).Len(), t.piece) {
				t.at[ringItem{s, p}] = len(t.items)
				t.items = append(t.items, ringItem{s, p})
			}
		}
	}
	t.staging = g.stagingFor(stagingDepth * t.width)
	for i := range min(stagingDepth, len(t.items)) {
		t.offer(i)
	}
	for p := range pieces(t.chunk(self-1).Len(), t.piece) {
		t.pass(0, p)
	}
	for r.open > 0 {
		id, err := r.next()
		if err != nil {
			return err
		}
		switch _, kind, s, p := splitID(id); kind {
		case kindPartCame:
			t.came(ringItem{s, p})
		case kindPartSent:
			if t.whole { // the memory is free for the finished piece
				r.recv(t.left, resultIndex|(s*t.count+p), bytesOf(t.of(self-1-s, p)), makeID(kindDownCame, s, p))
			}
		case kindDownCame:
			if s < n-2 {
				t.finished(s+1, p)
			}
		}
	}
	return nil
}

// ringPiece bounds the pieces of a ring: the last of them takes that many steps to go round.
const ringPiece = 512 << 10

func (t *ringReduce) slot(i int) []float32 {
	it := t.items[i]
	at := i % stagingDepth * t.width
	return t.staging[at : at+len(t.of(t.r.g.self-2-it.step, it.piece))]
}

// offer makes room for piece i of what comes from the left.
func (t *ringReduce) offer(i int) {
	it := t.items[i]
	t.r.recv(t.left, it.step*t.count+it.piece, bytesOf(t.slot(i)), makeID(kindPartCame, it.step, it.piece))
}

// pass sends what there is so far of a piece in a step.
func (t *ringReduce) pass(step, p int) {
	t.r.send(t.right, step*t.count+p, bytesOf(t.of(t.r.g.self-1-step, p)), makeID(kindPartSent, step, p))
}

// finished sends a finished piece in a step.
func (t *ringReduce) finished(step, p int) {
	t.r.send(t.right, resultIndex|(step*t.count+p), bytesOf(t.of(t.r.g.self-step, p)), makeID(kindOther, step, p))
}

// came adds a piece and sends it on.
func (t *ringReduce) came(it ringItem) {
	i := t.at[it]
	mine := t.of(t.r.g.self-2-it.step, it.piece)
	vec.Add(mine, t.slot(i), mine)
	if i+stagingDepth < len(t.items) {
		t.offer(i + stagingDepth)
	}
	switch last := len(t.chunks) - 2; {
	case it.step < last:
		t.pass(it.step+1, it.piece)
	case t.whole:
		t.finished(0, it.piece)
	}
}

// doublingReduce is the sum by recursive doubling: members whose numbers differ in one bit exchange what they have, bit after
// bit. Members beyond the largest power of two hand theirs to another and get the result from it.
type doublingReduce struct{ buf []float32 }

func (t *doublingReduce) reduce(r *run) error {
	g := r.g
	self, core := g.self, 1<<(bits.Len(uint(len(g.ranks)))-1)
	came := g.stagingFor(len(t.buf))
	exchange := func(phase, m int, send, recv []float32) error {
		r.eachPiece(bytesOf(recv), func(p int, piece []byte) { r.recv(m, phase<<20|p, piece, makeID(kindOther, 0, p)) })
		r.eachPiece(bytesOf(send), func(p int, piece []byte) { r.send(m, phase<<20|p, piece, makeID(kindOther, 0, p)) })
		return r.drain()
	}
	const end = 1 << 10 // the phase of results
	if self >= core {
		if err := exchange(0, self-core, t.buf, nil); err != nil {
			return err
		}
		return exchange(end, self-core, nil, t.buf)
	}
	if self+core < len(g.ranks) {
		if err := exchange(0, self+core, nil, came); err != nil {
			return err
		}
		vec.Add(t.buf, t.buf, came)
	}
	for phase, bit := 1, 1; bit < core; phase, bit = phase+1, 2*bit {
		if err := exchange(phase, self^bit, t.buf, came); err != nil {
			return err
		}
		vec.Add(t.buf, t.buf, came)
	}
	if self+core < len(g.ranks) {
		return exchange(end, self+core, t.buf, nil)
	}
	return nil
}

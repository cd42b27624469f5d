package comm

import "context"

// Reductions of vectors of any element type.
//
// Floating-point contributions travel as they are and are joined in float32, in the canonical tree with one lane per member,
// and rounded once; a mean scales each of them before it is added, so that no sum passes through a type too small for it.
// Whole numbers are joined without overflow; what the type cannot hold becomes its nearest value. Their mean is exact, rounded
// towards zero. The maximum and minimum of a NaN are NaN.

// PrepareAllReduceOf prepares the reduction of a vector of any element type over the members, in place.
func (g *Group) PrepareAllReduceOf(label string, buf []byte, e Element, how Combine) (*Collective, error) {
	if err := checkCombined(buf, e, how); err != nil {
		return nil, err
	}
	red, err := NewReduction(g.Size(), Assign(g.Size(), g.Size()))
	if err != nil {
		return nil, err
	}
	if e == Float32 && how == CombineSum {
		x := viewOf[float32](buf)
		return g.PrepareAllReduceTree(label, red, [][]float32{x}, x)
	}
	call := Call{Op: OpAllReduceOf, Element: e, Combine: how, Label: label, Bytes: int64(len(buf))}
	return g.prepareCombined(call, red, Chunks(len(buf), g.Size(), 4*ChunkAlign), buf, true), nil
}

// AllReduceOf is PrepareAllReduceOf and Run.
func (g *Group) AllReduceOf(ctx context.Context, label string, buf []byte, e Element, how Combine) error {
	c, err := g.PrepareAllReduceOf(label, buf, e, how)
	return perform(ctx, OpAllReduceOf, label, c, err)
}

// PrepareReduceScatterOf prepares the reduction of a vector of any element type over the members, of which this member gets
// its chunk, chunks[rank], in place; the rest of buf is left as it was. Chunks are given in elements and may be uneven or
// empty.
func (g *Group) PrepareReduceScatterOf(label string, chunks []Range, buf []byte, e Element, how Combine) (*Collective, error) {
	if err := checkCombined(buf, e, how); err != nil {
		return nil, err
	}
	if err := checkChunks(chunks, g.Size(), len(buf)/e.Size()); err != nil {
		return nil, err
	}
	red, err := NewReduction(g.Size(), Assign(g.Size(), g.Size()))
	if err != nil {
		return nil, err
	}
	if e == Float32 && how == CombineSum {
		x, own := viewOf[float32](buf), chunks[g.self]
		return g.PrepareReduceScatterTree(label, red, chunks, [][]float32{x}, x[own.Lo:own.Hi])
	}
	call := Call{Op: OpReduceScatterOf, Element: e, Combine: how, Label: label, Bytes: int64(len(buf)), Detail: detail(chunks)}
	return g.prepareCombined(call, red, inBytes(chunks, e.Size()), buf, false), nil
}

// ReduceScatterOf is PrepareReduceScatterOf and Run.
func (g *Group) ReduceScatterOf(ctx context.Context, label string, chunks []Range, buf []byte, e Element, how Combine) error {
	c, err := g.PrepareReduceScatterOf(label, chunks, buf, e, how)
	return perform(ctx, OpReduceScatterOf, label, c, err)
}

// combined is one prepared reduction.
type combined struct {
	g      *Group
	join   join
	chunks []Range // in bytes
	buf    []byte
	whole  bool // everybody gets the whole result

	chunk, value, mine parts // of the exchanges
	theirs, also       [][]byte
}

// prepareCombined prepares the reduction of buf as call says.
func (g *Group) prepareCombined(call Call, red *Reduction, chunks []Range, buf []byte, whole bool) *Collective {
	k := &combined{g: g, chunks: chunks, buf: buf, whole: whole}
	k.join = join{red: red, element: call.Element, how: call.Combine, values: make([][]byte, g.Size())}
	own := k.of(buf, g.self)
	k.chunk = func(m int) []byte { return k.of(buf, m) }
	k.value = func(m int) []byte { return k.join.values[m] }
	k.mine = func(int) []byte { return own }
	c := g.prepareExchange(call, k.run)
	if g.shared != nil {
		k.share(c)
	}
	return c
}

func (k *combined) of(buf []byte, m int) []byte { return buf[k.chunks[m].Lo:k.chunks[m].Hi] }

// run exchanges contributions, joins those of this member's chunk, and exchanges results where everybody wants the whole.
func (k *combined) run(x exchange) error {
	own := k.mine(0)
	each := (len(own) + 7) &^ 7
	staging := bytesOf(k.g.stagingFor(len(k.g.peers) * each / 4))
	for i, m := range k.g.peers {
		k.join.values[m] = staging[i*each:][:len(own)]
	}
	k.join.values[k.g.self] = own
	if err := x(0, k.chunk, k.value); err != nil {
		return err
	}
	k.join.into(own, nil)
	if !k.whole {
		return nil
	}
	return x(1, k.mine, k.chunk)
}

// share says how the reduction is carried out in shared memory: small vectors in one round, in which everybody publishes its
// own and joins all, vectors that all members have mapped where they lie, and others as over messages.
func (k *combined) share(c *Collective) {
	x := k.g.shared
	if x.fitsOneRound(len(k.g.ranks), len(k.buf)) {
		c.brief = true
		c.local = sharedBody{publish: func(slot []byte) { copy(slot, k.buf) }, rest: k.oneRound}
		return
	}
	at, exchanged := x.placesOf(k.buf), c.local.rest
	c.local = sharedBody{places: at, rest: func(c *Collective) error {
		direct, err := c.run.inPlace(at)
		switch {
		case err != nil:
			return err
		case direct:
			return k.inPlace(&c.run)
		}
		return exchanged(c)
	}}
}

// oneRound joins what everybody has published.
func (k *combined) oneRound(c *Collective) error {
	if err := c.run.await(everyone(c.base)); err != nil {
		return err
	}
	g, x := k.g, k.g.shared
	part := Range{0, len(k.buf)}
	if !k.whole {
		part = k.chunks[g.self]
	}
	for m := range g.ranks {
		k.join.values[m] = k.buf[part.Lo:part.Hi]
		if m != g.self {
			k.join.values[m] = x.slot(m, c.base)[part.Lo:part.Hi]
		}
	}
	k.join.into(k.buf[part.Lo:part.Hi], nil)
	x.finish(c.base)
	if !k.whole {
		k.moved()
		return nil
	}
	for _, m := range g.peers {
		x.moved(g.ranks[m], len(k.buf), len(k.buf))
	}
	return nil
}

// inPlace joins vectors that all members have mapped.
func (k *combined) inPlace(r *run) error {
	g := k.g
	if k.theirs == nil {
		k.theirs, k.also = make([][]byte, len(g.ranks)), make([][]byte, 0, len(g.ranks))
	}
	longest := 0
	for m, c := range k.chunks {
		longest = max(longest, c.Len())
		if m == g.self {
			k.theirs[m] = k.buf
			continue
		}
		v, err := r.vector(m, 0, len(k.buf), 1)
		if err != nil {
			return err
		}
		k.theirs[m] = v
	}
	if err := r.stretches(k.chunks[g.self].Len(), longest, k.joinInPlace); err != nil {
		return err
	}
	k.moved()
	return nil
}

// joinInPlace joins the bytes [lo, hi) of this member's chunk, on everybody's behalf if everybody wants the result.
func (k *combined) joinInPlace(lo, hi int) {
	own := k.chunks[k.g.self]
	k.also = k.also[:0]
	for m, v := range k.theirs {
		k.join.values[m] = v[own.Lo+lo : own.Lo+hi]
		if k.whole && m != k.g.self {
			k.also = append(k.also, k.join.values[m])
		}
	}
	k.join.into(k.join.values[k.g.self], k.also)
}

// moved counts what the members have read of each other's chunks, or had written for them.
func (k *combined) moved() {
	mine := k.chunks[k.g.self].Len()
	for _, m := range k.g.peers {
		sent, received := k.chunks[m].Len(), mine
		if k.whole {
			sent, received = sent+mine, received+k.chunks[m].Len()
		}
		k.g.shared.moved(k.g.ranks[m], sent, received)
	}
}

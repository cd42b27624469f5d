package cpu

import "starling/sdk/vec"

// stepTile is the keys, or queries, that a product of tiles sums over at a time: the unit in which their operands are packed.
const stepTile = 64

// tiledPlace is one thread's products of tiles of bfloat16.
type tiledPlace struct {
	scores, grads  vec.GemmBF16Args // queries · keys and gradients · values
	out            vec.GemmBF16Args // probabilities · values, and with gradients of scores for them · keys
	dv, dk         vec.GemmBF16Args // probabilities · gradients and gradients of scores · queries, over queries
	packed, strips int              // elements of packed keys of a tile, and of a strip of stepTile rows
	need           int              // of scratch memory
}

func (s *halfAttn) tiled() tiledPlace {
	p := tiledPlace{
		scores: vec.GemmBF16Args{M: queryTile, N: keyTile, K: s.D, LDA: s.queryStride, LDB: s.keyStride, TransB: true, LDC: scoreStride},
		out:    vec.GemmBF16Args{M: queryTile, N: s.D, K: stepTile, LDA: scoreStride, LDB: s.keyStride, LDC: s.D, Accumulate: true},
		dv:     vec.GemmBF16Args{M: keyTile, N: s.D, K: stepTile, TransA: true, LDA: scoreStride, LDB: s.outStride, LDC: s.D, Accumulate: true},
	}
	p.grads, p.dk = p.scores, p.dv
	p.grads.LDA, p.dk.LDB = s.outStride, s.queryStride
	p.packed, p.strips = vec.GemmBF16Packed(&p.scores), vec.GemmBF16Packed(&p.out)
	p.need = max(vec.GemmBF16Scratch(&p.scores), vec.GemmBF16Scratch(&p.out), vec.GemmBF16Scratch(&p.dv))
	return p
}

// packRows packs rows of x as the right operand of a sum over the width of a head.
func packRows(g *vec.GemmBF16Args, tile []float32, x []uint16, rows int) {
	g.M, g.N, g.B, g.Packed = 0, rows, x, tile // M: a check of the other operands would say nothing
	vec.GemmBF16Pack(g, 0, g.K, 0, rows)
}

// packStrip packs rows of x as the right operand of a sum over those rows.
func packStrip(g *vec.GemmBF16Args, tile []float32, x []uint16, rows int) {
	m := g.M
	g.M, g.K, g.B, g.Packed = 0, rows, x, tile
	vec.GemmBF16Pack(g, 0, rows, 0, g.N)
	g.M = m
}

// sum multiplies g's left operand a, m rows by k, by a packed strip into c.
func sum(g *vec.GemmBF16Args, a, b []uint16, strip, c []float32, m, k int, scratch []float32) {
	g.M, g.K, g.A, g.B, g.Packed, g.C = m, k, a, b, strip, c
	vec.GemmBF16(g, 0, m, 0, g.N, scratch)
}

func (d *Device) tiledAttention(s *halfAttn) (func(), error) {
	p := s.tiled()
	tiles, strips := blocks(s.S, keyTile), blocks(s.S, stepTile)
	bytes := padded(4*p.need) + padded(4*queryTile*scoreStride) + padded(2*queryTile*scoreStride) + padded(4*queryTile*s.D) +
		4*padded(4*queryTile) + padded(4*tiles*p.packed) + padded(4*strips*p.strips)
	if err := d.reserve(bytes, 0); err != nil {
		return nil, err
	}
	places := make([]tiledPlace, d.pool.threads)
	for i := range places {
		places[i] = p
	}
	return d.parallel(s.batch*s.H, func(thread, task int) {
		own := d.ownScratch(thread)
		s.tiledHead(&places[thread], &own, task/s.H, task%s.H)
	}), nil
}

// tiledHead computes the results of head h of batch b.
func (s *halfAttn) tiledHead(p *tiledPlace, own *carve, b, h int) {
	scratch, scores, weights, acc := own.floats(p.need), own.floats(queryTile*scoreStride), own.words(queryTile*scoreStride), own.floats(queryTile*s.D)
	var rows [4][]float32
	for i := range rows {
		rows[i] = own.floats(queryTile)
	}
	keys, values := own.floats(blocks(s.S, keyTile)*p.packed), own.floats(blocks(s.S, stepTile)*p.strips)
	g, ready := h/(s.H/s.G), 0 // tiles of keys that are packed
	for tile := range s.queryTiles {
		t0, t1 := span(tile, queryTile, s.T)
		n, last := t1-t0, max(1, s.limit(t1-1)) // keys from here on are seen by none
		for ; ready*keyTile < last; ready++ {
			s0, s1 := span(ready, keyTile, s.S)
			packRows(&p.scores, keys[ready*p.packed:(ready+1)*p.packed], s.k[s.key(b, s0, g):], s1-s0)
			for k := s0; k < s1; k += stepTile {
				packStrip(&p.out, values[k/stepTile*p.strips:][:p.strips], s.v[s.key(b, k, g):], min(stepTile, s1-k))
			}
		}
		vec.Fill(rows[0], negInf)
		clear(rows[1])
		clear(acc)
		query := s.q[s.query(b, t0, h):]
		for s0 := 0; s0 < last; s0 += keyTile {
			width := min(keyTile, last-s0)
			m := &p.scores
			m.M, m.N, m.A, m.B, m.C, m.Packed = n, min(keyTile, s.S-s0), query, s.k[s.key(b, s0, g):], scores, keys[s0/keyTile*p.packed:][:p.packed]
			vec.GemmBF16(m, 0, n, 0, width, scratch)
			s.softmaxTile(scores, rows, n, b, t0, s0, width)
			whole := min(blocks(width, stepTile)*stepTile, s.S-s0) // of the strips that are packed
			for i := range n {
				clear(scores[i*scoreStride+width : i*scoreStride+whole])
				if by := rows[3][i]; s0 > 0 && by != 1 {
					vec.Scale(acc[i*s.D:][:s.D], acc[i*s.D:][:s.D], by)
				}
			}
			vec.F32ToBF16(weights[:n*scoreStride], scores[:n*scoreStride]) // in one go, room between rows included
			for k := 0; k < whole; k += stepTile {
				at := s0 + k
				sum(&p.out, weights[k:], s.v[s.key(b, at, g):], values[at/stepTile*p.strips:][:p.strips], acc, n, min(stepTile, whole-k), scratch)
			}
		}
		top, total, out := rows[0][:n], rows[1][:n], s.lse[(b*s.H+h)*s.T+t0:][:n]
		vec.Log(out, total)
		vec.AddTo(out, top)
		for i := range n {
			row := acc[i*s.D:][:s.D]
			if total[i] == 0 {
				clear(row)
				out[i] = negInf
			} else {
				vec.Scale(row, row, 1/total[i])
			}
		}
		roundRows(s.o[s.out(b, t0, h):], acc, n, s.D, s.outStride)
	}
}

func (d *Device) tiledAttentionGrad(s *halfGrad) (func(), error) {
	p := s.tiled()
	bytes := padded(4*p.need) + 2*padded(4*queryTile*scoreStride) + 2*padded(2*queryTile*scoreStride) + padded(4*s.T) + 2*padded(4*s.D) +
		padded(4*s.T*s.D) + 2*padded(4*s.S*s.D) + 2*padded(4*p.packed) + padded(4*keyTile/stepTile*p.strips) + 2*padded(4*s.queryTiles*p.strips)
	if err := d.reserve(bytes, 0); err != nil {
		return nil, err
	}
	places := make([]tiledPlace, d.pool.threads)
	for i := range places {
		places[i] = p
	}
	return d.parallel(s.batch*s.G, func(thread, task int) {
		own := d.ownScratch(thread)
		s.tiledHeads(&places[thread], &own, task/s.G, task%s.G)
	}), nil
}

// tiledHeads computes the gradients of key head g of batch b and of the query heads that read it.
func (s *halfGrad) tiledHeads(p *tiledPlace, own *carve, b, g int) {
	scratch := own.floats(p.need)
	scores, grads := own.floats(queryTile*scoreStride), own.floats(queryTile*scoreStride)
	weights, ds := own.words(queryTile*scoreStride), own.words(queryTile*scoreStride)
	delta, row, other := own.floats(s.T), own.floats(s.D), own.floats(s.D)
	dq, dk, dv := own.floats(s.T*s.D), own.floats(s.S*s.D), own.floats(s.S*s.D)
	keys, values, keyStrips := own.floats(p.packed), own.floats(p.packed), own.floats(keyTile/stepTile*p.strips)
	queries, dys := own.floats(s.queryTiles*p.strips), own.floats(s.queryTiles*p.strips)
	clear(dk)
	clear(dv)
	share := s.H / s.G
	for h := g * share; h < (g+1)*share; h++ {
		clear(dq)
		for t := range s.T {
			at := s.out(b, t, h)
			vec.BF16ToF32(row, s.dy[at:at+s.D])
			vec.BF16ToF32(other, s.o[at:at+s.D])
			delta[t] = vec.Dot(row, other)
		}
		for tile := range s.queryTiles {
			t0, t1 := span(tile, queryTile, s.T)
			packStrip(&p.dk, queries[tile*p.strips:][:p.strips], s.q[s.query(b, t0, h):], t1-t0)
			packStrip(&p.dv, dys[tile*p.strips:][:p.strips], s.dy[s.out(b, t0, h):], t1-t0)
		}
		lse := s.lse[(b*s.H+h)*s.T:][:s.T]
		for s0 := 0; s0 < s.limit(s.T-1); s0 += keyTile {
			tall, key := min(keyTile, s.S-s0), s.key(b, s0, g)
			packRows(&p.scores, keys, s.k[key:], tall)
			packRows(&p.grads, values, s.v[key:], tall)
			for k := 0; k < tall; k += stepTile {
				packStrip(&p.out, keyStrips[k/stepTile*p.strips:][:p.strips], s.k[s.key(b, s0+k, g):], min(stepTile, tall-k))
			}
			for tile := range s.queryTiles {
				t0, t1 := span(tile, queryTile, s.T)
				width, n := min(tall, s.limit(t1-1)-s0), t1-t0
				if width <= 0 {
					continue
				}
				query, out := s.query(b, t0, h), s.out(b, t0, h)
				for _, m := range []*vec.GemmBF16Args{&p.scores, &p.grads} {
					m.M, m.N = n, tall
				}
				p.scores.A, p.scores.B, p.scores.C, p.scores.Packed = s.q[query:], s.k[key:], scores, keys
				p.grads.A, p.grads.B, p.grads.C, p.grads.Packed = s.dy[out:], s.v[key:], grads, values
				vec.GemmBF16(&p.scores, 0, n, 0, width, scratch)
				vec.GemmBF16(&p.grads, 0, n, 0, width, scratch)
				s.gradTile(scores, grads, delta, lse, n, b, t0, s0, width)
				whole := min(blocks(width, stepTile)*stepTile, tall)
				for i := range n {
					clear(grads[i*scoreStride+width : i*scoreStride+whole])
				}
				vec.F32ToBF16(weights[:n*scoreStride], scores[:n*scoreStride])
				vec.F32ToBF16(ds[:n*scoreStride], grads[:n*scoreStride])
				sum(&p.dv, weights, s.dy[out:], dys[tile*p.strips:][:p.strips], dv[s0*s.D:], width, n, scratch)
				sum(&p.dk, ds, s.q[query:], queries[tile*p.strips:][:p.strips], dk[s0*s.D:], width, n, scratch)
				for k := 0; k < whole; k += stepTile {
					sum(&p.out, ds[k:], s.k[s.key(b, s0+k, g):], keyStrips[k/stepTile*p.strips:][:p.strips], dq[t0*s.D:], n, min(stepTile, whole-k), scratch)
				}
			}
		}
		roundRows(s.dq[s.query(b, 0, h):], dq, s.T, s.D, s.queryStride)
	}
	roundRows(s.dk[s.key(b, 0, g):], dk, s.S, s.D, s.keyStride)
	roundRows(s.dv[s.key(b, 0, g):], dv, s.S, s.D, s.keyStride)
}

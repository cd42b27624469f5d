package cpu

import (
	"math"

	"starling/core/device"
	"starling/core/graph"
	"starling/sdk/vec"
)

// Attention by tiles of queries and keys (Dao et al., "FlashAttention", 2022): scores exist for one tile at a time, and the
// softmax of a query is renormalised as further keys come.
var attentionKernels = []kernel{
	{"attention", "f32 f32 f32", attention},
	{"attention", "f32 f32 f32 i32 i32", attention},
	{"attention_grad", "f32 f32 f32 f32 f32 f32", attentionGrad},
	{"attention_grad", "f32 f32 f32 f32 f32 f32 i32 i32", attentionGrad},
	{"attention_joint", "f32", attentionJoint},
	{"attention_joint_grad", "f32 f32 f32 f32", attentionJointGrad},
}

// The extent of a tile; constants of the arithmetic, since they set where sums are renormalised.
const (
	queryTile = 64
	keyTile   = 128
)

// scoreStride is the elements from one row of a tile of scores to the next: not a power of two, which would put a column
// of them into few sets of the first-level cache.
const scoreStride = keyTile + 16

var negInf = float32(math.Inf(-1))

// attn is what both directions know: shapes, operands and who sees whom.
type attn struct {
	graph.AttentionAttrs
	scale                  float32
	batch, T, S, H, G, D   int
	q, k, v                []float32
	segQ, segK             []int32 // nil without segments
	queryTiles             int
	queryStride, keyStride int // elements from one row to the next
	outStride              int // of results, and of gradients by them
}

func newAttn(a graph.AttentionAttrs, q, k, v device.Tensor, segments []device.Tensor) *attn {
	s := attnOf(a, q, k, segments)
	s.q, s.k, s.v = f32(q), f32(k), f32(v)
	return s
}

// attnOf is newAttn without the operands.
func attnOf(a graph.AttentionAttrs, q, k device.Tensor, segments []device.Tensor) *attn {
	s := &attn{
		AttentionAttrs: a, scale: float32(a.Scale),
		batch: q.Shape[0], T: q.Shape[1], S: k.Shape[1], H: q.Shape[2], G: k.Shape[2], D: q.Shape[3],
	}
	s.queryTiles = blocks(s.T, queryTile)
	s.queryStride, s.keyStride, s.outStride = s.H*s.D, s.G*s.D, s.H*s.D
	if len(segments) == 2 {
		s.segQ, s.segK = i32(segments[0]), i32(segments[1])
	}
	return s
}

// newJointAttn is newAttn of operands side by side in x.
func newJointAttn(a graph.JointAttentionAttrs, x device.Tensor) *attn {
	s := jointAttnOf(a, x)
	s.q, s.k, s.v = thirds(f32(x), lastOf(x)/3)
	return s
}

// jointAttnOf is newJointAttn without the operands.
func jointAttnOf(a graph.JointAttentionAttrs, x device.Tensor) *attn {
	width := lastOf(x) / 3
	s := &attn{
		AttentionAttrs: a.AttentionAttrs, scale: float32(a.Scale),
		batch: x.Shape[0], T: x.Shape[1], S: x.Shape[1], H: a.Heads, G: a.Heads, D: width / a.Heads,
		queryStride: 3 * width, keyStride: 3 * width, outStride: width,
	}
	s.queryTiles = blocks(s.T, queryTile)
	return s
}

// thirds is where queries, keys and values side by side begin.
func thirds[T any](x []T, width int) (q, k, v []T) { return x, x[width:], x[2*width:] }

// query, key and out return where the vector of a row and a head begins.
func (s *attn) query(b, t, h int) int { return (b*s.T+t)*s.queryStride + h*s.D }
func (s *attn) key(b, t, g int) int   { return (b*s.S+t)*s.keyStride + g*s.D }
func (s *attn) out(b, t, h int) int   { return (b*s.T+t)*s.outStride + h*s.D }

// limit is the number of keys, from the first, that query t may see.
func (s *attn) limit(t int) int {
	if !s.Causal {
		return s.S
	}
	return min(max(t+1+s.S-s.T, 0), s.S)
}

// scratch is what Gemm needs for any product of a tile.
func (s *attn) scratch() int {
	qk := vec.GemmArgs{M: queryTile, N: keyTile, K: s.D}
	pv := vec.GemmArgs{M: keyTile, N: s.D, K: keyTile}
	return max(vec.GemmScratch(&qk), vec.GemmScratch(&pv))
}

// packedTile is the elements of one tile of keys, or of values, as the right operand of a product over D.
func (s *attn) packedTile() int {
	return vec.GemmPacked(&vec.GemmArgs{N: keyTile, K: s.D})
}

// pack fills the memory of a tile: g's right operand is its rows from the one at offset key on.
func (s *attn) pack(g *vec.GemmArgs, tile, x []float32, key, width int) {
	g.N, g.B, g.Packed = width, x[key:], tile
	g.M = 0 // a check of the other operands would say nothing
	vec.GemmPack(g, 0, s.D, 0, width)
}

// seen is the number of keys, from s0 on, that query t may see among the next width.
func (s *attn) seen(t, s0, width int) int { return min(max(s.limit(t)-s0, 0), width) }

// segregate sets the scores of query t and keys of other segments, from s0 on.
func (s *attn) segregate(row []float32, b, t, s0 int, with float32) {
	if s.segQ == nil {
		return
	}
	own, keys := s.segQ[b*s.T+t], s.segK[b*s.S+s0:]
	for j := range row {
		if keys[j] != own {
			row[j] = with
		}
	}
}

// forward is one thread's place for the forward pass.
type forward struct {
	qk, pv vec.GemmArgs
}

func (s *attn) forward() forward {
	return forward{
		qk: vec.GemmArgs{K: s.D, LDA: s.queryStride, LDB: s.keyStride, TransB: true, LDC: scoreStride},
		pv: vec.GemmArgs{N: s.D, LDA: scoreStride, LDB: s.keyStride, LDC: s.outStride},
	}
}

// forwardBytes is the memory that forwardTiles takes.
func (s *attn) forwardBytes() int {
	return padded(4*s.scratch()) + padded(4*queryTile*scoreStride) + 4*padded(4*queryTile) + padded(4*blocks(s.S, keyTile)*s.packedTile())
}

// manyHeads is the number of heads, over all of a batch, from which a task takes a head whole and packs its keys once;
// below it tasks are tiles of queries.
const manyHeads = 16

func attention(d *Device, c device.Call) (func(), error) {
	a, err := attrs[graph.AttentionAttrs](c)
	if err != nil {
		return nil, err
	}
	return d.attention(newAttn(a, c.In[0], c.In[1], c.In[2], c.In[3:]), f32(c.Out[0]), f32(c.Out[1]))
}

func attentionJoint(d *Device, c device.Call) (func(), error) {
	a, err := attrs[graph.JointAttentionAttrs](c)
	if err != nil {
		return nil, err
	}
	return d.attention(newJointAttn(a, c.In[0]), f32(c.Out[0]), f32(c.Out[1]))
}

func (d *Device) attention(s *attn, o, lse []float32) (func(), error) {
	need := s.scratch()
	if err := d.reserve(s.forwardBytes(), 0); err != nil {
		return nil, err
	}
	threads := make([]forward, d.pool.threads)
	for i := range threads {
		threads[i] = s.forward()
	}
	if s.batch*s.H >= manyHeads {
		return d.parallel(s.batch*s.H, func(thread, task int) {
			own := d.ownScratch(thread)
			s.forwardTiles(&threads[thread], &own, need, o, lse, task/s.H, task%s.H, 0, s.queryTiles)
		}), nil
	}
	return d.parallel(s.batch*s.H*s.queryTiles, func(thread, task int) {
		// Late tiles see most keys: they start first, so that threads end together.
		tile := s.queryTiles - 1 - task%s.queryTiles
		head := task / s.queryTiles
		own := d.ownScratch(thread)
		s.forwardTiles(&threads[thread], &own, need, o, lse, head/s.H, head%s.H, tile, tile+1)
	}), nil
}

// forwardTiles computes the results of some tiles of queries of one head.
func (s *attn) forwardTiles(f *forward, own *carve, need int, o, lse []float32, b, h, first, end int) {
	scratch, scores := own.floats(need), own.floats(queryTile*scoreStride)
	var rows [4][]float32
	for i := range rows {
		rows[i] = own.floats(queryTile)
	}
	g, size := h/(s.H/s.G), s.packedTile()
	packed := own.floats(blocks(s.S, keyTile) * size)
	ready := 0 // tiles of keys that are packed
	for tile := first; tile < end; tile++ {
		t0, t1 := span(tile, queryTile, s.T)
		last := max(1, s.limit(t1-1)) // keys from here on are seen by none
		for ; ready*keyTile < last; ready++ {
			s0, s1 := span(ready, keyTile, s.S)
			s.pack(&f.qk, packed[ready*size:(ready+1)*size], s.k, s.key(b, s0, g), s1-s0)
		}
		s.forwardTile(f, scratch, scores, packed, rows, o, lse, b, h, t0, t1, last)
	}
}

// forwardTile computes the results of queries t0 to t1 of one head.
func (s *attn) forwardTile(f *forward, scratch, scores, packed []float32, rows [4][]float32, o, lse []float32, b, h, t0, t1, last int) {
	n, g, size := t1-t0, h/(s.H/s.G), s.packedTile()
	top, total, decay := rows[0][:n], rows[1][:n], rows[3][:n]
	vec.Fill(top, negInf)
	clear(total)
	query, at := s.query(b, t0, h), s.out(b, t0, h)
	for s0 := 0; s0 < last; s0 += keyTile {
		width := min(keyTile, last-s0)
		key := s.key(b, s0, g)
		f.qk.M, f.qk.N, f.qk.A, f.qk.B, f.qk.C = n, min(keyTile, s.S-s0), s.q[query:], s.k[key:], scores
		f.qk.Packed = packed[s0/keyTile*size:][:size]
		vec.Gemm(&f.qk, 0, n, 0, width, scratch)
		s.softmaxTile(scores, rows, n, b, t0, s0, width)
		if s0 > 0 {
			for i, by := range decay {
				if by != 1 {
					row := o[at+i*s.outStride:][:s.D]
					vec.Scale(row, row, by)
				}
			}
		}
		f.pv.M, f.pv.K, f.pv.A, f.pv.B, f.pv.C, f.pv.Accumulate = n, width, scores, s.v[key:], o[at:], s0 > 0
		vec.Gemm(&f.pv, 0, n, 0, s.D, scratch)
	}
	out := lse[(b*s.H+h)*s.T+t0:][:n]
	vec.Log(out, total)
	vec.AddTo(out, top)
	for i := range n {
		row := o[at+i*s.outStride:][:s.D]
		if total[i] == 0 {
			clear(row)
			out[i] = negInf
			continue
		}
		vec.Scale(row, row, 1/total[i])
	}
}

// softmaxTile turns the scores of n queries from t0 on and width keys from s0 on into exponentials of their distance to the largest score
// so far. rows are, for each query, that score, the sum of exponentials, room, and by what what was summed before must be multiplied.
func (s *attn) softmaxTile(scores []float32, rows [4][]float32, n, b, t0, s0, width int) {
	top, total, fresh, decay := rows[0][:n], rows[1][:n], rows[2][:n], rows[3][:n]
	scale := s.scale
	if !(scale > 0) { // then the largest score need not give the largest exponent
		vec.Scale(scores, scores, scale)
		scale = 1
	}
	for i := range n {
		row := scores[i*scoreStride:][:s.seen(t0+i, s0, width)]
		s.segregate(row, b, t0+i, s0, negInf)
		fresh[i] = max(top[i], vec.MaxOf(row)*scale)
		decay[i] = 0
		if top[i] != fresh[i] {
			decay[i] = top[i] - fresh[i]
		}
	}
	vec.Exp(decay, decay)
	for i := range n {
		row := scores[i*scoreStride:][:width]
		seen := s.seen(t0+i, s0, width)
		clear(row[seen:])
		sum := float32(0)
		if fresh[i] != negInf {
			sum = vec.ExpShift(row[:seen], row[:seen], scale, fresh[i])
		} else {
			clear(row)
		}
		total[i] = float32(total[i]*decay[i]) + sum
	}
	copy(top, fresh)
}

// gradTile turns products of queries and keys, and of gradients and values, into probabilities and the gradients of scores.
func (s *attn) gradTile(p, ds, delta, lse []float32, n, b, t0, s0, width int) {
	for i := range n {
		row, d := p[i*scoreStride:][:width], ds[i*scoreStride:][:width]
		seen := s.seen(t0+i, s0, width)
		clear(row[seen:])
		clear(d[seen:])
		row, d = row[:seen], d[:seen]
		vec.AttentionGrad(row, d, s.scale, lse[t0+i], delta[t0+i])
		s.segregate(row, b, t0+i, s0, 0)
		s.segregate(d, b, t0+i, s0, 0)
	}
}

// backward is one thread's place for the backward pass.
type backward struct {
	qk, dp, dv, dk, dq vec.GemmArgs
}

// attentionGrad gives a task one head of keys with the heads of queries that read it: keys' gradients are then summed in a
// fixed order without partial results.
func attentionGrad(d *Device, c device.Call) (func(), error) {
	a, err := attrs[graph.AttentionAttrs](c)
	if err != nil {
		return nil, err
	}
	return d.attentionGrad(&attnGrad{
		attn: newAttn(a, c.In[1], c.In[2], c.In[3], c.In[6:]), dy: f32(c.In[0]), o: f32(c.In[4]), lse: f32(c.In[5]),
		dq: f32(c.Out[0]), dk: f32(c.Out[1]), dv: f32(c.Out[2]),
	})
}

func attentionJointGrad(d *Device, c device.Call) (func(), error) {
	a, err := attrs[graph.JointAttentionAttrs](c)
	if err != nil {
		return nil, err
	}
	gr := &attnGrad{attn: newJointAttn(a, c.In[1]), dy: f32(c.In[0]), o: f32(c.In[2]), lse: f32(c.In[3])}
	gr.dq, gr.dk, gr.dv = thirds(f32(c.Out[0]), lastOf(c.In[1])/3)
	return d.attentionGrad(gr)
}

func (d *Device) attentionGrad(gr *attnGrad) (func(), error) {
	s := gr.attn
	gr.need = s.scratch()
	if err := d.reserve(s.backwardBytes(), 0); err != nil {
		return nil, err
	}
	threads := make([]backward, d.pool.threads)
	for i := range threads {
		threads[i] = s.backward()
	}
	return d.parallel(s.batch*s.G, func(thread, task int) {
		own := d.ownScratch(thread)
		gr.head(&threads[thread], &own, task/s.G, task%s.G)
	}), nil
}

func (s *attn) backward() backward {
	w := backward{
		qk: vec.GemmArgs{K: s.D, LDA: s.queryStride, LDB: s.keyStride, TransB: true, LDC: scoreStride},
		dv: vec.GemmArgs{N: s.D, TransA: true, LDA: scoreStride, LDB: s.outStride, LDC: s.keyStride},
		dq: vec.GemmArgs{N: s.D, LDA: scoreStride, LDB: s.keyStride, LDC: s.queryStride},
	}
	w.dp, w.dk = w.qk, w.dv
	w.dp.LDA, w.dk.LDB = s.outStride, s.queryStride
	return w
}

// backwardBytes is the memory that head takes.
func (s *attn) backwardBytes() int {
	return padded(4*s.scratch()) + 2*padded(4*queryTile*scoreStride) + padded(4*s.T) + 2*padded(4*s.packedTile())
}

// attnGrad adds to attn what the backward pass reads and writes.
type attnGrad struct {
	*attn
	dy, o, lse, dq, dk, dv []float32
	need                   int
}

// head computes the gradients of key head g of batch b and of the query heads that read it.
func (s *attnGrad) head(w *backward, own *carve, b, g int) {
	scratch := own.floats(s.need)
	scores, grads := own.floats(queryTile*scoreStride), own.floats(queryTile*scoreStride)
	delta, keys, values := own.floats(s.T), own.floats(s.packedTile()), own.floats(s.packedTile())
	share := s.H / s.G
	for h := g * share; h < (g+1)*share; h++ {
		lse := s.lse[(b*s.H+h)*s.T:][:s.T]
		for t := range s.T {
			at := s.out(b, t, h)
			delta[t] = vec.Dot(s.dy[at:at+s.D], s.o[at:at+s.D])
		}
		for s0 := 0; s0 < s.S; s0 += keyTile {
			width := min(keyTile, s.S-s0)
			key := s.key(b, s0, g)
			begun := h > g*share // the keys' gradients hold the heads before this one
			if s.limit(s.T-1) > s0 {
				s.pack(&w.qk, keys, s.k, key, width)
				s.pack(&w.dp, values, s.v, key, width)
			}
			for tile := range s.queryTiles {
				t0, t1 := span(tile, queryTile, s.T)
				n, query := t1-t0, s.query(b, t0, h)
				seen := min(width, s.limit(t1-1)-s0)
				if seen <= 0 {
					if s0 == 0 {
						s.clearRows(s.dq, query, n, s.queryStride)
					}
					continue
				}
				if !begun && seen < width { // the rest of the keys gets nothing here
					s.clearRows(s.dk, key+seen*s.keyStride, width-seen, s.keyStride)
					s.clearRows(s.dv, key+seen*s.keyStride, width-seen, s.keyStride)
				}
				s.tile(w, scratch, scores, grads, delta, lse, b, t0, t1, s0, seen, query, s.out(b, t0, h), key, begun)
				begun = true
			}
			if !begun {
				s.clearRows(s.dk, key, width, s.keyStride)
				s.clearRows(s.dv, key, width, s.keyStride)
			}
		}
	}
}

// tile adds what the queries t0 to t1 and the width keys from s0 on contribute.
func (s *attnGrad) tile(w *backward, scratch, p, ds, delta, lse []float32, b, t0, t1, s0, width, query, at, key int, begun bool) {
	n := t1 - t0
	w.qk.M, w.qk.A, w.qk.C = n, s.q[query:], p
	vec.Gemm(&w.qk, 0, n, 0, width, scratch)
	w.dp.M, w.dp.A, w.dp.C = n, s.dy[at:], ds
	vec.Gemm(&w.dp, 0, n, 0, width, scratch)
	s.gradTile(p, ds, delta, lse, n, b, t0, s0, width)
	w.dv.M, w.dv.K, w.dv.A, w.dv.B, w.dv.C, w.dv.Accumulate = width, n, p, s.dy[at:], s.dv[key:], begun
	vec.Gemm(&w.dv, 0, width, 0, s.D, scratch)
	w.dk.M, w.dk.K, w.dk.A, w.dk.B, w.dk.C, w.dk.Accumulate = width, n, ds, s.q[query:], s.dk[key:], begun
	vec.Gemm(&w.dk, 0, width, 0, s.D, scratch)
	w.dq.M, w.dq.K, w.dq.A, w.dq.B, w.dq.C, w.dq.Accumulate = n, width, ds, s.k[key:], s.dq[query:], s0 > 0
	vec.Gemm(&w.dq, 0, n, 0, s.D, scratch)
}

// clearRows zeroes one head's vectors in so many rows.
func (s *attn) clearRows(x []float32, at, rows, stride int) {
	for range rows {
		clear(x[at : at+s.D])
		at += stride
	}
}

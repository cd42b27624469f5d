package cpu

import (
	"starling/core/device"
	"starling/core/graph"
	"starling/sdk/vec"
)

// Attention on bfloat16 operands. Where the processor multiplies pairs of them (vec.BF16Class), scores, probabilities and gradients are
// products of bfloat16 summed in float32: probabilities and the gradients of scores are rounded for the product that reads them, what is summed
// over tiles is not. Elsewhere a head is widened and its arithmetic is that of float32. Both round each result once.
var halfAttentionKernels = []kernel{
	{"attention", "bf16 bf16 bf16", halfAttention},
	{"attention", "bf16 bf16 bf16 i32 i32", halfAttention},
	{"attention_grad", "bf16 bf16 bf16 bf16 bf16 f32", halfAttentionGrad},
	{"attention_grad", "bf16 bf16 bf16 bf16 bf16 f32 i32 i32", halfAttentionGrad},
	{"attention_joint", "bf16", halfAttentionJoint},
	{"attention_joint_grad", "bf16 bf16 bf16 f32", halfAttentionJointGrad},
}

// halfAttn is attention on bfloat16 operands; those of attn are not set.
type halfAttn struct {
	*attn
	q, k, v, o []uint16
	lse        []float32
}

// halfGrad adds what the backward pass reads and writes.
type halfGrad struct {
	halfAttn
	dy, dq, dk, dv []uint16
}

func halfAttention(d *Device, c device.Call) (func(), error) {
	a, err := attrs[graph.AttentionAttrs](c)
	if err != nil {
		return nil, err
	}
	return d.halfAttention(&halfAttn{attnOf(a, c.In[0], c.In[1], c.In[3:]), bf16(c.In[0]), bf16(c.In[1]), bf16(c.In[2]), bf16(c.Out[0]), f32(c.Out[1])})
}

func halfAttentionJoint(d *Device, c device.Call) (func(), error) {
	a, err := attrs[graph.JointAttentionAttrs](c)
	if err != nil {
		return nil, err
	}
	s := &halfAttn{attn: jointAttnOf(a, c.In[0]), o: bf16(c.Out[0]), lse: f32(c.Out[1])}
	s.q, s.k, s.v = thirds(bf16(c.In[0]), lastOf(c.In[0])/3)
	return d.halfAttention(s)
}

func halfAttentionGrad(d *Device, c device.Call) (func(), error) {
	a, err := attrs[graph.AttentionAttrs](c)
	if err != nil {
		return nil, err
	}
	s := &halfGrad{halfAttn: halfAttn{attnOf(a, c.In[1], c.In[2], c.In[6:]), bf16(c.In[1]), bf16(c.In[2]), bf16(c.In[3]), bf16(c.In[4]), f32(c.In[5])},
		dy: bf16(c.In[0]), dq: bf16(c.Out[0]), dk: bf16(c.Out[1]), dv: bf16(c.Out[2])}
	return d.halfAttentionGrad(s)
}

func halfAttentionJointGrad(d *Device, c device.Call) (func(), error) {
	a, err := attrs[graph.JointAttentionAttrs](c)
	if err != nil {
		return nil, err
	}
	width := lastOf(c.In[1]) / 3
	s := &halfGrad{halfAttn: halfAttn{attn: jointAttnOf(a, c.In[1]), o: bf16(c.In[2]), lse: f32(c.In[3])}, dy: bf16(c.In[0])}
	s.q, s.k, s.v = thirds(bf16(c.In[1]), width)
	s.dq, s.dk, s.dv = thirds(bf16(c.Out[0]), width)
	return d.halfAttentionGrad(s)
}

// halfAttention gives a task one head of queries.
func (d *Device) halfAttention(s *halfAttn) (func(), error) {
	if vec.BF16Class() != vec.BF16FMA {
		return d.tiledAttention(s)
	}
	one := s.alone(1)
	if err := d.reserve(one.forwardBytes()+2*padded(4*s.T*s.D)+2*padded(4*s.S*s.D), 0); err != nil {
		return nil, err
	}
	heads, places := make([]attn, d.pool.threads), make([]forward, d.pool.threads)
	for i := range places {
		places[i] = one.forward()
	}
	need := one.scratch()
	return d.parallel(s.batch*s.H, func(thread, task int) {
		b, h := task/s.H, task%s.H
		own, w := d.ownScratch(thread), &heads[thread]
		*w = one
		s.segmentsOf(w, b)
		w.q, w.k, w.v = own.floats(s.T*s.D), own.floats(s.S*s.D), own.floats(s.S*s.D)
		widenRows(w.q, s.q[s.query(b, 0, h):], s.T, s.D, s.queryStride)
		widenRows(w.k, s.k[s.key(b, 0, h/(s.H/s.G)):], s.S, s.D, s.keyStride)
		widenRows(w.v, s.v[s.key(b, 0, h/(s.H/s.G)):], s.S, s.D, s.keyStride)
		o := own.floats(s.T * s.D)
		w.forwardTiles(&places[thread], &own, need, o, s.lse[task*s.T:], 0, 0, 0, w.queryTiles)
		roundRows(s.o[s.out(b, 0, h):], o, s.T, s.D, s.outStride)
	}), nil
}

// halfAttentionGrad gives a task one head of keys with the heads of queries that read it.
func (d *Device) halfAttentionGrad(s *halfGrad) (func(), error) {
	if vec.BF16Class() != vec.BF16FMA {
		return d.tiledAttentionGrad(s)
	}
	share := s.H / s.G
	one := s.alone(share)
	if err := d.reserve(one.backwardBytes()+4*padded(4*s.T*share*s.D)+4*padded(4*s.S*s.D), 0); err != nil {
		return nil, err
	}
	heads, views, places := make([]attnGrad, d.pool.threads), make([]attn, d.pool.threads), make([]backward, d.pool.threads)
	for i := range places {
		places[i] = one.backward()
	}
	need := one.scratch()
	return d.parallel(s.batch*s.G, func(thread, task int) {
		b, g := task/s.G, task%s.G
		own, w := d.ownScratch(thread), &heads[thread]
		views[thread] = one
		*w = attnGrad{attn: &views[thread], need: need, lse: s.lse[(b*s.H+g*share)*s.T:]}
		s.segmentsOf(w.attn, b)
		wide, query, key, out := share*s.D, s.query(b, 0, g*share), s.key(b, 0, g), s.out(b, 0, g*share)
		w.q, w.dy, w.o, w.dq = own.floats(s.T*wide), own.floats(s.T*wide), own.floats(s.T*wide), own.floats(s.T*wide)
		w.k, w.v, w.dk, w.dv = own.floats(s.S*s.D), own.floats(s.S*s.D), own.floats(s.S*s.D), own.floats(s.S*s.D)
		widenRows(w.q, s.q[query:], s.T, wide, s.queryStride)
		widenRows(w.dy, s.dy[out:], s.T, wide, s.outStride)
		widenRows(w.o, s.o[out:], s.T, wide, s.outStride)
		widenRows(w.k, s.k[key:], s.S, s.D, s.keyStride)
		widenRows(w.v, s.v[key:], s.S, s.D, s.keyStride)
		w.head(&places[thread], &own, 0, 0)
		roundRows(s.dq[query:], w.dq, s.T, wide, s.queryStride)
		roundRows(s.dk[key:], w.dk, s.S, s.D, s.keyStride)
		roundRows(s.dv[key:], w.dv, s.S, s.D, s.keyStride)
	}), nil
}

// alone is the attention of one head of keys and so many of queries, whose operands lie by themselves.
func (s *attn) alone(heads int) attn {
	one := *s
	one.batch, one.H, one.G = 1, heads, 1
	one.queryStride, one.keyStride, one.outStride = heads*s.D, s.D, heads*s.D
	return one
}

// segmentsOf lets one see the segments of a batch's member.
func (s *attn) segmentsOf(one *attn, b int) {
	if s.segQ != nil {
		one.segQ, one.segK = s.segQ[b*s.T:], s.segK[b*s.S:]
	}
}

// widenRows sets rows of dst, which lie close together, to rows of x, which begin stride apart.
func widenRows(dst []float32, x []uint16, rows, width, stride int) {
	for r := range rows {
		vec.BF16ToF32(dst[r*width:(r+1)*width], x[r*stride:r*stride+width])
	}
}

// roundRows is the way back.
func roundRows(dst []uint16, x []float32, rows, width, stride int) {
	for r := range rows {
		vec.F32ToBF16(dst[r*stride:r*stride+width], x[r*width:(r+1)*width])
	}
}

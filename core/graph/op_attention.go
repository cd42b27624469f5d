package graph

import (
	"fmt"
	"math"

	"starling/core/tensor"
	"starling/core/tensor/detmath"
)

// Attention and rotary positions. Letters: B batch, T queries, S keys, H query heads, G key heads, D width of a head.

// OpAttention is scaled dot-product attention.
var OpAttention = register(Op{
	Name: "attention",
	Doc: "(q[B,T,H,D], k[B,S,G,D], v[B,S,G,D], (segments i32[B,T] of queries, i32[B,S] of keys)?) -> o[B,T,H,D], lse f32[B,H,T]: " +
		"softmax(Scale * q·k) · v, H a multiple of G and head h reading key head h/(H/G); Causal lets query t see keys up to t+S-T; " +
		"segments let it see equal segments only; lse is the logarithm of the sum of exponentials; a query that sees no key gives zeros and lse -Inf",
	Grad: gradAttention,
	Ref:  refAttention,
	Infer: func(in []*Value, attrs any) ([]Type, error) {
		_, err := attrsAs[AttentionAttrs](attrs)
		if err := all(err, arity(in, "q", "k", "v", "query segments?", "key segments?")); err != nil {
			return nil, err
		}
		return inferAttention(in)
	},
})

// OpAttentionGrad is the gradient of OpAttention.
var OpAttentionGrad = register(Op{
	Name: "attention_grad",
	Doc: "(dy[B,T,H,D], q, k, v, o, lse, (query segments, key segments)?) -> dq, dk, dv: with p = e^(Scale * q·k - lse) recomputed, " +
		"ds = p * (dy·v - sum(dy*o)), dq = Scale * ds·k, dk = Scale * ds·q, dv = p·dy, the last two summed over the heads that share them",
	Ref: refAttentionGrad,
	Infer: func(in []*Value, attrs any) ([]Type, error) {
		_, err := attrsAs[AttentionAttrs](attrs)
		if err := all(err, arity(in, "dy", "q", "k", "v", "o", "lse", "query segments?", "key segments?")); err != nil {
			return nil, err
		}
		fwd := append(append([]*Value{}, in[1:4]...), in[6:]...)
		out, err := inferAttention(fwd)
		if err != nil {
			return nil, err
		}
		err = all(floats(in[:5]...), ofShape("dy", in[0], out[0].Shape...), ofShape("o", in[4], out[0].Shape...),
			ofDType("lse", in[5], tensor.F32), ofShape("lse", in[5], out[1].Shape...))
		return []Type{in[1].Type, in[2].Type, in[3].Type}, err
	},
})

func inferAttention(in []*Value) ([]Type, error) {
	q, k, v := in[0], in[1], in[2]
	err := all(floats(q, k, v), ofRank("q", q, 4, "[batch, queries, heads, width]"), ofRank("k", k, 4, "[batch, keys, heads, width]"))
	if err != nil {
		return nil, err
	}
	b, t, h, d := q.Shape[0], q.Shape[1], q.Shape[2], q.Shape[3]
	s, g := k.Shape[1], k.Shape[2]
	switch {
	case k.Shape[0] != b:
		return nil, fmt.Errorf("the batch sizes of q %v and k %v differ", q.Shape, k.Shape)
	case k.Shape[3] != d:
		return nil, fmt.Errorf("the head widths of q %v and k %v differ", q.Shape, k.Shape)
	case h%g != 0:
		return nil, fmt.Errorf("%d query heads cannot share %d key heads: the first must be a multiple of the second", h, g)
	}
	if err := ofShape("v", v, k.Shape...); err != nil {
		return nil, err
	}
	switch len(in) {
	case 4:
		return nil, fmt.Errorf("segments are needed for queries and keys, or for neither")
	case 5:
		err := all(ofDType("query segments", in[3], tensor.I32), ofShape("query segments", in[3], b, t),
			ofDType("key segments", in[4], tensor.I32), ofShape("key segments", in[4], b, s))
		if err != nil {
			return nil, err
		}
	}
	return []Type{q.Type, {tensor.F32, tensor.Shape{b, h, t}}}, nil
}

// OpRotary rotates pairs of each head by an angle that grows with the position.
var OpRotary = register(Op{
	Name: "rotary",
	Doc: "(x[B,T,H,D]) -> y: elements i and i+D/2 of the head at row t turned by (Offset+t) * Base^(-2i/D), backwards if Inverse; " +
		"cosines and sines are those of RotaryTable",
	Grad: gradRotary,
	Ref:  refRotary,
	Infer: func(in []*Value, attrs any) ([]Type, error) {
		a, err := attrsAs[RotaryAttrs](attrs)
		if err := all(err, arity(in, "x")); err != nil {
			return nil, err
		}
		x := in[0]
		if err := all(floats(x), ofRank("x", x, 4, "[batch, time, heads, width]")); err != nil {
			return nil, err
		}
		if d := x.Shape[3]; d%2 != 0 {
			return nil, fmt.Errorf("the head width of %v is odd: rotary positions turn pairs", x.Shape)
		}
		if !(a.Base > 0) || a.Offset < 0 {
			return nil, fmt.Errorf("base %v and offset %d: the base must be positive, the offset not negative", a.Base, a.Offset)
		}
		return []Type{x.Type}, nil
	},
})

func gradAttention(b *Builder, n *Node, dout []*Value) []*Value {
	in := append([]*Value{dout[0], n.In[0], n.In[1], n.In[2], n.Out[0], n.Out[1]}, n.In[3:]...)
	din := make([]*Value, len(n.In))
	copy(din, b.Must(ops["attention_grad"], n.Attrs, in...))
	return din
}

// attentionRef walks the pairs of query and key that see each other.
type attentionRef struct {
	AttentionAttrs
	b, t, s, h, g, d int
	segQ, segK       []float64 // nil without segments
}

func newAttentionRef(n *Node, q, k *Array, segments []*Array) attentionRef {
	r := attentionRef{AttentionAttrs: n.Attrs.(AttentionAttrs),
		b: q.Shape[0], t: q.Shape[1], s: k.Shape[1], h: q.Shape[2], g: k.Shape[2], d: q.Shape[3]}
	if len(segments) == 2 {
		r.segQ, r.segK = segments[0].Data, segments[1].Data
	}
	return r
}

func (r attentionRef) sees(b, t, s int) bool {
	if r.Causal && s > t+r.s-r.t {
		return false
	}
	return r.segQ == nil || r.segQ[b*r.t+t] == r.segK[b*r.s+s]
}

// query and key return the place of a head's vector in q, o (or k, v).
func (r attentionRef) query(b, t, h int) int { return ((b*r.t+t)*r.h + h) * r.d }
func (r attentionRef) key(b, s, h int) int   { return ((b*r.s+s)*r.g + h/(r.h/r.g)) * r.d }

// each calls f for every query of every head.
func (r attentionRef) each(f func(b, h, t int)) {
	for b := range r.b {
		for h := range r.h {
			for t := range r.t {
				f(b, h, t)
			}
		}
	}
}

func refAttention(n *Node, in []*Array) []*Array {
	q, k, v := in[0], in[1], in[2]
	o, lse := NewArray(n.Out[0].Type), NewArray(n.Out[1].Type)
	r := newAttentionRef(n, q, k, in[3:])
	r.each(func(b, h, t int) {
		at := r.query(b, t, h)
		var scores []float64
		var keys []int
		for s := range r.s {
			if r.sees(b, t, s) {
				keys = append(keys, r.key(b, s, h))
				scores = append(scores, r.Scale*dot(q.Data[at:][:r.d], k.Data[r.key(b, s, h):][:r.d]))
			}
		}
		sum := math.Inf(-1)
		if len(scores) > 0 {
			sum = logSumExp(scores)
		}
		lse.Data[(b*r.h+h)*r.t+t] = sum
		for i, s := range scores {
			axpy(o.Data[at:][:r.d], math.Exp(s-sum), v.Data[keys[i]:][:r.d])
		}
	})
	return []*Array{o, lse}
}

func refAttentionGrad(n *Node, in []*Array) []*Array {
	dy, q, k, v, o, lse := in[0], in[1], in[2], in[3], in[4], in[5]
	dq, dk, dv := NewArray(n.Out[0].Type), NewArray(n.Out[1].Type), NewArray(n.Out[2].Type)
	r := newAttentionRef(n, q, k, in[6:])
	r.each(func(b, h, t int) {
		at := r.query(b, t, h)
		qt, dyt := q.Data[at:][:r.d], dy.Data[at:][:r.d]
		delta := dot(dyt, o.Data[at:][:r.d])
		for s := range r.s {
			if !r.sees(b, t, s) {
				continue
			}
			key := r.key(b, s, h)
			ks, vs := k.Data[key:][:r.d], v.Data[key:][:r.d]
			p := math.Exp(r.Scale*dot(qt, ks) - lse.Data[(b*r.h+h)*r.t+t])
			ds := p * (dot(dyt, vs) - delta) * r.Scale
			axpy(dq.Data[at:][:r.d], ds, ks)
			axpy(dk.Data[key:][:r.d], ds, qt)
			axpy(dv.Data[key:][:r.d], p, dyt)
		}
	})
	return []*Array{dq, dk, dv}
}

// RotaryTable returns the cosines and sines of rows Offset to Offset+rows-1 for heads of the given width, [rows, width/2] each:
// the angles are computed in float64, the same on every architecture, and only the results are rounded.
func RotaryTable(a RotaryAttrs, rows, width int) (cos, sin []float32) {
	half := width / 2
	cos, sin = make([]float32, rows*half), make([]float32, rows*half)
	for i := range half {
		frequency := detmath.Pow(a.Base, -2*float64(i)/float64(width))
		for t := range rows {
			angle := float64(a.Offset+t) * frequency
			cos[t*half+i], sin[t*half+i] = float32(detmath.Cos(angle)), float32(detmath.Sin(angle))
		}
	}
	return cos, sin
}

func gradRotary(b *Builder, n *Node, dout []*Value) []*Value {
	a := n.Attrs.(RotaryAttrs)
	a.Inverse = !a.Inverse
	return []*Value{b.do("rotary", a, dout[0])}
}

func refRotary(n *Node, in []*Array) []*Array {
	x, y, a := in[0], NewArray(n.Out[0].Type), n.Attrs.(RotaryAttrs)
	rows, heads, width := x.Shape[1], x.Shape[2], x.Shape[3]
	cos, sin := RotaryTable(a, rows, width)
	half := width / 2
	for v := range len(x.Data) / width {
		t := v / heads % rows
		for i := range half {
			c, s := float64(cos[t*half+i]), float64(sin[t*half+i])
			if a.Inverse {
				s = -s
			}
			lo, hi := x.Data[v*width+i], x.Data[v*width+half+i]
			y.Data[v*width+i] = lo*c - hi*s
			y.Data[v*width+half+i] = hi*c + lo*s
		}
	}
	return []*Array{y}
}

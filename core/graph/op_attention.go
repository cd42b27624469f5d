package graph

import (
	"fmt"

	"starling/core/tensor"
)

// Attention and rotary positions. Letters: B batch, T queries, S keys, H query heads, G key heads, D width of a head.

// OpAttention is scaled dot-product attention.
var OpAttention = register(Op{
	Name: "attention",
	Doc: "(q[B,T,H,D], k[B,S,G,D], v[B,S,G,D], (segments i32[B,T] of queries, i32[B,S] of keys)?) -> o[B,T,H,D], lse f32[B,H,T]: " +
		"softmax(Scale * q·k) · v, H a multiple of G and head h reading key head h/(H/G); Causal lets query t see keys up to t+S-T; " +
		"segments let it see equal segments only; lse is the logarithm of the sum of exponentials; a query that sees no key gives zeros and lse -Inf",
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

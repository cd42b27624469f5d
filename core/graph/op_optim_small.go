package graph

import "starling/core/tensor"

// AdamW with small state. The arithmetic of a step is that of adamw, in f32, on what the state says; what is kept is rounded once, after it.

// OpAdamWBF16 is AdamW whose moments are kept in bfloat16.
var OpAdamWBF16 = register(Op{
	Name:    "adamw_bf16",
	Doc:     "(param, grad, m bf16, v bf16, hyper f64[8]) -> param, m, v, as adamw with its moments kept in bf16",
	InPlace: true,
	Ref:     refAdamW,
	Infer: func(in []*Value, attrs any) ([]Type, error) {
		_, err := attrsAs[AdamWAttrs](attrs)
		if err := all(err, arity(in, "param", "grad", "m", "v", "hyper")); err != nil {
			return nil, err
		}
		if _, err := inferUpdate([]*Value{in[0], in[1], in[4]}, "grad"); err != nil {
			return nil, err
		}
		shape := in[0].Shape
		return []Type{in[0].Type, in[2].Type, in[3].Type},
			all(ofDType("m", in[2], tensor.BF16), ofDType("v", in[3], tensor.BF16), ofShape("m", in[2], shape...), ofShape("v", in[3], shape...))
	},
})

// OpAdamWInt8 is AdamW whose moments are kept in 8 bits, block by block.
var OpAdamWInt8 = register(Op{
	Name: "adamw_int8",
	Doc: "(param, grad, m u8, m_scale f32[ceil(n/256)], v u8, v_scale f32[ceil(n/256)], hyper f64[8]) -> param, m, m_scale, v, v_scale, as adamw with its moments kept as " +
		"codes of a dynamic 8-bit type, each block of 256 scaled by its largest absolute value",
	InPlace: true,
	Ref:     refAdamWInt8,
	Infer: func(in []*Value, attrs any) ([]Type, error) {
		_, err := attrsAs[AdamWAttrs](attrs)
		if err := all(err, arity(in, "param", "grad", "m", "m_scale", "v", "v_scale", "hyper")); err != nil {
			return nil, err
		}
		if _, err := inferUpdate([]*Value{in[0], in[1], in[6]}, "grad"); err != nil {
			return nil, err
		}
		shape := in[0].Shape
		blocks := (shape.Numel() + QuantBlock - 1) / QuantBlock
		out := []Type{in[0].Type}
		for _, v := range in[2:6] {
			out = append(out, v.Type)
		}
		return out, all(ofDType("m", in[2], tensor.U8), ofDType("v", in[4], tensor.U8), ofDType("m_scale", in[3], tensor.F32), ofDType("v_scale", in[5], tensor.F32),
			ofShape("m", in[2], shape...), ofShape("v", in[4], shape...), ofShape("m_scale", in[3], blocks), ofShape("v_scale", in[5], blocks))
	},
})

func refAdamWInt8(n *Node, in []*Array) []*Array {
	m, v := NewArray(in[0].Type), NewArray(in[0].Type)
	m.Data, v.Data = refQuantised(&Dynamic8, in[2], in[3]), refQuantised(&Dynamic8Positive, in[4], in[5])
	plain := &Node{Op: OpAdamW, Attrs: n.Attrs, Out: []*Value{n.Out[0], n.Out[0], n.Out[0]}}
	step := refAdamW(plain, []*Array{in[0], in[1], m, v, in[6]})
	out := []*Array{step[0], NewArray(n.Out[1].Type), NewArray(n.Out[2].Type), NewArray(n.Out[3].Type), NewArray(n.Out[4].Type)}
	refQuantise(&Dynamic8, step[1].Data, out[1], out[2])
	refQuantise(&Dynamic8Positive, step[2].Data, out[3], out[4])
	return out
}

package graph

import (
	"fmt"

	"starling/core/tensor"
)

// Attention on queries, keys and values that lie side by side, as one layer computes them: what fusion makes of attention on
// three slices, so that these are never copied apart.

// JointAttentionAttrs is attention of so many heads on joined queries, keys and values.
type JointAttentionAttrs struct {
	AttentionAttrs
	Heads int
}

// OpAttentionJoint is OpAttention on joined queries, keys and values.
var OpAttentionJoint = register(Op{
	Name: "attention_joint",
	Doc:  "(x[B,T,3HD]) -> o[B,T,H,D], lse f32[B,H,T]: attention of the first third of x as queries, the second as keys, the last as values",
	Ref: func(n *Node, in []*Array) []*Array {
		at := n.Attrs.(JointAttentionAttrs)
		return refAttention(&Node{Attrs: at.AttentionAttrs, Out: n.Out}, at.parts(in[0]))
	},
	Infer: func(in []*Value, attrs any) ([]Type, error) {
		at, err := attrsAs[JointAttentionAttrs](attrs)
		if err := all(err, arity(in, "x")); err != nil {
			return nil, err
		}
		return at.infer(in[0])
	},
})

// OpAttentionJointGrad is the gradient of OpAttentionJoint.
var OpAttentionJointGrad = register(Op{
	Name: "attention_joint_grad",
	Doc:  "(dy[B,T,H,D], x[B,T,3HD], o, lse) -> dx[B,T,3HD]: attention_grad with its three results side by side",
	Ref: func(n *Node, in []*Array) []*Array {
		at, x := n.Attrs.(JointAttentionAttrs), in[1]
		p := at.parts(x)
		part := Type{x.DType, p[0].Shape}
		grads := refAttentionGrad(&Node{Attrs: at.AttentionAttrs, Out: []*Value{{Type: part}, {Type: part}, {Type: part}}},
			[]*Array{in[0], p[0], p[1], p[2], in[2], in[3]})
		dx, width := NewArray(x.Type), x.Shape[2]/3
		for i := range dx.Data {
			row, col := i/x.Shape[2], i%x.Shape[2]
			dx.Data[i] = grads[col/width].Data[row*width+col%width]
		}
		return []*Array{dx}
	},
	Infer: func(in []*Value, attrs any) ([]Type, error) {
		at, err := attrsAs[JointAttentionAttrs](attrs)
		if err := all(err, arity(in, "dy", "x", "o", "lse")); err != nil {
			return nil, err
		}
		out, err := at.infer(in[1])
		if err != nil {
			return nil, err
		}
		return []Type{in[1].Type}, all(floats(in[:3]...), ofShape("dy", in[0], out[0].Shape...), ofShape("o", in[2], out[0].Shape...),
			ofDType("lse", in[3], tensor.F32), ofShape("lse", in[3], out[1].Shape...))
	},
})

func (a JointAttentionAttrs) infer(x *Value) ([]Type, error) {
	if err := all(floats(x), ofRank("x", x, 3, "[batch, time, queries, keys and values]")); err != nil {
		return nil, err
	}
	if a.Heads < 1 || x.Shape[2]%(3*a.Heads) != 0 {
		return nil, fmt.Errorf("the last dimension of %v is not three times %d heads", x.Shape, a.Heads)
	}
	b, t := x.Shape[0], x.Shape[1]
	return []Type{{x.DType, tensor.Shape{b, t, a.Heads, x.Shape[2] / 3 / a.Heads}}, {tensor.F32, tensor.Shape{b, a.Heads, t}}}, nil
}

// parts cuts queries, keys and values apart.
func (a JointAttentionAttrs) parts(x *Array) []*Array {
	width := x.Shape[2] / 3
	out := make([]*Array, 3)
	for p := range out {
		out[p] = NewArray(Type{x.DType, tensor.Shape{x.Shape[0], x.Shape[1], a.Heads, width / a.Heads}})
		for i := range out[p].Data {
			out[p].Data[i] = x.Data[i/width*3*width+p*width+i%width]
		}
	}
	return out
}

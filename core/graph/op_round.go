package graph

import (
	"fmt"

	"starling/core/tensor"
)

// RoundAttrs are the attributes of round_to.
type RoundAttrs struct{ To tensor.DType }

// OpRoundTo rounds what stays f32, where sums of gradients travel in 16 bits.
var OpRoundTo = register(Op{
	Name:    "round_to",
	Doc:     "(x) -> y like x, written over it: each element rounded to the nearest value of type to, bf16 or f16, ties to even",
	InPlace: true,
	Ref: func(n *Node, in []*Array) []*Array {
		y := NewArray(n.Out[0].Type)
		for i, x := range in[0].Data {
			y.Data[i] = Round(n.Attrs.(RoundAttrs).To, x)
		}
		return []*Array{y}
	},
	Infer: func(in []*Value, attrs any) ([]Type, error) {
		a, err := attrsAs[RoundAttrs](attrs)
		if err := all(err, arity(in, "x")); err != nil {
			return nil, err
		}
		if a.To != tensor.BF16 && a.To != tensor.F16 {
			return nil, fmt.Errorf("to = %v must be bf16 or f16", a.To)
		}
		return []Type{in[0].Type}, floats(in[0])
	},
})

package graph

import (
	"fmt"

	"starling/core/tensor"
)

// OpDropout zeroes elements at random.
var OpDropout = register(Op{
	Name: "dropout",
	Doc: "(x, rng u32[4]) -> y of x's shape: each element is dropped with probability P, else multiplied by float32(1/(1-P)). rng is seed lo, " +
		"seed hi, step, micro-batch. Element i is kept where word i%4 of Philox4x32-10 with key (lo Key ^ seed lo, hi Key ^ seed hi) and " +
		"counter (lo i/4, hi i/4, step, micro-batch) is at least floor(P * 2^32). Its own gradient: dropout(dy, rng)",
	InPlace: true,
	Infer: func(in []*Value, attrs any) ([]Type, error) {
		a, err := attrsAs[DropoutAttrs](attrs)
		if err := all(err, arity(in, "x", "rng")); err != nil {
			return nil, err
		}
		if !(a.P >= 0 && a.P < 1) {
			return nil, fmt.Errorf("the probability %v is not in [0, 1)", a.P)
		}
		err = all(floats(in[0]), ofDType("rng", in[1], tensor.U32), ofShape("rng", in[1], 4))
		return []Type{in[0].Type}, err
	},
})

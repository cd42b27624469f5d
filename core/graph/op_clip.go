package graph

import (
	"math"

	"starling/core/tensor"
)

// What clipping needs besides sum_squares: the partial results of other norms, and the bound of single elements. They stand after the backward
// pass and have no gradient.

// OpSumAbs computes the partial sums of an L1 norm.
var OpSumAbs = register(Op{
	Name:  "sum_abs",
	Doc:   "(x) -> y f64[ceil(n/4096)]: for each block of 4096 elements of x, the sum of their absolute values in float64",
	Ref:   blockwise(func(sum, x float64) float64 { return sum + math.Abs(x) }),
	Infer: inferBlocks,
})

// OpMaxAbs computes the partial results of an infinity norm.
var OpMaxAbs = register(Op{
	Name:  "max_abs",
	Doc:   "(x) -> y f64[ceil(n/4096)]: for each block of 4096 elements of x, the largest of their absolute values, NaN if one of them is",
	Ref:   blockwise(func(most, x float64) float64 { return math.Max(most, math.Abs(x)) }),
	Infer: inferBlocks,
})

// OpClipValue bounds every element.
var OpClipValue = register(Op{
	Name:    "clip_value",
	Doc:     "(x, limit f64[1]) -> y like x, written over it: each element brought into [-limit, limit], the limit rounded to f32 first; NaN stays",
	InPlace: true,
	Ref: func(n *Node, in []*Array) []*Array {
		y := NewArray(n.Out[0].Type)
		limit := float64(float32(in[1].Data[0]))
		for i, x := range in[0].Data {
			y.Data[i] = math.Max(-limit, math.Min(x, limit))
		}
		return []*Array{y}
	},
	Infer: func(in []*Value, attrs any) ([]Type, error) {
		if err := arity(in, "x", "limit"); err != nil {
			return nil, err
		}
		return []Type{in[0].Type}, all(floats(in[0]), ofDType("limit", in[1], tensor.F64), ofShape("limit", in[1], 1))
	},
})

// inferBlocks is the rule of an operation with one result for each block of SumSquaresBlock elements.
func inferBlocks(in []*Value, attrs any) ([]Type, error) {
	if err := arity(in, "x"); err != nil {
		return nil, err
	}
	n := (in[0].Shape.Numel() + SumSquaresBlock - 1) / SumSquaresBlock
	return one(tensor.F64, n), floats(in...)
}

// blockwise is the reference of such an operation.
func blockwise(join func(sofar, x float64) float64) func(*Node, []*Array) []*Array {
	return func(n *Node, in []*Array) []*Array {
		y := NewArray(n.Out[0].Type)
		for i, x := range in[0].Data {
			y.Data[i/SumSquaresBlock] = join(y.Data[i/SumSquaresBlock], x)
		}
		return []*Array{y}
	}
}

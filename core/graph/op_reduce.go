package graph

import (
	"fmt"

	"starling/core/tensor"
)

// Reductions over given dimensions, and those over the last one.

func inferReduce(in []*Value, attrs any) ([]Type, error) {
	a, err := attrsAs[ReduceAttrs](attrs)
	if err := all(err, arity(in, "x")); err != nil {
		return nil, err
	}
	s, err := a.reduce(in[0].Shape)
	if err != nil {
		return nil, err
	}
	return one(in[0].DType, s...), floats(in...)
}

// reduce returns the shape that remains.
func (a ReduceAttrs) reduce(x tensor.Shape) (tensor.Shape, error) {
	if a.Axes.N < 0 || a.Axes.N > maxDims {
		return nil, fmt.Errorf("%d axes: at most %d are possible", a.Axes.N, maxDims)
	}
	axes := a.Axes.Slice()
	out := tensor.Shape{}
	k := 0
	for d, n := range x {
		switch {
		case k == len(axes) || axes[k] != d:
			out = append(out, n)
		default:
			k++
			if a.Keep {
				out = append(out, 1)
			}
		}
	}
	if k < len(axes) {
		return nil, fmt.Errorf("cannot reduce %v over axes %v: axes are dimensions of it, ascending", x, axes)
	}
	return out, nil
}

// OpSum adds over the given dimensions.
var OpSum = register(Op{
	Name:  "sum",
	Doc:   "(x) -> y: the sum over the dimensions Axes; Keep leaves them as 1",
	Infer: inferReduce,
})

// OpMean averages over the given dimensions.
var OpMean = register(Op{
	Name:  "mean",
	Doc:   "(x) -> y: the mean over the dimensions Axes; Keep leaves them as 1",
	Infer: inferReduce,
})

// OpMax takes the maximum over the given dimensions.
var OpMax = register(Op{
	Name:  "max",
	Doc:   "(x) -> y: the maximum over the dimensions Axes, NaN if one is NaN; Keep leaves them as 1",
	Infer: inferReduce,
})

// OpMaxGrad is the gradient of OpMax.
var OpMaxGrad = register(Op{
	Name: "max_grad",
	Doc:  "(x, y, dy) -> dx: dy at the first element (row-major) of each reduced group that equals the maximum y, else 0",
	Infer: func(in []*Value, attrs any) ([]Type, error) {
		if err := arity(in, "x", "y", "dy"); err != nil {
			return nil, err
		}
		t, err := inferReduce(in[:1], attrs)
		if err != nil {
			return nil, err
		}
		return []Type{in[0].Type}, all(floats(in...), ofShape("y", in[1], t[0].Shape...), ofShape("dy", in[2], t[0].Shape...))
	},
})

func inferLast(in []*Value, attrs any) ([]Type, error) {
	if err := arity(in, "x"); err != nil {
		return nil, err
	}
	return []Type{in[0].Type}, all(hasLast("x", in[0]), floats(in...))
}

func inferLastGrad(in []*Value, attrs any) ([]Type, error) {
	if err := arity(in, "y", "dy"); err != nil {
		return nil, err
	}
	return []Type{in[0].Type}, all(hasLast("y", in[0]), floats(in...), ofShape("dy", in[1], in[0].Shape...))
}

// OpSoftmax normalises exponentials over the last dimension.
var OpSoftmax = register(Op{
	Name:  "softmax",
	Doc:   "(x[...,C]) -> y: e^(x-max) / sum e^(x-max) over the last dimension",
	Infer: inferLast,
})

// OpSoftmaxGrad is the gradient of OpSoftmax.
var OpSoftmaxGrad = register(Op{
	Name:  "softmax_grad",
	Doc:   "(y[...,C], dy) -> dx: y * (dy - sum(y*dy)), the sum over the last dimension",
	Infer: inferLastGrad,
})

// OpLogSoftmax is the logarithm of OpSoftmax.
var OpLogSoftmax = register(Op{
	Name:  "log_softmax",
	Doc:   "(x[...,C]) -> y: x - max - log(sum e^(x-max)) over the last dimension",
	Infer: inferLast,
})

// OpLogSoftmaxGrad is the gradient of OpLogSoftmax.
var OpLogSoftmaxGrad = register(Op{
	Name:  "log_softmax_grad",
	Doc:   "(y[...,C], dy) -> dx: dy - e^y * sum(dy), the sum over the last dimension",
	Infer: inferLastGrad,
})

// OpArgmax finds the maximum of each row.
var OpArgmax = register(Op{
	Name: "argmax",
	Doc:  "(x[...,C]) -> i i32[...]: the index of the first maximum of the last dimension (of the first NaN, if there is one); no gradient",
	Infer: func(in []*Value, attrs any) ([]Type, error) {
		if err := arity(in, "x"); err != nil {
			return nil, err
		}
		if err := all(hasLast("x", in[0]), floats(in...)); err != nil {
			return nil, err
		}
		return one(tensor.I32, in[0].Shape[:len(in[0].Shape)-1]...), nil
	},
})

package graph

import (
	"fmt"

	"starling/core/tensor"
)

// Convolution and pooling over [N,C,H,W]. OH and OW are the extents of a result: floor((H + 2*pad - dilation*(kernel-1) - 1)/stride) + 1.

// extent returns the number of window positions along one dimension.
func extent(size, kernel, stride, pad, dilation int) (int, error) {
	const most = 1 << 30
	if size < 1 || kernel < 1 || stride < 1 || dilation < 1 || pad < 0 {
		return 0, fmt.Errorf("window %d, stride %d, padding %d, dilation %d over extent %d: all are at least 1, padding at least 0",
			kernel, stride, pad, dilation, size)
	}
	if size > most || kernel > most || pad > most || dilation > most {
		return 0, fmt.Errorf("window %d, padding %d, dilation %d over extent %d: none may exceed 2^30", kernel, pad, dilation, size)
	}
	room := size + 2*pad - dilation*(kernel-1) - 1
	if room < 0 {
		return 0, fmt.Errorf("a window of %d (dilation %d) does not fit in an extent of %d with padding %d", kernel, dilation, size, pad)
	}
	return room/stride + 1, nil
}

func (a ConvAttrs) extents(h, w, kh, kw int) (oh, ow int, err error) {
	if oh, err = extent(h, kh, a.StrideH, a.PadH, a.DilationH); err != nil {
		return 0, 0, err
	}
	ow, err = extent(w, kw, a.StrideW, a.PadW, a.DilationW)
	return oh, ow, err
}

func (a PoolAttrs) extents(h, w int) (oh, ow int, err error) {
	if 2*a.PadH > a.KH || 2*a.PadW > a.KW {
		return 0, 0, fmt.Errorf("padding %dx%d is more than half of the window %dx%d", a.PadH, a.PadW, a.KH, a.KW)
	}
	if oh, err = extent(h, a.KH, a.StrideH, a.PadH, 1); err != nil {
		return 0, 0, err
	}
	ow, err = extent(w, a.KW, a.StrideW, a.PadW, 1)
	return oh, ow, err
}

const imageDims, kernelDims = "[batch, channels, height, width]", "[outputs, inputs per group, height, width]"

// convShape checks an image against kernels and returns the shape of the result.
func convShape(a ConvAttrs, x, w tensor.Shape) (tensor.Shape, error) {
	if a.Groups < 1 || x[1]%a.Groups != 0 || w[0]%a.Groups != 0 {
		return nil, fmt.Errorf("%d groups do not divide %d input and %d output channels", a.Groups, x[1], w[0])
	}
	if x[1]/a.Groups != w[1] {
		return nil, fmt.Errorf("cannot convolve %v with kernels %v in %d groups: %d channels a group against %d", x, w, a.Groups, x[1]/a.Groups, w[1])
	}
	oh, ow, err := a.extents(x[2], x[3], w[2], w[3])
	if err != nil {
		return nil, fmt.Errorf("cannot convolve %v with kernels %v: %w", x, w, err)
	}
	return tensor.Shape{x[0], w[0], oh, ow}, nil
}

// OpConv2D is a two-dimensional convolution (a cross-correlation, as everywhere in deep learning).
var OpConv2D = register(Op{
	Name: "conv2d",
	Doc:  "(x[N,C,H,W], w[O,C/Groups,KH,KW], b[O]?) -> y[N,O,OH,OW]: cross-correlation, zeros outside x",
	Infer: func(in []*Value, attrs any) ([]Type, error) {
		a, err := attrsAs[ConvAttrs](attrs)
		if err := all(err, arity(in, "x", "w", "b?")); err != nil {
			return nil, err
		}
		x, w := in[0], in[1]
		if err := all(floats(in...), ofRank("x", x, 4, imageDims), ofRank("w", w, 4, kernelDims)); err != nil {
			return nil, err
		}
		y, err := convShape(a, x.Shape, w.Shape)
		if err != nil {
			return nil, err
		}
		if len(in) == 3 {
			if err := ofShape("b", in[2], w.Shape[0]); err != nil {
				return nil, err
			}
		}
		return one(x.DType, y...), nil
	},
})

// OpConv2DGradX is the gradient of OpConv2D with respect to x.
var OpConv2DGradX = register(Op{
	Name: "conv2d_grad_x",
	Doc:  "(dy[N,O,OH,OW], w[O,C/Groups,KH,KW]) -> dx[N,C,H,W], H and W from ConvAttrs",
	Infer: func(in []*Value, attrs any) ([]Type, error) {
		a, err := attrsAs[ConvAttrs](attrs)
		if err := all(err, arity(in, "dy", "w")); err != nil {
			return nil, err
		}
		dy, w := in[0], in[1]
		if err := all(floats(in...), ofRank("dy", dy, 4, imageDims), ofRank("w", w, 4, kernelDims)); err != nil {
			return nil, err
		}
		x := tensor.Shape{dy.Shape[0], w.Shape[1] * a.Groups, a.H, a.W}
		if err := checkShape(x); err != nil {
			return nil, err
		}
		y, err := convShape(a, x, w.Shape)
		if err != nil {
			return nil, err
		}
		return one(dy.DType, x...), ofShape("dy", dy, y...)
	},
})

// OpConv2DGradW is the gradient of OpConv2D with respect to w.
var OpConv2DGradW = register(Op{
	Name: "conv2d_grad_w",
	Doc:  "(dy[N,O,OH,OW], x[N,C,H,W]) -> dw[O,C/Groups,KH,KW], KH and KW from ConvAttrs' H and W; summed over n, then oh, then ow, ascending",
	Infer: func(in []*Value, attrs any) ([]Type, error) {
		a, err := attrsAs[ConvAttrs](attrs)
		if err := all(err, arity(in, "dy", "x")); err != nil {
			return nil, err
		}
		dy, x := in[0], in[1]
		if err := all(floats(in...), ofRank("dy", dy, 4, imageDims), ofRank("x", x, 4, imageDims)); err != nil {
			return nil, err
		}
		if a.Groups < 1 {
			return nil, fmt.Errorf("%d groups: at least one is needed", a.Groups)
		}
		w := tensor.Shape{dy.Shape[1], x.Shape[1] / a.Groups, a.H, a.W}
		if err := checkShape(w); err != nil {
			return nil, err
		}
		y, err := convShape(a, x.Shape, w)
		if err != nil {
			return nil, err
		}
		return one(dy.DType, w...), ofShape("dy", dy, y...)
	},
})

// poolShape checks an image and returns the shape of the pooled one.
func poolShape(a PoolAttrs, x tensor.Shape) (tensor.Shape, error) {
	oh, ow, err := a.extents(x[2], x[3])
	if err != nil {
		return nil, fmt.Errorf("cannot pool %v: %w", x, err)
	}
	return tensor.Shape{x[0], x[1], oh, ow}, nil
}

func inferPool(in []*Value, attrs any) ([]Type, error) {
	a, err := attrsAs[PoolAttrs](attrs)
	if err := all(err, arity(in, "x")); err != nil {
		return nil, err
	}
	if err := all(floats(in...), ofRank("x", in[0], 4, imageDims)); err != nil {
		return nil, err
	}
	s, err := poolShape(a, in[0].Shape)
	return one(in[0].DType, s...), err
}

// inferPoolGrad is the rule of a pool's gradient, whose first input is dy.
func inferPoolGrad(dy *Value, a PoolAttrs) ([]Type, error) {
	if err := all(floats(dy), ofRank("dy", dy, 4, imageDims)); err != nil {
		return nil, err
	}
	x := tensor.Shape{dy.Shape[0], dy.Shape[1], a.H, a.W}
	s, err := poolShape(a, x)
	if err != nil {
		return nil, err
	}
	return one(dy.DType, x...), ofShape("dy", dy, s...)
}

// OpMaxPool takes the maximum of each window.
var OpMaxPool = register(Op{
	Name: "max_pool",
	Doc: "(x[N,C,H,W]) -> y[N,C,OH,OW], index i32[N,C,OH,OW]: the maximum of each window (padding never wins, NaN always does) " +
		"and where it is first found, as h*W + w",
	Infer: func(in []*Value, attrs any) ([]Type, error) {
		t, err := inferPool(in, attrs)
		if err != nil {
			return nil, err
		}
		return append(t, Type{tensor.I32, t[0].Shape.Clone()}), nil
	},
})

// OpMaxPoolGrad is the gradient of OpMaxPool.
var OpMaxPoolGrad = register(Op{
	Name: "max_pool_grad",
	Doc:  "(dy[N,C,OH,OW], index i32[N,C,OH,OW]) -> dx[N,C,H,W]: dy added at its index, windows in ascending order; H and W from PoolAttrs",
	Infer: func(in []*Value, attrs any) ([]Type, error) {
		a, err := attrsAs[PoolAttrs](attrs)
		if err := all(err, arity(in, "dy", "index")); err != nil {
			return nil, err
		}
		t, err := inferPoolGrad(in[0], a)
		if err != nil {
			return nil, err
		}
		return t, all(ofDType("index", in[1], tensor.I32), ofShape("index", in[1], in[0].Shape...))
	},
})

// OpAvgPool averages each window.
var OpAvgPool = register(Op{
	Name:  "avg_pool",
	Doc:   "(x[N,C,H,W]) -> y[N,C,OH,OW]: the sum of each window divided by KH*KW, padding counted as zeros (but not beyond it)",
	Infer: inferPool,
})

// OpAvgPoolGrad is the gradient of OpAvgPool.
var OpAvgPoolGrad = register(Op{
	Name: "avg_pool_grad",
	Doc:  "(dy[N,C,OH,OW]) -> dx[N,C,H,W]: dy/(KH*KW) added to each element of its window, windows in ascending order; H and W from PoolAttrs",
	Infer: func(in []*Value, attrs any) ([]Type, error) {
		a, err := attrsAs[PoolAttrs](attrs)
		if err := all(err, arity(in, "dy")); err != nil {
			return nil, err
		}
		return inferPoolGrad(in[0], a)
	},
})

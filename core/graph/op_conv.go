package graph

import (
	"fmt"
	"math"

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
	Grad: gradConv2D,
	Ref:  refConv2D,
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
	Ref:  refConv2DGradX,
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
	Ref:  refConv2DGradW,
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

// OpConv2DGradWWide is OpConv2DGradW with a sum in fp32 whatever the type of the operands.
var OpConv2DGradWWide = register(Op{
	Name: "conv2d_grad_w_wide",
	Doc:  "(dy[N,O,OH,OW], x[N,C,H,W]) -> dw f32[O,C/Groups,KH,KW]: conv2d_grad_w, never rounded to the operands' type",
	Ref:  refConv2DGradW,
	Infer: func(in []*Value, attrs any) ([]Type, error) {
		types, err := ops["conv2d_grad_w"].Infer(in, attrs)
		if err != nil {
			return nil, err
		}
		types[0].DType = tensor.F32
		return types, nil
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
	Grad: gradMaxPool,
	Ref:  refMaxPool,
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
	Ref:  refMaxPoolGrad,
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
	Doc:   "(x[N,C,H,W]) -> y[N,C,OH,OW]: the sum of each window divided by KH*KW, padding counted as zeros",
	Grad:  gradAvgPool,
	Ref:   refAvgPool,
	Infer: inferPool,
})

// OpAvgPoolGrad is the gradient of OpAvgPool.
var OpAvgPoolGrad = register(Op{
	Name: "avg_pool_grad",
	Doc:  "(dy[N,C,OH,OW]) -> dx[N,C,H,W]: dy/(KH*KW) added to each element of its window, windows in ascending order; H and W from PoolAttrs",
	Ref:  refAvgPoolGrad,
	Infer: func(in []*Value, attrs any) ([]Type, error) {
		a, err := attrsAs[PoolAttrs](attrs)
		if err := all(err, arity(in, "dy")); err != nil {
			return nil, err
		}
		return inferPoolGrad(in[0], a)
	},
})

func gradConv2D(b *Builder, n *Node, dout []*Value) []*Value {
	x, w, dy := n.In[0], n.In[1], dout[0]
	ax, aw := n.Attrs.(ConvAttrs), n.Attrs.(ConvAttrs)
	ax.H, ax.W = x.Shape[2], x.Shape[3]
	aw.H, aw.W = w.Shape[2], w.Shape[3]
	din := []*Value{b.do("conv2d_grad_x", ax, dy, w), b.do("conv2d_grad_w", aw, dy, x)}
	if len(n.In) == 3 {
		din = append(din, b.do("sum", ReduceAttrs{Axes: MakeDims([]int{0, 2, 3})}, dy))
	}
	return din
}

// each calls f with the places in y, x and w of every product that a convolution adds.
func (a ConvAttrs) each(y, x, w tensor.Shape, f func(y, x, w int)) {
	outs, ins := w[0]/a.Groups, w[1]
	for n := range y[0] {
		for o := range y[1] {
			for oh := range y[2] {
				for ow := range y[3] {
					yi := ((n*y[1]+o)*y[2]+oh)*y[3] + ow
					for c := range ins {
						for kh := range w[2] {
							for kw := range w[3] {
								h, v := oh*a.StrideH-a.PadH+kh*a.DilationH, ow*a.StrideW-a.PadW+kw*a.DilationW
								if h < 0 || h >= x[2] || v < 0 || v >= x[3] {
									continue
								}
								f(yi, ((n*x[1]+o/outs*ins+c)*x[2]+h)*x[3]+v, ((o*ins+c)*w[2]+kh)*w[3]+kw)
							}
						}
					}
				}
			}
		}
	}
}

func refConv2D(n *Node, in []*Array) []*Array {
	x, w, y := in[0], in[1], NewArray(n.Out[0].Type)
	n.Attrs.(ConvAttrs).each(y.Shape, x.Shape, w.Shape, func(yi, xi, wi int) { y.Data[yi] += x.Data[xi] * w.Data[wi] })
	if len(in) == 3 {
		plane := y.Shape[2] * y.Shape[3]
		for i := range y.Data {
			y.Data[i] += in[2].Data[i/plane%y.Shape[1]]
		}
	}
	return []*Array{y}
}

func refConv2DGradX(n *Node, in []*Array) []*Array {
	dy, w, dx := in[0], in[1], NewArray(n.Out[0].Type)
	n.Attrs.(ConvAttrs).each(dy.Shape, dx.Shape, w.Shape, func(yi, xi, wi int) { dx.Data[xi] += dy.Data[yi] * w.Data[wi] })
	return []*Array{dx}
}

func refConv2DGradW(n *Node, in []*Array) []*Array {
	dy, x, dw := in[0], in[1], NewArray(n.Out[0].Type)
	n.Attrs.(ConvAttrs).each(dy.Shape, x.Shape, dw.Shape, func(yi, xi, wi int) { dw.Data[wi] += dy.Data[yi] * x.Data[xi] })
	return []*Array{dw}
}

func gradMaxPool(b *Builder, n *Node, dout []*Value) []*Value {
	return []*Value{b.do("max_pool_grad", n.Attrs.(PoolAttrs).over(n.In[0]), dout[0], n.Out[1])}
}

func gradAvgPool(b *Builder, n *Node, dout []*Value) []*Value {
	return []*Value{b.do("avg_pool_grad", n.Attrs.(PoolAttrs).over(n.In[0]), dout[0])}
}

// over records the extent of the input for the gradient.
func (a PoolAttrs) over(x *Value) PoolAttrs {
	a.H, a.W = x.Shape[2], x.Shape[3]
	return a
}

// each calls f with the place in y and the place in x of every element of every window, and
// that element's index in its plane.
func (a PoolAttrs) each(y, x tensor.Shape, f func(y, x, index int)) {
	for plane := range y[0] * y[1] {
		for oh := range y[2] {
			for ow := range y[3] {
				for h := max(0, oh*a.StrideH-a.PadH); h < min(x[2], oh*a.StrideH-a.PadH+a.KH); h++ {
					for w := max(0, ow*a.StrideW-a.PadW); w < min(x[3], ow*a.StrideW-a.PadW+a.KW); w++ {
						f((plane*y[2]+oh)*y[3]+ow, (plane*x[2]+h)*x[3]+w, h*x[3]+w)
					}
				}
			}
		}
	}
}

func refMaxPool(n *Node, in []*Array) []*Array {
	x, y, index := in[0], NewArray(n.Out[0].Type), NewArray(n.Out[1].Type)
	for i := range index.Data {
		index.Data[i] = -1
	}
	n.Attrs.(PoolAttrs).each(y.Shape, x.Shape, func(yi, xi, i int) {
		v, best := x.Data[xi], y.Data[yi]
		if index.Data[yi] < 0 || v > best || math.IsNaN(v) && !math.IsNaN(best) {
			y.Data[yi], index.Data[yi] = v, float64(i)
		}
	})
	return []*Array{y, index}
}

func refMaxPoolGrad(n *Node, in []*Array) []*Array {
	dy, index, dx := in[0], in[1], NewArray(n.Out[0].Type)
	from, to := dy.Shape[2]*dy.Shape[3], dx.Shape[2]*dx.Shape[3]
	for i, v := range dy.Data {
		dx.Data[i/from*to+int(index.Data[i])] += v
	}
	return []*Array{dx}
}

func refAvgPool(n *Node, in []*Array) []*Array {
	x, y, a := in[0], NewArray(n.Out[0].Type), n.Attrs.(PoolAttrs)
	a.each(y.Shape, x.Shape, func(yi, xi, _ int) { y.Data[yi] += x.Data[xi] / float64(a.KH*a.KW) })
	return []*Array{y}
}

func refAvgPoolGrad(n *Node, in []*Array) []*Array {
	dy, dx, a := in[0], NewArray(n.Out[0].Type), n.Attrs.(PoolAttrs)
	a.each(dy.Shape, dx.Shape, func(yi, xi, _ int) { dx.Data[xi] += dy.Data[yi] / float64(a.KH*a.KW) })
	return []*Array{dx}
}

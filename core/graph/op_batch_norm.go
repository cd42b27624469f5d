package graph

import (
	"fmt"
	"math"

	"starling/core/tensor"
)

// Normalisation of each channel over the batch (Ioffe and Szegedy, 2015), x[N,C,…]. Statistics are f32 and those of the micro-batch, so a
// micro-batch gives the same result wherever it runs. The averages that evaluation uses are buffers, see ParamAttrs.Buffer.

// OpBatchNorm is batch normalisation while training.
var OpBatchNorm = register(Op{
	Name: "batch_norm",
	Doc: "(x[N,C,…], w[C], b[C], mean[C], variance[C]) -> y[N,C,…], stats f32[C,2], mean f32[C], variance f32[C]: (x - mean) * rstd * w + b over all but " +
		"the second dimension, rstd = 1/sqrt(variance + Eps) with the biased variance; stats holds mean and rstd of each channel; the last two results are " +
		"the mean and the unbiased variance, which stand for the gradients of the buffers mean and variance. Their values are not read",
	Grad: gradBatchNorm,
	Ref:  refBatchNorm,
	Infer: func(in []*Value, attrs any) ([]Type, error) {
		c, err := inferBatchNorm(in, attrs)
		if err != nil {
			return nil, err
		}
		x := in[0]
		if n := x.Shape.Numel() / c; n < 2 {
			return nil, fmt.Errorf("x %v has one element for each channel, which is its own mean: batch normalisation needs two or more", x.Shape)
		}
		each := Type{tensor.F32, tensor.Shape{c}}
		return []Type{x.Type, {tensor.F32, tensor.Shape{c, 2}}, each, each}, nil
	},
})

// OpBatchNormFixed is batch normalisation with given statistics, for evaluation.
var OpBatchNormFixed = register(Op{
	Name: "batch_norm_fixed",
	Doc:  "(x[N,C,…], w[C], b[C], mean[C], variance[C]) -> y[N,C,…]: (x - mean) / sqrt(variance + Eps) * w + b",
	Ref:  refBatchNormFixed,
	Infer: func(in []*Value, attrs any) ([]Type, error) {
		if _, err := inferBatchNorm(in, attrs); err != nil {
			return nil, err
		}
		return []Type{in[0].Type}, nil
	},
})

// OpBatchNormGrad is the gradient of OpBatchNorm.
var OpBatchNormGrad = register(Op{
	Name: "batch_norm_grad",
	Doc: "(dy[N,C,…], x[N,C,…], w[C], stats f32[C,2]) -> dx[N,C,…], dw[C], db[C]; with h = (x - mean) * rstd: dw = sum of dy*h and db = sum of dy over a channel " +
		"of M elements, dx = w * rstd * (dy - db/M - h * dw/M)",
	Ref: refBatchNormGrad,
	Infer: func(in []*Value, attrs any) ([]Type, error) {
		if err := arity(in, "dy", "x", "w", "stats"); err != nil {
			return nil, err
		}
		x := in[1]
		c, err := channels(x)
		if err := all(floats(in[:3]...), ofDType("stats", in[3], tensor.F32), err); err != nil {
			return nil, err
		}
		return []Type{x.Type, in[2].Type, in[2].Type}, all(ofShape("dy", in[0], x.Shape...), ofShape("w", in[2], c), ofShape("stats", in[3], c, 2))
	},
})

// OpAverage moves a buffer towards what one step has seen.
var OpAverage = register(Op{
	Name:    "average",
	Doc:     "(buffer[…] f32, sum[…] f32) -> buffer[…]: buffer + Rate * (sum*Weight - buffer), each operation rounded, in place",
	InPlace: true,
	Ref: func(n *Node, in []*Array) []*Array {
		a, y := n.Attrs.(AverageAttrs), NewArray(n.Out[0].Type)
		for i, v := range in[0].Data {
			y.Data[i] = v + a.Rate*(in[1].Data[i]*a.Weight-v)
		}
		return []*Array{y}
	},
	Infer: func(in []*Value, attrs any) ([]Type, error) {
		_, err := attrsAs[AverageAttrs](attrs)
		if err := all(err, arity(in, "buffer", "sum")); err != nil {
			return nil, err
		}
		return []Type{in[0].Type}, all(ofDType("buffer", in[0], tensor.F32), ofDType("sum", in[1], tensor.F32), ofShape("sum", in[1], in[0].Shape...))
	},
})

// channels is the extent of the second dimension.
func channels(x *Value) (int, error) {
	if len(x.Shape) < 2 {
		return 0, fmt.Errorf("x %v must have at least two dimensions, [batch, channels, …]", x.Shape)
	}
	return x.Shape[1], nil
}

func inferBatchNorm(in []*Value, attrs any) (int, error) {
	_, err := attrsAs[NormAttrs](attrs)
	if err := all(err, arity(in, "x", "w", "b", "mean", "variance")); err != nil {
		return 0, err
	}
	c, err := channels(in[0])
	if err := all(err, floats(in...)); err != nil {
		return 0, err
	}
	return c, all(ofShape("w", in[1], c), ofShape("b", in[2], c), ofShape("mean", in[3], c), ofShape("variance", in[4], c))
}

func gradBatchNorm(b *Builder, n *Node, dout []*Value) []*Value {
	return append(b.Must(OpBatchNormGrad, nil, dout[0], n.In[0], n.In[1], n.Out[1]), n.Out[2], n.Out[3])
}

// ofChannel calls f with the places of a channel's elements.
func ofChannel(x tensor.Shape, c int, f func(i int)) {
	plane := tensor.Shape(x[2:]).Numel()
	for n := range x[0] {
		for k := range plane {
			f((n*x[1]+c)*plane + k)
		}
	}
}

func refBatchNorm(n *Node, in []*Array) []*Array {
	x, w, b := in[0], in[1], in[2]
	y, stats, mean, variance := NewArray(n.Out[0].Type), NewArray(n.Out[1].Type), NewArray(n.Out[2].Type), NewArray(n.Out[3].Type)
	m := float64(len(x.Data) / x.Shape[1])
	for c := range x.Shape[1] {
		mu, squares := 0.0, 0.0
		ofChannel(x.Shape, c, func(i int) { mu += x.Data[i] / m })
		ofChannel(x.Shape, c, func(i int) { squares += (x.Data[i] - mu) * (x.Data[i] - mu) })
		rstd := 1 / math.Sqrt(squares/m+n.Attrs.(NormAttrs).Eps)
		ofChannel(x.Shape, c, func(i int) { y.Data[i] = (x.Data[i]-mu)*rstd*w.Data[c] + b.Data[c] })
		stats.Data[2*c], stats.Data[2*c+1] = mu, rstd
		mean.Data[c], variance.Data[c] = mu, squares/(m-1)
	}
	return []*Array{y, stats, mean, variance}
}

func refBatchNormFixed(n *Node, in []*Array) []*Array {
	x, w, b, mean, variance := in[0], in[1], in[2], in[3], in[4]
	y := NewArray(n.Out[0].Type)
	for c := range x.Shape[1] {
		rstd := 1 / math.Sqrt(variance.Data[c]+n.Attrs.(NormAttrs).Eps)
		ofChannel(x.Shape, c, func(i int) { y.Data[i] = (x.Data[i]-mean.Data[c])*rstd*w.Data[c] + b.Data[c] })
	}
	return []*Array{y}
}

func refBatchNormGrad(n *Node, in []*Array) []*Array {
	dy, x, w, stats := in[0], in[1], in[2], in[3]
	dx, dw, db := NewArray(n.Out[0].Type), NewArray(n.Out[1].Type), NewArray(n.Out[2].Type)
	m := float64(len(x.Data) / x.Shape[1])
	for c := range x.Shape[1] {
		mean, rstd := stats.Data[2*c], stats.Data[2*c+1]
		ofChannel(x.Shape, c, func(i int) {
			dw.Data[c] += dy.Data[i] * (x.Data[i] - mean) * rstd
			db.Data[c] += dy.Data[i]
		})
		ofChannel(x.Shape, c, func(i int) {
			dx.Data[i] = w.Data[c] * rstd * (dy.Data[i] - db.Data[c]/m - (x.Data[i]-mean)*rstd*dw.Data[c]/m)
		})
	}
	return []*Array{dx, dw, db}
}

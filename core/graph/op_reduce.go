package graph

import (
	"fmt"
	"math"
	"slices"

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
	Grad:  gradSum,
	Ref:   refSum,
	Infer: inferReduce,
})

// OpMean averages over the given dimensions.
var OpMean = register(Op{
	Name:  "mean",
	Doc:   "(x) -> y: the mean over the dimensions Axes; Keep leaves them as 1",
	Grad:  gradMean,
	Ref:   refMean,
	Infer: inferReduce,
})

// OpMax takes the maximum over the given dimensions.
var OpMax = register(Op{
	Name:  "max",
	Doc:   "(x) -> y: the maximum over the dimensions Axes, NaN if one is NaN; Keep leaves them as 1",
	Grad:  gradMax,
	Ref:   refMax,
	Infer: inferReduce,
})

// OpMaxGrad is the gradient of OpMax.
var OpMaxGrad = register(Op{
	Name: "max_grad",
	Doc:  "(x, y, dy) -> dx: dy at the first element (row-major) of each reduced group that equals the maximum y, else 0",
	Ref:  refMaxGrad,
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
	Grad:  gradSoftmax,
	Ref:   refSoftmax,
	Infer: inferLast,
})

// OpSoftmaxGrad is the gradient of OpSoftmax.
var OpSoftmaxGrad = register(Op{
	Name:  "softmax_grad",
	Doc:   "(y[...,C], dy) -> dx: y * (dy - sum(y*dy)), the sum over the last dimension",
	Ref:   refSoftmaxGrad,
	Infer: inferLastGrad,
})

// OpLogSoftmax is the logarithm of OpSoftmax.
var OpLogSoftmax = register(Op{
	Name:  "log_softmax",
	Doc:   "(x[...,C]) -> y: x - max - log(sum e^(x-max)) over the last dimension",
	Grad:  gradLogSoftmax,
	Ref:   refLogSoftmax,
	Infer: inferLast,
})

// OpLogSoftmaxGrad is the gradient of OpLogSoftmax.
var OpLogSoftmaxGrad = register(Op{
	Name:  "log_softmax_grad",
	Doc:   "(y[...,C], dy) -> dx: dy - e^y * sum(dy), the sum over the last dimension",
	Ref:   refLogSoftmaxGrad,
	Infer: inferLastGrad,
})

// OpArgmax finds the maximum of each row.
var OpArgmax = register(Op{
	Name: "argmax",
	Doc:  "(x[...,C]) -> i i32[...]: the index of the first maximum of the last dimension (of the first NaN, if there is one); no gradient",
	Ref:  refArgmax,
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

// stretch undoes a reduction's change of shape: y repeated over the dimensions that were reduced.
func (b *Builder) stretch(y *Value, a ReduceAttrs, to tensor.Shape) *Value {
	kept, _ := ReduceAttrs{Axes: a.Axes, Keep: true}.reduce(to)
	if !withoutLeadingOnes(kept).Equal(withoutLeadingOnes(y.Shape)) { // broadcasting adds those by itself
		y = b.reshape(y, kept)
	}
	return b.broadcast(y, to)
}

func withoutLeadingOnes(s tensor.Shape) tensor.Shape {
	for len(s) > 0 && s[0] == 1 {
		s = s[1:]
	}
	return s
}

func gradSum(b *Builder, n *Node, dout []*Value) []*Value {
	return []*Value{b.stretch(dout[0], n.Attrs.(ReduceAttrs), n.In[0].Shape)}
}

func gradMean(b *Builder, n *Node, dout []*Value) []*Value {
	x, y := n.In[0].Shape, n.Out[0].Shape
	dy := b.scale(dout[0], float64(y.Numel())/float64(x.Numel()))
	return []*Value{b.stretch(dy, n.Attrs.(ReduceAttrs), x)}
}

func gradMax(b *Builder, n *Node, dout []*Value) []*Value {
	return []*Value{b.do("max_grad", n.Attrs, n.In[0], n.Out[0], dout[0])}
}

// reducedIndex returns the map from an element of x to the element of the reduction it goes to.
func reducedIndex(a ReduceAttrs, x tensor.Shape) func(int) int {
	kept, _ := ReduceAttrs{Axes: a.Axes, Keep: true}.reduce(x)
	return broadcastIndex(kept, x)
}

func refSum(n *Node, in []*Array) []*Array {
	y := NewArray(n.Out[0].Type)
	index := reducedIndex(n.Attrs.(ReduceAttrs), in[0].Shape)
	for i, x := range in[0].Data {
		y.Data[index(i)] += x
	}
	return []*Array{y}
}

func refMean(n *Node, in []*Array) []*Array {
	y := refSum(n, in)
	for i := range y[0].Data {
		y[0].Data[i] /= float64(len(in[0].Data) / len(y[0].Data))
	}
	return y
}

func refMax(n *Node, in []*Array) []*Array {
	y := NewArray(n.Out[0].Type)
	for i := range y.Data {
		y.Data[i] = math.Inf(-1)
	}
	index := reducedIndex(n.Attrs.(ReduceAttrs), in[0].Shape)
	for i, x := range in[0].Data {
		y.Data[index(i)] = max(y.Data[index(i)], x)
	}
	return []*Array{y}
}

func refMaxGrad(n *Node, in []*Array) []*Array {
	x, y, dy := in[0], in[1], in[2]
	dx := NewArray(x.Type)
	index := reducedIndex(n.Attrs.(ReduceAttrs), x.Shape)
	done := make([]bool, len(y.Data))
	for i, v := range x.Data {
		if j := index(i); !done[j] && v == y.Data[j] {
			done[j] = true
			dx.Data[i] = dy.Data[j]
		}
	}
	return []*Array{dx}
}

// refRows computes the one result of an operation row by row: f fills row y from the same row of each input.
func refRows(f func(y []float64, in ...[]float64)) func(n *Node, in []*Array) []*Array {
	return func(n *Node, in []*Array) []*Array {
		y := NewArray(n.Out[0].Type)
		c, rows := lastAndRows(y.Shape)
		row := make([][]float64, len(in))
		for r := range rows {
			for i, x := range in {
				row[i] = x.Data[r*c:][:c]
			}
			f(y.Data[r*c:][:c], row...)
		}
		return []*Array{y}
	}
}

// logSumExp is the logarithm of the sum of exponentials of a row.
func logSumExp(x []float64) float64 {
	m := slices.Max(x)
	if math.IsInf(m, 0) {
		return m
	}
	s := 0.0
	for _, v := range x {
		s += math.Exp(v - m)
	}
	return m + math.Log(s)
}

func dot(x, y []float64) float64 {
	s := 0.0
	for i, v := range x {
		s += v * y[i]
	}
	return s
}

var refSoftmax = refRows(func(y []float64, in ...[]float64) {
	m := slices.Max(in[0])
	s := 0.0
	for i, v := range in[0] {
		y[i] = math.Exp(v - m)
		s += y[i]
	}
	for i := range y {
		y[i] /= s
	}
})

var refSoftmaxGrad = refRows(func(dx []float64, in ...[]float64) {
	y, dy := in[0], in[1]
	s := dot(y, dy)
	for i := range dx {
		dx[i] = y[i] * (dy[i] - s)
	}
})

var refLogSoftmax = refRows(func(y []float64, in ...[]float64) {
	lse := logSumExp(in[0])
	for i, v := range in[0] {
		y[i] = v - lse
	}
})

var refLogSoftmaxGrad = refRows(func(dx []float64, in ...[]float64) {
	y, dy := in[0], in[1]
	s := 0.0
	for _, v := range dy {
		s += v
	}
	for i := range dx {
		dx[i] = dy[i] - math.Exp(y[i])*s
	}
})

func gradSoftmax(b *Builder, n *Node, dout []*Value) []*Value {
	return []*Value{b.do("softmax_grad", nil, n.Out[0], dout[0])}
}

func gradLogSoftmax(b *Builder, n *Node, dout []*Value) []*Value {
	return []*Value{b.do("log_softmax_grad", nil, n.Out[0], dout[0])}
}

func refArgmax(n *Node, in []*Array) []*Array {
	y := NewArray(n.Out[0].Type)
	c, _ := lastAndRows(in[0].Shape)
	for r := range y.Data {
		best := 0
		for i, v := range in[0].Data[r*c:][:c] {
			b := in[0].Data[r*c+best]
			if v > b || math.IsNaN(v) && !math.IsNaN(b) {
				best = i
			}
		}
		y.Data[r] = float64(best)
	}
	return []*Array{y}
}

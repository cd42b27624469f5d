package graph

import (
	"fmt"
	"slices"

	"starling/core/tensor"
)

// Operations that move elements without arithmetic, and the two sides of broadcasting.

// OpReshape gives a value another shape.
var OpReshape = register(Op{
	Name: "reshape",
	Doc:  "(x) -> y: the same elements in row-major order under the shape in ShapeAttrs",
	View: true,
	Grad: gradReshape,
	Ref:  refCopy,
	Infer: func(in []*Value, attrs any) ([]Type, error) {
		a, err := attrsAs[ShapeAttrs](attrs)
		if err := all(err, arity(in, "x")); err != nil {
			return nil, err
		}
		s, err := a.Shape.shape()
		if err != nil {
			return nil, err
		}
		if s.Numel() != in[0].Shape.Numel() {
			return nil, fmt.Errorf("cannot reshape %v to %v: %d elements against %d", in[0].Shape, s, in[0].Shape.Numel(), s.Numel())
		}
		return one(in[0].DType, s...), nil
	},
})

// OpStopGradient is the identity that no gradient passes.
var OpStopGradient = register(Op{
	Name: "stop_gradient",
	Doc:  "(x) -> x: no gradient flows into x",
	View: true,
	Ref:  refCopy,
	Infer: func(in []*Value, attrs any) ([]Type, error) {
		if err := arity(in, "x"); err != nil {
			return nil, err
		}
		return []Type{in[0].Type}, nil
	},
})

// OpTranspose permutes dimensions.
var OpTranspose = register(Op{
	Name: "transpose",
	Doc:  "(x) -> y: dimension i of y is dimension Perm[i] of x",
	Grad: gradTranspose,
	Ref:  refTranspose,
	Infer: func(in []*Value, attrs any) ([]Type, error) {
		a, err := attrsAs[PermAttrs](attrs)
		if err := all(err, arity(in, "x")); err != nil {
			return nil, err
		}
		x := in[0]
		if a.Perm.N != len(x.Shape) {
			return nil, fmt.Errorf("cannot transpose %v by a permutation of %d dimensions", x.Shape, a.Perm.N)
		}
		perm := a.Perm.Slice()
		sorted := slices.Sorted(slices.Values(perm))
		out := make(tensor.Shape, len(perm))
		for i, p := range perm {
			if sorted[i] != i {
				return nil, fmt.Errorf("cannot transpose %v by %v: it is no permutation of its dimensions", x.Shape, perm)
			}
			out[i] = x.Shape[p]
		}
		return one(x.DType, out...), nil
	},
})

// OpSlice takes a range of one dimension.
var OpSlice = register(Op{
	Name: "slice",
	Doc:  "(x) -> y: elements Start to End-1 of dimension Axis; Size, where not 0, must be its extent in x",
	Grad: gradSlice,
	Ref:  refSlice,
	Infer: func(in []*Value, attrs any) ([]Type, error) {
		a, err := attrsAs[SliceAttrs](attrs)
		if err := all(err, arity(in, "x")); err != nil {
			return nil, err
		}
		x := in[0].Shape
		if a.Axis < 0 || a.Axis >= len(x) {
			return nil, fmt.Errorf("%v has no dimension %d", x, a.Axis)
		}
		size := x[a.Axis]
		if a.Start < 0 || a.End > size || a.Start >= a.End || a.Size != 0 && a.Size != size {
			return nil, fmt.Errorf("cannot slice [%d, %d) from dimension %d of %v", a.Start, a.End, a.Axis, x)
		}
		s := x.Clone()
		s[a.Axis] = a.End - a.Start
		return one(in[0].DType, s...), nil
	},
})

// OpPadSlice is the gradient of OpSlice.
var OpPadSlice = register(Op{
	Name: "pad_slice",
	Doc:  "(dy) -> dx: zeros of extent Size in dimension Axis, with dy at Start to End-1",
	Grad: gradPadSlice,
	Ref:  refPadSlice,
	Infer: func(in []*Value, attrs any) ([]Type, error) {
		a, err := attrsAs[SliceAttrs](attrs)
		if err := all(err, arity(in, "dy")); err != nil {
			return nil, err
		}
		s := in[0].Shape.Clone()
		if a.Axis < 0 || a.Axis >= len(s) {
			return nil, fmt.Errorf("%v has no dimension %d", s, a.Axis)
		}
		if a.Start < 0 || a.End > a.Size || a.End-a.Start != s[a.Axis] {
			return nil, fmt.Errorf("cannot put %v at [%d, %d) of dimension %d of extent %d", s, a.Start, a.End, a.Axis, a.Size)
		}
		s[a.Axis] = a.Size
		return one(in[0].DType, s...), nil
	},
})

// OpConcat joins values along one dimension.
var OpConcat = register(Op{
	Name: "concat",
	Doc:  "(x0, x1, ...) -> y: the inputs one after another along dimension Axis; the other dimensions agree",
	Grad: gradConcat,
	Ref:  refConcat,
	Infer: func(in []*Value, attrs any) ([]Type, error) {
		a, err := attrsAs[AxisAttrs](attrs)
		if err != nil {
			return nil, err
		}
		if len(in) == 0 {
			return nil, fmt.Errorf("needs at least one input")
		}
		s := in[0].Shape.Clone()
		if a.Axis < 0 || a.Axis >= len(s) {
			return nil, fmt.Errorf("%v has no dimension %d", s, a.Axis)
		}
		for _, x := range in[1:] {
			ok := len(x.Shape) == len(s) && x.DType == in[0].DType
			for d := 0; ok && d < len(s); d++ {
				ok = d == a.Axis || x.Shape[d] == s[d]
			}
			if !ok {
				return nil, fmt.Errorf("cannot join %v and %v along dimension %d", in[0].Type, x.Type, a.Axis)
			}
			s[a.Axis] += x.Shape[a.Axis]
		}
		return one(in[0].DType, s...), nil
	},
})

// OpBroadcastTo stretches a value to a larger shape.
var OpBroadcastTo = register(Op{
	Name: "broadcast_to",
	Doc:  "(x) -> y: x repeated by NumPy's rule to the shape in ShapeAttrs",
	Grad: gradBroadcastTo,
	Ref:  refBroadcastTo,
	Infer: func(in []*Value, attrs any) ([]Type, error) {
		a, err := attrsAs[ShapeAttrs](attrs)
		if err := all(err, arity(in, "x")); err != nil {
			return nil, err
		}
		s, err := a.Shape.shape()
		if err != nil {
			return nil, err
		}
		if b, err := tensor.Broadcast(in[0].Shape, s); err != nil || !b.Equal(s) {
			return nil, fmt.Errorf("cannot broadcast %v to %v", in[0].Shape, s)
		}
		return one(in[0].DType, s...), nil
	},
})

// OpSumTo is the gradient of broadcasting.
var OpSumTo = register(Op{
	Name: "sum_to",
	Doc:  "(x) -> y of the shape in ShapeAttrs, which broadcasts to x's: the sum over every dimension that was stretched, ascending",
	Grad: gradSumTo,
	Ref:  refSumTo,
	Infer: func(in []*Value, attrs any) ([]Type, error) {
		a, err := attrsAs[ShapeAttrs](attrs)
		if err := all(err, arity(in, "x")); err != nil {
			return nil, err
		}
		s, err := a.Shape.shape()
		if err != nil {
			return nil, err
		}
		if b, err := tensor.Broadcast(in[0].Shape, s); err != nil || !b.Equal(in[0].Shape) {
			return nil, fmt.Errorf("cannot sum %v to %v: %v does not broadcast to it", in[0].Shape, s, s)
		}
		return one(in[0].DType, s...), floats(in...)
	},
})

// around returns how many elements lie outside and inside dimension axis of a shape: an element's place is
// (outer * extent + index) * inner + rest.
func around(s tensor.Shape, axis int) (outer, inner int) {
	return s[:axis].Numel(), s[axis+1:].Numel()
}

func refCopy(n *Node, in []*Array) []*Array {
	y := NewArray(n.Out[0].Type)
	copy(y.Data, in[0].Data)
	return []*Array{y}
}

func gradReshape(b *Builder, n *Node, dout []*Value) []*Value {
	return []*Value{b.reshape(dout[0], n.In[0].Shape)}
}

func (b *Builder) reshape(x *Value, to tensor.Shape) *Value {
	if x.Shape.Equal(to) {
		return x
	}
	return b.do("reshape", ShapeAttrs{MakeDims(to)}, x)
}

func gradTranspose(b *Builder, n *Node, dout []*Value) []*Value {
	perm := n.Attrs.(PermAttrs).Perm
	inverse := perm
	for i, p := range perm.Slice() {
		inverse.D[p] = i
	}
	return []*Value{b.do("transpose", PermAttrs{inverse}, dout[0])}
}

func refTranspose(n *Node, in []*Array) []*Array {
	y := NewArray(n.Out[0].Type)
	perm := n.Attrs.(PermAttrs).Perm.Slice()
	from, to := in[0].Shape.Strides(), y.Shape.Strides()
	for i := range y.Data {
		j, rest := 0, i
		for d, p := range perm {
			c := rest / to[d]
			rest -= c * to[d]
			j += c * from[p]
		}
		y.Data[i] = in[0].Data[j]
	}
	return []*Array{y}
}

func gradSlice(b *Builder, n *Node, dout []*Value) []*Value {
	a := n.Attrs.(SliceAttrs)
	a.Size = n.In[0].Shape[a.Axis]
	return []*Value{b.do("pad_slice", a, dout[0])}
}

func refSlice(n *Node, in []*Array) []*Array {
	y, a := NewArray(n.Out[0].Type), n.Attrs.(SliceAttrs)
	outer, inner := around(y.Shape, a.Axis)
	size, width := in[0].Shape[a.Axis], (a.End-a.Start)*inner
	for o := range outer {
		copy(y.Data[o*width:][:width], in[0].Data[(o*size+a.Start)*inner:])
	}
	return []*Array{y}
}

func gradPadSlice(b *Builder, n *Node, dout []*Value) []*Value {
	return []*Value{b.do("slice", n.Attrs, dout[0])}
}

func refPadSlice(n *Node, in []*Array) []*Array {
	x, a := NewArray(n.Out[0].Type), n.Attrs.(SliceAttrs)
	outer, inner := around(x.Shape, a.Axis)
	width := (a.End - a.Start) * inner
	for o := range outer {
		copy(x.Data[(o*a.Size+a.Start)*inner:], in[0].Data[o*width:][:width])
	}
	return []*Array{x}
}

func gradConcat(b *Builder, n *Node, dout []*Value) []*Value {
	axis := n.Attrs.(AxisAttrs).Axis
	din := make([]*Value, len(n.In))
	at := 0
	for i, x := range n.In {
		end := at + x.Shape[axis]
		din[i] = b.do("slice", SliceAttrs{Axis: axis, Start: at, End: end, Size: dout[0].Shape[axis]}, dout[0])
		at = end
	}
	return din
}

func refConcat(n *Node, in []*Array) []*Array {
	y, axis := NewArray(n.Out[0].Type), n.Attrs.(AxisAttrs).Axis
	outer, inner := around(y.Shape, axis)
	at := 0
	for _, x := range in {
		width := x.Shape[axis] * inner
		for o := range outer {
			copy(y.Data[o*y.Shape[axis]*inner+at:], x.Data[o*width:][:width])
		}
		at += width
	}
	return []*Array{y}
}

func gradBroadcastTo(b *Builder, n *Node, dout []*Value) []*Value {
	return []*Value{b.unbroadcast(dout[0], n.In[0].Shape)}
}

func refBroadcastTo(n *Node, in []*Array) []*Array {
	y := NewArray(n.Out[0].Type)
	index := broadcastIndex(in[0].Shape, y.Shape)
	for i := range y.Data {
		y.Data[i] = in[0].Data[index(i)]
	}
	return []*Array{y}
}

func gradSumTo(b *Builder, n *Node, dout []*Value) []*Value {
	return []*Value{b.broadcast(dout[0], n.In[0].Shape)}
}

func (b *Builder) broadcast(x *Value, to tensor.Shape) *Value {
	if x.Shape.Equal(to) {
		return x
	}
	return b.do("broadcast_to", ShapeAttrs{MakeDims(to)}, x)
}

func refSumTo(n *Node, in []*Array) []*Array {
	y := NewArray(n.Out[0].Type)
	index := broadcastIndex(y.Shape, in[0].Shape)
	for i, x := range in[0].Data {
		y.Data[index(i)] += x
	}
	return []*Array{y}
}

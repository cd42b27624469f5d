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

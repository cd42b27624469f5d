package graph

import (
	"fmt"

	"starling/core/tensor"
)

// Operations without inputs: where values come from.

// OpInput is a value given anew for every run.
var OpInput = register(Op{
	Name: "input",
	Doc:  "() -> x: the value that the host gives for each run, of the type in InputAttrs",
	Infer: func(in []*Value, attrs any) ([]Type, error) {
		a, err := attrsAs[InputAttrs](attrs)
		if err := all(err, arity(in)); err != nil {
			return nil, err
		}
		if a.Name == "" {
			return nil, fmt.Errorf("an input needs a name")
		}
		s, err := a.Shape.shape()
		return one(a.DType, s...), err
	},
})

// OpParam is a trainable parameter.
var OpParam = register(Op{
	Name: "param",
	Doc:  "() -> w f32: a trainable parameter of the shape in ParamAttrs; see InitValues for its first value",
	Infer: func(in []*Value, attrs any) ([]Type, error) {
		a, err := attrsAs[ParamAttrs](attrs)
		if err := all(err, arity(in)); err != nil {
			return nil, err
		}
		if a.Name == "" {
			return nil, fmt.Errorf("a parameter needs a name")
		}
		s, err := a.Shape.shape()
		return one(tensor.F32, s...), err
	},
})

// OpConst is a constant tensor.
var OpConst = register(Op{
	Name: "const",
	Doc:  "() -> x f32: every element equal to Value, of the shape in FullAttrs",
	Ref:  refConst,
	Infer: func(in []*Value, attrs any) ([]Type, error) {
		a, err := attrsAs[FullAttrs](attrs)
		if err := all(err, arity(in)); err != nil {
			return nil, err
		}
		s, err := a.Shape.shape()
		return one(tensor.F32, s...), err
	},
})

func refConst(n *Node, _ []*Array) []*Array {
	y := NewArray(n.Out[0].Type)
	for i := range y.Data {
		y.Data[i] = n.Attrs.(FullAttrs).Value
	}
	return []*Array{y}
}

package graph

import (
	"fmt"
	"strings"

	"starling/core/tensor"
)

// maxElements bounds the elements of one value. It keeps products of hostile sizes far from overflow;
// what a machine can really hold is the memory plan's business.
const maxElements = 1 << 40

// checkType refuses types that no value may have.
func checkType(t Type) error {
	if t.DType < tensor.F32 || t.DType > tensor.U8 {
		return fmt.Errorf("the element type %v is not one that values can have", t.DType)
	}
	return checkShape(t.Shape)
}

func checkShape(s tensor.Shape) error {
	if len(s) > maxDims {
		return fmt.Errorf("%v has %d dimensions: at most %d are possible", s, len(s), maxDims)
	}
	n := 1
	for i, d := range s {
		if d < 1 {
			return fmt.Errorf("dimension %d of %v is %d: every dimension is at least 1", i, s, d)
		}
		if d > maxElements/n {
			return fmt.Errorf("%v has more than 2^40 elements", s)
		}
		n *= d
	}
	return nil
}

// shape returns the list as a shape, or what is wrong with it.
func (d Dims) shape() (tensor.Shape, error) {
	if d.N < 0 || d.N > maxDims {
		return nil, fmt.Errorf("a shape of %d dimensions: at most %d are possible", d.N, maxDims)
	}
	s := tensor.Shape(d.Slice())
	return s, checkShape(s)
}

// arity checks the number of inputs against their names; a name that ends in "?" is optional.
func arity(in []*Value, names ...string) error {
	least := 0
	for _, n := range names {
		if !strings.HasSuffix(n, "?") {
			least++
		}
	}
	if len(in) >= least && len(in) <= len(names) {
		return nil
	}
	want := fmt.Sprint(least)
	if least < len(names) {
		want = fmt.Sprintf("%d to %d", least, len(names))
	}
	return fmt.Errorf("needs %s inputs (%s), got %d", want, strings.Join(names, ", "), len(in))
}

// attrsAs returns the attributes as the type that an operation's entry names.
func attrsAs[T any](attrs any) (T, error) {
	a, ok := attrs.(T)
	if !ok {
		return a, fmt.Errorf("needs attributes of type %T, got %T", a, attrs)
	}
	return a, nil
}

// floats checks that the inputs have one floating-point type between them.
func floats(in ...*Value) error {
	for _, v := range in {
		if !v.DType.IsFloat() {
			return fmt.Errorf("needs floating-point values, got %v", v.Type)
		}
		if v.DType != in[0].DType {
			return fmt.Errorf("the element types of %v and %v differ", in[0].Type, v.Type)
		}
	}
	return nil
}

// ofDType checks the element type of one input.
func ofDType(name string, v *Value, d tensor.DType) error {
	if v.DType != d {
		return fmt.Errorf("%s must be of type %v, got %v", name, d, v.Type)
	}
	return nil
}

// ofShape checks the shape of one input.
func ofShape(name string, v *Value, want ...int) error {
	if !v.Shape.Equal(want) {
		return fmt.Errorf("%s must be of shape %v, got %v", name, tensor.Shape(want), v.Shape)
	}
	return nil
}

// ofRank checks the number of dimensions of one input; dims names them in the message.
func ofRank(name string, v *Value, rank int, dims string) error {
	if len(v.Shape) != rank {
		return fmt.Errorf("%s must have %d dimensions %s, got %v", name, rank, dims, v.Shape)
	}
	return nil
}

// all returns the first error.
func all(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// one is the result of a shape rule with a single output.
func one(d tensor.DType, shape ...int) []Type {
	return []Type{{d, append(tensor.Shape{}, shape...)}}
}

// lastAndRows splits a shape in its last dimension and the number of rows before it.
func lastAndRows(s tensor.Shape) (last, rows int) {
	last = s[len(s)-1]
	return last, s.Numel() / last
}

// hasLast checks that an input is no scalar.
func hasLast(name string, v *Value) error {
	if len(v.Shape) == 0 {
		return fmt.Errorf("%s is a scalar: at least one dimension is needed", name)
	}
	return nil
}

package recipe

import (
	"errors"
	"fmt"
	"strings"

	"go.starlark.net/starlark"
	"go.starlark.net/syntax"

	"starling/core/graph"
)

// Tensor is a symbolic tensor: a value of the graph that is being traced. It has a shape and an element type, no content.
type Tensor struct {
	trace *trace
	value *graph.Value
}

var (
	_ starlark.HasBinary  = (*Tensor)(nil)
	_ starlark.HasUnary   = (*Tensor)(nil)
	_ starlark.HasAttrs   = (*Tensor)(nil)
	_ starlark.Sliceable  = (*Tensor)(nil)
	_ starlark.Comparable = (*Tensor)(nil)
)

func (x *Tensor) String() string        { return "tensor " + x.value.Type.String() }
func (x *Tensor) Type() string          { return "tensor" }
func (x *Tensor) Freeze()               {} // immutable
func (x *Tensor) Truth() starlark.Bool  { return true }
func (x *Tensor) Hash() (uint32, error) { return 0, errors.New("unhashable: tensor") }

var tensorAttrs = []string{"dtype", "rank", "shape", "size"}

// AttrNames lists the attributes.
func (x *Tensor) AttrNames() []string { return tensorAttrs }

// Attr gives shape (a tuple), dtype (a string such as "f32"), rank and size (the number of elements).
func (x *Tensor) Attr(name string) (starlark.Value, error) {
	switch name {
	case "shape":
		return intTuple(x.value.Shape), nil
	case "dtype":
		return starlark.String(x.value.DType.String()), nil
	case "rank":
		return starlark.MakeInt(len(x.value.Shape)), nil
	case "size":
		return starlark.MakeInt(x.value.Shape.Numel()), nil
	}
	if isOp(name) {
		return nil, fmt.Errorf("a tensor has no %q; it is a function: write ops.%s(x, …)", name, name)
	}
	if Nearest(name, tensorAttrs) == "" && foreignNames["a tensor"][strings.ToLower(name)] == "" {
		return nil, fmt.Errorf("a tensor has no %q; it has shape, dtype, rank and size, everything else is a function of ops or nn, such as ops.reshape(x, shape)", name)
	}
	return nil, noAttribute("a tensor", name, tensorAttrs)
}

func intTuple(d []int) starlark.Tuple {
	t := make(starlark.Tuple, len(d))
	for i, n := range d {
		t[i] = starlark.MakeInt(n)
	}
	return t
}

// binaryOps are the operators between tensors.
var binaryOps = map[syntax.Token]string{syntax.PLUS: "add", syntax.MINUS: "sub", syntax.STAR: "mul", syntax.SLASH: "div"}

// Binary is the arithmetic of tensors with tensors (broadcasting by NumPy's rule) and with numbers.
func (x *Tensor) Binary(op syntax.Token, y starlark.Value, side starlark.Side) (starlark.Value, error) {
	name, ok := binaryOps[op]
	if !ok {
		return nil, fmt.Errorf("tensors have no operator %v; they have + - * / and unary -, and ops.matmul, ops.pow, …", op)
	}
	what := fmt.Sprintf("operator %v", op)
	if y, ok := y.(*Tensor); ok {
		if side == starlark.Right {
			x, y = y, x
		}
		return x.trace.apply1(what, name, nil, x, y)
	}
	c, ok := number(y)
	if !ok {
		if _, isLoss := y.(*Loss); isLoss {
			return nil, fmt.Errorf("%s: a tensor and a loss cannot be combined; add losses, or use the tensors loss.sum and loss.weight", what)
		}
		return nil, fmt.Errorf("%s: a tensor can be combined with a tensor or a number, not with %s", what, describe(y))
	}
	return x.withNumber(what, op, c, side)
}

// withNumber computes x op c, or c op x on the right side.
func (x *Tensor) withNumber(what string, op syntax.Token, c float64, side starlark.Side) (starlark.Value, error) {
	t := x.trace
	chain := func(y *Tensor, op string, c float64) (starlark.Value, error) {
		return t.apply1(what, op, graph.ScalarAttrs{Value: c}, y)
	}
	then := func(op string, c float64, next string, d float64) (starlark.Value, error) {
		v, err := chain(x, op, c)
		if err != nil {
			return nil, err
		}
		return chain(v.(*Tensor), next, d)
	}
	switch {
	case op == syntax.PLUS:
		return chain(x, "add_scalar", c)
	case op == syntax.STAR:
		return chain(x, "scale", c)
	case op == syntax.MINUS && side == starlark.Left:
		return chain(x, "add_scalar", -c)
	case op == syntax.MINUS:
		return then("scale", -1, "add_scalar", c)
	case side == starlark.Left && c == 0:
		return nil, fmt.Errorf("%s: a tensor is divided by 0", what)
	case side == starlark.Left:
		return chain(x, "scale", 1/c)
	}
	return then("pow_scalar", -1, "scale", c)
}

// Unary is +x and -x.
func (x *Tensor) Unary(op syntax.Token) (starlark.Value, error) {
	switch op {
	case syntax.PLUS:
		return x, nil
	case syntax.MINUS:
		return x.trace.apply1("operator -", "neg", nil, x)
	}
	return nil, nil
}

// CompareSameType refuses: a tensor has no content while a model is traced.
func (x *Tensor) CompareSameType(op syntax.Token, _ starlark.Value, _ int) (bool, error) {
	return false, fmt.Errorf("operator %v: tensors cannot be compared, they have no content while a model is traced; compare shapes (x.shape == y.shape), or use ops.maximum, ops.equal, …", op)
}

// Len is the extent of the first dimension, 0 for a scalar.
func (x *Tensor) Len() int {
	if len(x.value.Shape) == 0 {
		return 0
	}
	return x.value.Shape[0]
}

// Index is x[i]: one row of the first dimension, which goes away.
func (x *Tensor) Index(i int) starlark.Value {
	row, err := x.trace.slice("x[i]", x, 0, i, i+1)
	if err == nil {
		shape := graph.ShapeAttrs{Shape: graph.MakeDims(x.value.Shape[1:])}
		var out []*Tensor
		if out, err = x.trace.apply("x[i]", "reshape", shape, row); err == nil {
			return out[0]
		}
	}
	return x.failLate(err)
}

// Slice is x[start:end] along the first dimension.
func (x *Tensor) Slice(start, end, step int) starlark.Value {
	if step != 1 {
		return x.failLate(fmt.Errorf("x[start:end:step]: tensors can be sliced with a step of 1 only, not %d", step))
	}
	y, err := x.trace.slice("x[start:end]", x, 0, start, end)
	if err != nil {
		return x.failLate(err)
	}
	return y
}

// failLate records an error where Starlark's interface has no room for one.
func (x *Tensor) failLate(err error) starlark.Value {
	if x.trace.late == nil {
		x.trace.late = &lateError{err, x.trace.thread.CallStack()}
	}
	return x
}

// lateError is an error with the call stack of the place that it happened in.
type lateError struct {
	err   error
	stack starlark.CallStack
}

func (e *lateError) Error() string { return e.err.Error() }
func (e *lateError) Unwrap() error { return e.err }

// slice takes [start, end) of one axis.
func (t *trace) slice(what string, x *Tensor, axis, start, end int) (*Tensor, error) {
	if axis < len(x.value.Shape) && start == 0 && end == x.value.Shape[axis] {
		return x, nil
	}
	attrs := graph.SliceAttrs{Axis: axis, Start: start, End: end}
	if axis < len(x.value.Shape) {
		attrs.Size = x.value.Shape[axis]
	}
	out, err := t.apply(what, "slice", attrs, x)
	if err != nil {
		return nil, err
	}
	return out[0], nil
}

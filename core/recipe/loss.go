package recipe

import (
	"errors"
	"fmt"

	"go.starlark.net/starlark"
	"go.starlark.net/syntax"

	"starling/core/graph"
	"starling/core/tensor"
)

// Loss is a pair of scalars: a sum over elements, and how much weight the elements have together. What is
// minimised is the sum over the global batch divided by its weight, so that the mean is exact over every
// token of a step however it is cut into micro-batches. Metrics are the same pair.
type Loss struct{ sum, weight *Tensor }

var (
	_ starlark.HasBinary = (*Loss)(nil)
	_ starlark.HasUnary  = (*Loss)(nil)
	_ starlark.HasAttrs  = (*Loss)(nil)
)

func (l *Loss) String() string        { return "loss(sum, weight)" }
func (l *Loss) Type() string          { return "loss" }
func (l *Loss) Freeze()               {} // immutable
func (l *Loss) Truth() starlark.Bool  { return true }
func (l *Loss) Hash() (uint32, error) { return 0, errors.New("unhashable: loss") }
func (l *Loss) AttrNames() []string   { return []string{"sum", "weight"} }

// Attr gives sum and weight, scalar tensors.
func (l *Loss) Attr(name string) (starlark.Value, error) {
	switch name {
	case "sum":
		return l.sum, nil
	case "weight":
		return l.weight, nil
	}
	return nil, noAttribute("a loss", name, l.AttrNames())
}

// newLoss checks that sum and weight are scalars.
func newLoss(what string, sum, weight *Tensor) (*Loss, error) {
	for _, x := range []struct {
		name string
		t    *Tensor
	}{{"sum", sum}, {"weight", weight}} {
		if len(x.t.value.Shape) != 0 || x.t.value.DType != tensor.F32 {
			return nil, &layerError{fmt.Sprintf("%s: %s must be a scalar f32[], got %v; add its elements with ops.sum(x)", what, x.name, x.t.value.Type)}
		}
	}
	return &Loss{sum, weight}, nil
}

// Binary adds losses (sums and weights add) and scales them by numbers (the sum alone).
func (l *Loss) Binary(op syntax.Token, y starlark.Value, side starlark.Side) (starlark.Value, error) {
	what := fmt.Sprintf("operator %v", op)
	if other, ok := y.(*Loss); ok {
		if op != syntax.PLUS {
			return nil, fmt.Errorf("%s: losses can be added; to subtract, add -1.0 * loss", what)
		}
		if side == starlark.Right {
			l, other = other, l
		}
		sum, err := l.sum.trace.apply(what, "add", nil, l.sum, other.sum)
		if err != nil {
			return nil, err
		}
		weight, err := l.sum.trace.apply(what, "add", nil, l.weight, other.weight)
		if err != nil {
			return nil, err
		}
		return &Loss{sum[0], weight[0]}, nil
	}
	c, ok := number(y)
	switch {
	case ok && op == syntax.STAR:
		return l.scaled(what, c)
	case ok && op == syntax.SLASH && side == starlark.Left && c != 0:
		return l.scaled(what, 1/c)
	}
	return nil, fmt.Errorf("%s: a loss can be added to a loss and multiplied or divided by a number, not combined with %s", what, describe(y))
}

// Unary is -loss.
func (l *Loss) Unary(op syntax.Token) (starlark.Value, error) {
	if op == syntax.MINUS {
		return l.scaled("operator -", -1)
	}
	return nil, nil
}

func (l *Loss) scaled(what string, c float64) (starlark.Value, error) {
	sum, err := l.sum.trace.apply(what, "scale", graph.ScalarAttrs{Value: c}, l.sum)
	if err != nil {
		return nil, err
	}
	return &Loss{sum[0], l.weight}, nil
}

package recipe

import (
	"fmt"
	"slices"

	"go.starlark.net/starlark"

	"starling/core/graph"
	"starling/core/tensor"
)

func opReshape(c *call) (starlark.Value, error) {
	var x *Tensor
	var shape []int
	if err := c.unpack(&x, &shape); err != nil {
		return nil, err
	}
	if i := slices.Index(shape, -1); i >= 0 {
		known := 1
		for k, d := range shape {
			if k == i {
				continue
			}
			if d < 1 || known > x.value.Shape.Numel() {
				return nil, &layerError{fmt.Sprintf("%s: cannot reshape %v to %v", c.name, x.value.Shape, tensor.Shape(shape))}
			}
			known *= d
		}
		if x.value.Shape.Numel()%known != 0 {
			return nil, &layerError{fmt.Sprintf("%s: cannot reshape %v to %v: %d elements are no multiple of %d", c.name, x.value.Shape, tensor.Shape(shape), x.value.Shape.Numel(), known)}
		}
		shape[i] = x.value.Shape.Numel() / known
	}
	return c.apply(nil, "reshape", graph.ShapeAttrs{Shape: graph.MakeDims(shape)}, &x)
}

func opTranspose(c *call) (starlark.Value, error) {
	var x *Tensor
	var perm []int
	if err := c.unpack(&x, &perm); err != nil {
		return nil, err
	}
	n := len(x.value.Shape)
	if perm == nil {
		if n < 2 {
			return nil, c.bad("x", "x %v has less than two dimensions", x.value.Shape)
		}
		for i := range n {
			perm = append(perm, i)
		}
		perm[n-1], perm[n-2] = n-2, n-1
	}
	for i := range perm {
		if perm[i] < 0 {
			perm[i] += n
		}
	}
	return c.apply(nil, "transpose", graph.PermAttrs{Perm: graph.MakeDims(perm)}, &x)
}

// axis resolves a negative axis and refuses one that is not there.
func (c *call) axis(arg string, x *Tensor, axis int) (int, error) {
	n := len(x.value.Shape)
	if axis < -n || axis >= n {
		return 0, c.bad(arg, "%s: a tensor %v has no axis %d", arg, x.value.Shape, axis)
	}
	if axis < 0 {
		axis += n
	}
	return axis, nil
}

func opSlice(c *call) (starlark.Value, error) {
	var x *Tensor
	var axis, start, end int
	if err := c.unpack(&x, &axis, &start, &end); err != nil {
		return nil, err
	}
	axis, err := c.axis("axis", x, axis)
	if err != nil {
		return nil, err
	}
	size := x.value.Shape[axis]
	if start < 0 {
		start += size
	}
	if end < 0 {
		end += size
	}
	t, err := c.tracing()
	if err != nil {
		return nil, err
	}
	return t.slice(c.name, x, axis, start, end)
}

// maxParts bounds the parts of a split.
const maxParts = 1024

func opSplit(c *call) (starlark.Value, error) {
	var x *Tensor
	var sizes starlark.Value
	var axis int
	if err := c.unpack(&x, &sizes, &axis); err != nil {
		return nil, err
	}
	axis, err := c.axis("axis", x, axis)
	if err != nil {
		return nil, err
	}
	seq, ok := sizes.(starlark.Indexable)
	if _, isTensor := sizes.(*Tensor); !ok || isTensor || seq.Len() > maxParts {
		return nil, c.bad("sizes", "sizes must be a list of at most %d ints, not %s", maxParts, describe(sizes))
	}
	t, err := c.tracing()
	if err != nil {
		return nil, err
	}
	var parts []starlark.Value
	at := 0
	for i := range seq.Len() {
		var n int
		if want, _ := store(&n, seq.Index(i)); want != "" || n < 1 {
			return nil, c.bad("sizes", "sizes: entry %d must be an int of at least 1, not %s", i, describe(seq.Index(i)))
		}
		part, err := t.slice(c.name, x, axis, at, at+n)
		if err != nil {
			return nil, err
		}
		parts = append(parts, part)
		at += n
	}
	if at != x.value.Shape[axis] {
		return nil, c.bad("sizes", "sizes add up to %d, axis %d of %v has %d", at, axis, x.value.Shape, x.value.Shape[axis])
	}
	return starlark.NewList(parts), nil
}

func opConcat(c *call) (starlark.Value, error) {
	var xs []*Tensor
	var axis int
	if err := c.unpack(&xs, &axis); err != nil {
		return nil, err
	}
	if len(xs) == 0 || len(xs) > maxParts {
		return nil, c.bad("xs", "xs has %d tensors; 1 to %d are possible", len(xs), maxParts)
	}
	axis, err := c.axis("axis", xs[0], axis)
	if err != nil {
		return nil, err
	}
	t, err := c.tracing()
	if err != nil {
		return nil, err
	}
	return t.apply1(c.name, "concat", graph.AxisAttrs{Axis: axis}, xs...)
}

func opBroadcast(c *call) (starlark.Value, error) {
	var x *Tensor
	var shape []int
	if err := c.unpack(&x, &shape); err != nil {
		return nil, err
	}
	return c.apply(nil, "broadcast_to", graph.ShapeAttrs{Shape: graph.MakeDims(shape)}, &x)
}

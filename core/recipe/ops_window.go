package recipe

import (
	"math"

	"go.starlark.net/starlark"

	"starling/core/graph"
)

// Attention, convolution and pooling: the primitives whose arguments need more than unpacking.

func opAttention(c *call) (starlark.Value, error) {
	var q, k, v *Tensor
	var causal bool
	var scale, segments starlark.Value
	if err := c.unpack(&q, &k, &v, &causal, &scale, &segments); err != nil {
		return nil, err
	}
	attrs := graph.AttentionAttrs{Causal: causal}
	if scale != nil {
		var ok bool
		if attrs.Scale, ok = number(scale); !ok {
			return nil, c.bad("scale", "scale must be a number, not %s", describe(scale))
		}
	} else if n := len(q.value.Shape); n > 0 {
		attrs.Scale = 1 / math.Sqrt(float64(q.value.Shape[n-1]))
	}
	in := []*Tensor{q, k, v}
	switch s := segments.(type) {
	case nil:
	case *Tensor:
		in = append(in, s, s)
	case starlark.Tuple:
		for _, x := range s {
			t, ok := x.(*Tensor)
			if !ok || len(s) != 2 {
				return nil, c.bad("segments", "segments must be a tensor or a pair of tensors, not %s", describe(segments))
			}
			in = append(in, t)
		}
	default:
		return nil, c.bad("segments", "segments must be a tensor or a pair of tensors, not %s", describe(segments))
	}
	t, err := c.tracing()
	if err != nil {
		return nil, err
	}
	return t.apply1(c.name, "attention", attrs, in...)
}

// pair reads an int, or a pair of ints for height and width.
func (c *call) pair(arg string, v []int) (h, w int, err error) {
	switch len(v) {
	case 1:
		return v[0], v[0], nil
	case 2:
		return v[0], v[1], nil
	}
	return 0, 0, c.bad(arg, "%s must be an int or a pair of ints (height, width), it has %d entries", arg, len(v))
}

func opConv2D(c *call) (starlark.Value, error) {
	var x, weight, bias *Tensor
	var stride, padding, dilation []int
	var a graph.ConvAttrs
	if err := c.unpack(&x, &weight, &bias, &stride, &padding, &dilation, &a.Groups); err != nil {
		return nil, err
	}
	var err error
	if a.StrideH, a.StrideW, err = c.pair("stride", stride); err != nil {
		return nil, err
	}
	if a.PadH, a.PadW, err = c.pair("padding", padding); err != nil {
		return nil, err
	}
	if a.DilationH, a.DilationW, err = c.pair("dilation", dilation); err != nil {
		return nil, err
	}
	return c.apply(nil, "conv2d", a, &x, &weight, &bias)
}

func pool(op string) func(c *call) (starlark.Value, error) {
	return func(c *call) (starlark.Value, error) {
		var x *Tensor
		var size, stride, padding []int
		if err := c.unpack(&x, &size, &stride, &padding); err != nil {
			return nil, err
		}
		if stride == nil {
			stride = size
		}
		var a graph.PoolAttrs
		var err error
		if a.KH, a.KW, err = c.pair("size", size); err != nil {
			return nil, err
		}
		if a.StrideH, a.StrideW, err = c.pair("stride", stride); err != nil {
			return nil, err
		}
		if a.PadH, a.PadW, err = c.pair("padding", padding); err != nil {
			return nil, err
		}
		return c.apply(nil, op, a, &x)
	}
}

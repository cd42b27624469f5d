package cpu

import (
	"starling/core/device"
	"starling/core/graph"
	"starling/core/tensor/detmath"
	"starling/sdk/vec"
)

// Functions of one operand, and of one operand and a number.
var unaryKernels = []kernel{
	{"neg", "f32", unary(vec.Neg)},
	{"exp", "f32", unary(vec.Exp)},
	{"log", "f32", unary(vec.Log)},
	{"sqrt", "f32", unary(vec.Sqrt)},
	{"rsqrt", "f32", unary(vec.Rsqrt)},
	{"square", "f32", unary(vec.Square)},
	{"abs", "f32", unary(vec.Abs)},
	{"tanh", "f32", unary(vec.Tanh)},
	{"sigmoid", "f32", unary(vec.Sigmoid)},
	{"relu", "f32", unary(vec.Relu)},
	{"gelu", "f32", unary(vec.Gelu)},
	{"gelu_erf", "f32", unary(vec.GeluErf)},
	{"silu", "f32", unary(vec.Silu)},

	{"scale", "f32", withNumber(func(v float64) func(y, x []float32) {
		s := float32(v)
		return func(y, x []float32) { vec.Scale(y, x, s) }
	})},
	{"add_scalar", "f32", withNumber(func(v float64) func(y, x []float32) {
		s := float32(v)
		return func(y, x []float32) { vec.AddScalar(y, x, s) }
	})},
	{"pow_scalar", "f32", withNumber(power)},
}

func (d *Device) unary(c device.Call, f func(y, x []float32)) func() {
	x, y := f32(c.In[0]), f32(c.Out[0])
	return d.parallelSpan(len(y), costlyBlock, func(lo, hi int) { f(y[lo:hi], x[lo:hi]) })
}

func unary(f func(y, x []float32)) maker {
	return func(d *Device, c device.Call) (func(), error) { return d.unary(c, f), nil }
}

// withNumber makes the kernels of an operation that f makes into one of one operand, given its number.
func withNumber(f func(v float64) func(y, x []float32)) maker {
	return func(d *Device, c device.Call) (func(), error) {
		a, err := attrs[graph.ScalarAttrs](c)
		if err != nil {
			return nil, err
		}
		return d.unary(c, f(a.Value)), nil
	}
}

// power raises to a constant power: exactly where a root or a product does, else in float64.
func power(v float64) func(y, x []float32) {
	switch v {
	case 1:
		return func(y, x []float32) { copy(y, x) }
	case 2:
		return vec.Square
	case 0.5:
		return vec.Sqrt
	case -0.5:
		return vec.Rsqrt
	}
	return func(y, x []float32) {
		for i, x := range x {
			y[i] = float32(detmath.Pow(float64(x), v))
		}
	}
}

package cpu

import (
	"starling/core/device"
	"starling/sdk/vec"
)

// Operations of several operands, element by element.
var elementwiseKernels = []kernel{
	{"add", "f32 f32", binary(vec.Add, vec.AddScalar, vec.AddScalar)},
	{"sub", "f32 f32", binary(vec.Sub, func(y, x []float32, s float32) { vec.AddScalar(y, x, -s) }, nil)},
	{"mul", "f32 f32", binary(vec.Mul, vec.Scale, vec.Scale)},
	{"div", "f32 f32", binary(vec.Div, nil, nil)},
	{"maximum", "f32 f32", binary(vec.Max, nil, nil)},
	{"minimum", "f32 f32", binary(vec.Min, nil, nil)},
	{"accumulate", "f32 f32", binary(vec.Add, nil, nil)},

	{"tanh_grad", "f32 f32", pointwise(vec.TanhGrad)},
	{"sigmoid_grad", "f32 f32", pointwise(vec.SigmoidGrad)},
	{"relu_grad", "f32 f32", pointwise(vec.ReluGrad)},
	{"gelu_grad", "f32 f32", pointwise(vec.GeluGrad)},
	{"gelu_erf_grad", "f32 f32", pointwise(vec.GeluErfGrad)},
	{"silu_grad", "f32 f32", pointwise(vec.SiluGrad)},
	{"swiglu", "f32 f32", swiglu},
	{"swiglu_grad", "f32 f32 f32", swigluGrad},
	{"equal", "i32 i32", equal},
	{"grad_store", "f32", gradStore},
}

// vectors is an operation on equal vectors, vectorScalar on a vector and a number.
type (
	vectors      func(y, a, b []float32)
	vectorScalar func(y, x []float32, s float32)
)

// binary makes the kernels of a broadcasting operation from its form for equal vectors and, where vec has them,
// its forms for a vector and a scalar on the right or on the left.
func binary(vv vectors, vs, sv vectorScalar) maker {
	return func(d *Device, c device.Call) (func(), error) {
		a, b, y := f32(c.In[0]), f32(c.In[1]), f32(c.Out[0])
		shape := c.Out[0].Shape
		w := newWalk(shape, shape.Strides(), stretch(c.In[0].Shape, shape), stretch(c.In[1].Shape, shape))
		if err := d.reserve(4*copies, 0); err != nil {
			return nil, err
		}
		return d.eachRow(w, cheapBlock, func(thread int, off [3]int, n int) {
			y := y[off[0] : off[0]+n]
			switch {
			case n > 1 && w.step[1] == 0:
				x, s := b[off[2]:off[2]+n], a[off[1]]
				if sv != nil {
					sv(y, x, s)
					return
				}
				same := d.repeat(thread, s, n)
				for lo := 0; lo < n; lo += copies {
					hi := min(lo+copies, n)
					vv(y[lo:hi], same[:hi-lo], x[lo:hi])
				}
			case n > 1 && w.step[2] == 0:
				x, s := a[off[1]:off[1]+n], b[off[2]]
				if vs != nil {
					vs(y, x, s)
					return
				}
				same := d.repeat(thread, s, n)
				for lo := 0; lo < n; lo += copies {
					hi := min(lo+copies, n)
					vv(y[lo:hi], x[lo:hi], same[:hi-lo])
				}
			default:
				vv(y, a[off[1]:off[1]+n], b[off[2]:off[2]+n])
			}
		}), nil
	}
}

// copies is the length of a vector that stands for a number.
const copies = 256

// repeat fills thread's scratch memory with a number, n times or copies times.
func (d *Device) repeat(thread int, v float32, n int) []float32 {
	own := d.ownScratch(thread)
	same := own.floats(copies)[:min(n, copies)]
	vec.Fill(same, v)
	return same
}

// pointwise makes the kernels of an operation of two operands of one shape.
func pointwise(f func(y, a, b []float32)) maker {
	return func(d *Device, c device.Call) (func(), error) {
		a, b, y := f32(c.In[0]), f32(c.In[1]), f32(c.Out[0])
		return d.parallelSpan(len(y), costlyBlock, func(lo, hi int) { f(y[lo:hi], a[lo:hi], b[lo:hi]) }), nil
	}
}

// gateBlock is a piece of a gated activation that stays in L1 between the passes over it.
const gateBlock = 512

func swiglu(d *Device, c device.Call) (func(), error) {
	gate, up, y := f32(c.In[0]), f32(c.In[1]), f32(c.Out[0])
	return d.parallelSpan(len(y), costlyBlock, func(from, to int) {
		var piece [gateBlock]float32 // y may be the memory of gate or of up
		for lo := from; lo < to; lo += gateBlock {
			hi := min(lo+gateBlock, to)
			act := piece[:hi-lo]
			vec.Silu(act, gate[lo:hi])
			vec.Mul(y[lo:hi], act, up[lo:hi])
		}
	}), nil
}

func swigluGrad(d *Device, c device.Call) (func(), error) {
	gate, up, dy := f32(c.In[0]), f32(c.In[1]), f32(c.In[2])
	dgate, dup := f32(c.Out[0]), f32(c.Out[1])
	return d.parallelSpan(len(dy), costlyBlock, func(from, to int) {
		for lo := from; lo < to; lo += gateBlock {
			hi := min(lo+gateBlock, to)
			vec.Mul(dgate[lo:hi], dy[lo:hi], up[lo:hi])
			vec.SiluGrad(dgate[lo:hi], gate[lo:hi], dgate[lo:hi])
			vec.Silu(dup[lo:hi], gate[lo:hi])
			vec.Mul(dup[lo:hi], dup[lo:hi], dy[lo:hi])
		}
	}), nil
}

func equal(d *Device, c device.Call) (func(), error) {
	a, b, y := i32(c.In[0]), i32(c.In[1]), f32(c.Out[0])
	return d.parallelSpan(len(y), cheapBlock, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			y[i] = 0
			if a[i] == b[i] {
				y[i] = 1
			}
		}
	}), nil
}

// gradStore copies a gradient into its accumulator, or adds it there.
func gradStore(d *Device, c device.Call) (func(), error) {
	x, y := f32(c.In[0]), f32(c.Out[0])
	if c.Accum {
		return d.parallelSpan(len(y), cheapBlock, func(lo, hi int) { vec.AddTo(y[lo:hi], x[lo:hi]) }), nil
	}
	return copyWhole(d, c)
}

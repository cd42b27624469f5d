package cpu

import (
	"starling/core/device"
	"starling/sdk/vec"
)

// Softmax and its kin over the last dimension.
var softmaxKernels = []kernel{
	{"softmax", "f32", lastDim(func(y, x []float32) { vec.Softmax(y, x, 1) })},
	{"softmax_grad", "f32 f32", lastDimGrad(func(dx, y, dy []float32) { vec.SoftmaxGrad(dx, y, dy, 1) })},
	{"log_softmax", "f32", lastDim(func(y, x []float32) { vec.AddScalar(y, x, -vec.LogSumExp(x)) })},
	{"log_softmax_grad", "f32 f32", lastDimGrad(func(dx, y, dy []float32) {
		total := vec.Sum(dy)
		vec.Exp(dx, y)
		vec.Scale(dx, dx, -total)
		vec.AddTo(dx, dy)
	})},
}

// lastOf is the extent of the last dimension.
func lastOf(t device.Tensor) int { return t.Shape[len(t.Shape)-1] }

func lastDim(f func(y, x []float32)) maker {
	return func(d *Device, c device.Call) (func(), error) {
		x, y, n := f32(c.In[0]), f32(c.Out[0]), lastOf(c.In[0])
		return d.eachRowOf(len(x)/n, n, costlyBlock, func(r int) { f(y[r*n:(r+1)*n], x[r*n:(r+1)*n]) }), nil
	}
}

func lastDimGrad(f func(dx, y, dy []float32)) maker {
	return func(d *Device, c device.Call) (func(), error) {
		y, dy, dx, n := f32(c.In[0]), f32(c.In[1]), f32(c.Out[0]), lastOf(c.In[0])
		return d.eachRowOf(len(y)/n, n, costlyBlock, func(r int) {
			lo, hi := r*n, (r+1)*n
			f(dx[lo:hi], y[lo:hi], dy[lo:hi])
		}), nil
	}
}

package cpu

import (
	"math"

	"starling/core/device"
	"starling/core/graph"
	"starling/sdk/vec"
)

// Cross-entropy over the last dimension.
var lossKernels = []kernel{
	{"cross_entropy", "f32 i32", crossEntropy},
	{"cross_entropy_grad", "f32 f32 i32 f32", crossEntropyGrad},
}

// masked reports whether a row with this target counts for nothing.
func masked(a graph.CrossEntropyAttrs, target int32) bool {
	return target < 0 || int(target) == a.Ignore
}

// crossEntropy sums the rows' losses in float64, in order.
func crossEntropy(d *Device, c device.Call) (func(), error) {
	a, err := attrs[graph.CrossEntropyAttrs](c)
	if err != nil {
		return nil, err
	}
	x, targets, n := f32(c.In[0]), i32(c.In[1]), lastOf(c.In[0])
	loss, weight, lse := f32(c.Out[0]), f32(c.Out[1]), f32(c.Out[2])
	return sequence(
		d.eachRowOf(len(lse), n, costlyBlock, func(r int) { lse[r] = vec.LogSumExp(x[r*n : (r+1)*n]) }),
		func() {
			var sum float64
			count := 0
			for r, t := range targets {
				switch {
				case masked(a, t):
					continue
				case int(t) >= n:
					sum = math.NaN()
				default:
					sum += float64(lse[r]) - float64(x[r*n+int(t)])
				}
				count++
			}
			loss[0], weight[0] = float32(sum), float32(count)
		},
	), nil
}

func crossEntropyGrad(d *Device, c device.Call) (func(), error) {
	a, err := attrs[graph.CrossEntropyAttrs](c)
	if err != nil {
		return nil, err
	}
	dloss, x, targets, lse, n := f32(c.In[0]), f32(c.In[1]), i32(c.In[2]), f32(c.In[3]), lastOf(c.In[1])
	dx := f32(c.Out[0])
	return d.eachRowOf(len(lse), n, costlyBlock, func(r int) {
		lo, hi := r*n, (r+1)*n
		switch t := targets[r]; {
		case masked(a, t):
			clear(dx[lo:hi])
		case int(t) >= n:
			vec.Fill(dx[lo:hi], float32(math.NaN()))
		default:
			vec.CrossEntropyGrad(dx[lo:hi], x[lo:hi], lse[r], int(t), dloss[0])
		}
	}), nil
}

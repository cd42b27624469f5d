package cpu

import (
	"math"

	"starling/core/device"
	"starling/core/graph"
	"starling/core/tensor"
	"starling/sdk/vec"
)

// What happens to gradients between the backward pass and the update: norms other than the Euclidean one, the bound of single elements, and
// the rounding of sums that travel in 16 bits.
var gradientKernels = []kernel{
	{"sum_abs", "f32", blockNorm(sumAbs)},
	{"max_abs", "f32", blockNorm(maxAbs)},
	{"clip_value", "f32 f64", clipValue},
	{"round_to", "f32", roundTo},
}

// blockNorm makes one float64 of each block of a gradient.
func blockNorm(of func(x []float32) float64) func(*Device, device.Call) (func(), error) {
	return func(d *Device, c device.Call) (func(), error) {
		x, y := f32(c.In[0]), f64(c.Out[0])
		const perTask = 4
		return d.parallelSpan(len(y), perTask, func(lo, hi int) {
			for i := lo; i < hi; i++ {
				from, to := span(i, graph.SumSquaresBlock, len(x))
				y[i] = of(x[from:to])
			}
		}), nil
	}
}

// sumAbs adds absolute values in four chains, element i in chain i mod 4, so that no addition waits for the one before it.
func sumAbs(x []float32) float64 {
	var s [4]float64
	i := 0
	for ; i+4 <= len(x); i += 4 {
		s[0] += math.Abs(float64(x[i]))
		s[1] += math.Abs(float64(x[i+1]))
		s[2] += math.Abs(float64(x[i+2]))
		s[3] += math.Abs(float64(x[i+3]))
	}
	for k, v := range x[i:] {
		s[k] += math.Abs(float64(v))
	}
	return (s[0] + s[1]) + (s[2] + s[3])
}

// maxAbs compares bit patterns without their signs: these are in the order of the values, with every NaN above infinity.
func maxAbs(x []float32) float64 {
	var a, b uint32
	i := 0
	for ; i+2 <= len(x); i += 2 {
		a = max(a, math.Float32bits(x[i])&^(1<<31))
		b = max(b, math.Float32bits(x[i+1])&^(1<<31))
	}
	if i < len(x) {
		a = max(a, math.Float32bits(x[i])&^(1<<31))
	}
	return float64(math.Float32frombits(max(a, b)))
}

func clipValue(d *Device, c device.Call) (func(), error) {
	x, y, limit := f32(c.In[0]), f32(c.Out[0]), f64(c.In[1])
	return d.parallelSpan(len(y), updateBlock, func(lo, hi int) {
		const strip = 512
		var above, below [strip]float32
		vec.Fill(above[:], float32(limit[0]))
		vec.Fill(below[:], -float32(limit[0]))
		for ; lo < hi; lo += strip {
			n := min(strip, hi-lo)
			vec.Min(y[lo:lo+n], x[lo:lo+n], above[:n])
			vec.Max(y[lo:lo+n], y[lo:lo+n], below[:n])
		}
	}), nil
}

func roundTo(d *Device, c device.Call) (func(), error) {
	a, err := attrs[graph.RoundAttrs](c)
	if err != nil {
		return nil, err
	}
	x, y := f32(c.In[0]), f32(c.Out[0])
	return d.parallelSpan(len(y), updateBlock, func(lo, hi int) {
		const strip = 2048
		var bits [strip]uint16
		for ; lo < hi; lo += strip {
			n := min(strip, hi-lo)
			if a.To == tensor.F16 {
				vec.F32ToF16(bits[:n], x[lo:lo+n])
				vec.F16ToF32(y[lo:lo+n], bits[:n])
				continue
			}
			vec.F32ToBF16(bits[:n], x[lo:lo+n])
			vec.BF16ToF32(y[lo:lo+n], bits[:n])
		}
	}), nil
}

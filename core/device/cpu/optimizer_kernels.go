package cpu

import (
	"starling/core/device"
	"starling/core/graph"
	"starling/sdk/vec"
)

// Updates of parameters and the norm that clipping needs. Results lie over the inputs that they renew; where a
// plan does not put them there, the inputs are copied first.
var optimizerKernels = []kernel{
	{"sum_squares", "f32", sumSquares},
	{"adamw", "f32 f32 f32 f32 f64", adamW},
	{"sgd", "f32 f32 f64", sgd}, {"sgd", "f32 f32 f32 f64", sgd},
}

// updateBlock is the elements of a parameter that one task renews.
const updateBlock = 8192

func sumSquares(d *Device, c device.Call) (func(), error) {
	x, y := f32(c.In[0]), f64(c.Out[0])
	const perTask = 4
	return d.parallelSpan(len(y), perTask, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			from, to := span(i, graph.SumSquaresBlock, len(x))
			y[i] = vec.SumSq64(x[from:to])
		}
	}), nil
}

// renewed returns the results of an update and what copies the inputs of the same order into them.
func (d *Device) renewed(c device.Call, inputs ...int) (out [][]float32, prepare func()) {
	var copies []func()
	for k, i := range inputs {
		in, o := c.In[i].Bytes(), c.Out[k].Bytes()
		if len(in) > 0 && &in[0] != &o[0] {
			copies = append(copies, d.copyRows(o, in, 1, len(in), 0, 0))
		}
		out = append(out, f32(c.Out[k]))
	}
	return out, sequence(copies...)
}

func adamW(d *Device, c device.Call) (func(), error) {
	g, h := f32(c.In[1]), f64(c.In[4])
	out, prepare := d.renewed(c, 0, 2, 3)
	p, m, v := out[0], out[1], out[2]
	return sequence(prepare, d.parallelSpan(len(p), updateBlock, func(lo, hi int) {
		vec.AdamW(p[lo:hi], g[lo:hi], m[lo:hi], v[lo:hi], vec.AdamWParams{
			LR: h[graph.HyperLR], Beta1: h[graph.HyperBeta1], Beta2: h[graph.HyperBeta2], Eps: h[graph.HyperEps],
			WeightDecay: h[graph.HyperWeightDecay], C1: h[graph.HyperCorrection1], C2: h[graph.HyperCorrection2],
			GradScale: h[graph.HyperGradScale],
		})
	})), nil
}

func sgd(d *Device, c device.Call) (func(), error) {
	a, err := attrs[graph.SGDAttrs](c)
	if err != nil {
		return nil, err
	}
	g, h := f32(c.In[1]), f64(c.In[len(c.In)-1])
	inputs := []int{0}
	if a.Momentum {
		inputs = append(inputs, 2)
	}
	out, prepare := d.renewed(c, inputs...)
	p := out[0]
	return sequence(prepare, d.parallelSpan(len(p), updateBlock, func(lo, hi int) {
		s := vec.SGDParams{
			LR: h[graph.HyperLR], WeightDecay: h[graph.HyperSGDDecay], GradScale: h[graph.HyperGradScale],
		}
		if !a.Momentum {
			vec.SGD(p[lo:hi], g[lo:hi], nil, s)
			return
		}
		s.Momentum, s.Dampening = h[graph.HyperMomentum], h[graph.HyperDampening]
		s.First, s.Nesterov = h[graph.HyperSGDFirstStep] != 0, a.Nesterov
		buf := out[1]
		if s.Momentum == 0 {
			forgetful(p[lo:hi], g[lo:hi], buf[lo:hi], s)
			return
		}
		vec.SGD(p[lo:hi], g[lo:hi], buf[lo:hi], s)
	})), nil
}

// forgetful is a step with a momentum buffer whose momentum is zero at the moment: the buffer holds the damped gradient.
func forgetful(p, g, buf []float32, s vec.SGDParams) {
	scale, decay, lr := float32(s.GradScale), float32(s.WeightDecay), float32(s.LR)
	in := float32(1 - s.Dampening)
	if s.First {
		in = 1
	}
	for i := range p {
		gi := float32(g[i]*scale) + float32(decay*p[i])
		buf[i] = in * gi
		step := buf[i]
		if s.Nesterov {
			step = gi
		}
		p[i] -= float32(lr * step)
	}
}

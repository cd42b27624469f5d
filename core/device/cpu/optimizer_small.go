package cpu

import (
	"math"
	"sync"

	"starling/core/device"
	"starling/core/graph"
	"starling/core/tensor"
	"starling/sdk/vec"
)

// Updates whose state is kept in fewer bits: it is widened a piece at a time, renewed in fp32 and rounded back.
var smallStateKernels = []kernel{
	{"adamw_bf16", "f32 f32 bf16 bf16 f64", adamWBF16},
	{"adamw_int8", "f32 f32 u8 f32 u8 f32 f64", adamWInt8},
}

// inPlace copies the inputs of the given numbers to the results in order, where they do not lie there already.
func (d *Device) inPlace(c device.Call, inputs ...int) func() {
	var copies []func()
	for k, i := range inputs {
		in, o := c.In[i].Bytes(), c.Out[k].Bytes()
		if len(in) > 0 && &in[0] != &o[0] {
			copies = append(copies, d.copyRows(o, in, 1, len(in), 0, 0))
		}
	}
	return sequence(copies...)
}

func adamWParams(h []float64) vec.AdamWParams {
	return vec.AdamWParams{LR: h[graph.HyperLR], Beta1: h[graph.HyperBeta1], Beta2: h[graph.HyperBeta2], Eps: h[graph.HyperEps],
		WeightDecay: h[graph.HyperWeightDecay], C1: h[graph.HyperCorrection1], C2: h[graph.HyperCorrection2], GradScale: h[graph.HyperGradScale]}
}

func adamWBF16(d *Device, c device.Call) (func(), error) {
	prepare := d.inPlace(c, 0, 2, 3)
	p, g, h := f32(c.Out[0]), f32(c.In[1]), f64(c.In[4])
	m, v := bf16(c.Out[1]), bf16(c.Out[2])
	return sequence(prepare, d.parallelSpan(len(p), updateBlock, func(lo, hi int) {
		const strip = 1024
		var wide [2][strip]float32
		for ; lo < hi; lo += strip {
			n := min(strip, hi-lo)
			a, b := wide[0][:n], wide[1][:n]
			vec.BF16ToF32(a, m[lo:lo+n])
			vec.BF16ToF32(b, v[lo:lo+n])
			vec.AdamW(p[lo:lo+n], g[lo:lo+n], a, b, adamWParams(h))
			vec.F32ToBF16(m[lo:lo+n], a)
			vec.F32ToBF16(v[lo:lo+n], b)
		}
	})), nil
}

func adamWInt8(d *Device, c device.Call) (func(), error) {
	prepare := d.inPlace(c, 0, 2, 3, 4, 5)
	p, g, h := f32(c.Out[0]), f32(c.In[1]), f64(c.In[6])
	m, mScale := tensor.View[uint8](c.Out[1].Bytes()), f32(c.Out[2])
	v, vScale := tensor.View[uint8](c.Out[3].Bytes()), f32(c.Out[4])
	const perTask = 16
	signed, positive := dynamicCodes()
	return sequence(prepare, d.parallelSpan(len(mScale), perTask, func(lo, hi int) {
		var wide [2][graph.QuantBlock]float32
		for i := lo; i < hi; i++ {
			from, to := span(i, graph.QuantBlock, len(p))
			a, b := wide[0][:to-from], wide[1][:to-from]
			signed.read(a, m[from:to], mScale[i])
			positive.read(b, v[from:to], vScale[i])
			vec.AdamW(p[from:to], g[from:to], a, b, adamWParams(h))
			mScale[i] = signed.write(m[from:to], a)
			vScale[i] = positive.write(v[from:to], b)
		}
	})), nil
}

// codes finds the nearest code of a dynamic 8-bit type. Ratios that share their upper 16 bits have few codes between them: first gives the one
// of the least, and comparing with the middles between codes finds the right one.
type codes struct {
	values *[256]float32
	middle [256]float64 // between a code and the next; the last is infinite
	first  [1 << 16]uint8
}

var dynamicCodes = sync.OnceValues(func() (signed, positive *codes) {
	return newCodes(&graph.Dynamic8), newCodes(&graph.Dynamic8Positive)
})

func newCodes(values *[256]float32) *codes {
	c := &codes{values: values}
	for i := range 255 {
		c.middle[i] = (float64(values[i]) + float64(values[i+1])) / 2
	}
	c.middle[255] = math.Inf(1)
	for top := range c.first {
		least := math.Float32frombits(uint32(top) << 16)
		if top >= 1<<15 { // negative: the largest magnitude is the least
			least = math.Float32frombits(uint32(top)<<16 | 0xffff)
		}
		if least == least {
			c.first[top] = graph.Quantise(values, least)
		}
	}
	return c
}

func (c *codes) read(dst []float32, codes []uint8, scale float32) {
	for i, k := range codes {
		dst[i] = c.values[k] * scale
	}
}

// write encodes x and returns its scale.
func (c *codes) write(codes []uint8, x []float32) float32 {
	scale := float32(maxAbs(x))
	if scale == 0 {
		clear(codes)
		return 0
	}
	for i, v := range x {
		ratio := v / scale
		k := c.first[math.Float32bits(ratio)>>16]
		for float64(ratio) > c.middle[k] {
			k++
		}
		codes[i] = k
	}
	return scale
}

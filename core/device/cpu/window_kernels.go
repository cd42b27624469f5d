package cpu

import (
	"math"

	"starling/core/device"
	"starling/core/graph"
)

// Pooling over [N,C,H,W]. A task takes whole planes.
var windowKernels = []kernel{
	{"max_pool", "f32", maxPool},
	{"max_pool_grad", "f32 i32", maxPoolGrad},
	{"avg_pool", "f32", avgPool},
	{"avg_pool_grad", "f32", avgPoolGrad},
}

// window is a pooling window over planes of H×W that gives planes of OH×OW.
type window struct {
	graph.PoolAttrs
	planes, OH, OW int
}

// windowOf reads the shapes of a pooling: in is the [N,C,H,W] side, out the pooled one.
func windowOf(a graph.PoolAttrs, out []int) window {
	return window{a, out[0] * out[1], out[2], out[3]}
}

// rows returns the input rows that output row oh covers, cols likewise.
func (w *window) rows(oh int) (lo, hi int) {
	lo = oh*w.StrideH - w.PadH
	return max(lo, 0), min(lo+w.KH, w.H)
}

func (w *window) cols(ow int) (lo, hi int) {
	lo = ow*w.StrideW - w.PadW
	return max(lo, 0), min(lo+w.KW, w.W)
}

// eachPlane runs fn for every plane, with the offsets of the plane in the input and in the result.
func (d *Device) eachPlane(w window, fn func(in, out int)) func() {
	group := rowsPerTask(w.OH*w.OW*w.KH*w.KW, costlyBlock)
	return d.parallel(blocks(w.planes, group), func(_, i int) {
		lo, hi := span(i, group, w.planes)
		for p := lo; p < hi; p++ {
			fn(p*w.H*w.W, p*w.OH*w.OW)
		}
	})
}

func maxPool(d *Device, c device.Call) (func(), error) {
	a, err := attrs[graph.PoolAttrs](c)
	if err != nil {
		return nil, err
	}
	a.H, a.W = c.In[0].Shape[2], c.In[0].Shape[3]
	w := windowOf(a, c.Out[0].Shape)
	x, y, index := f32(c.In[0]), f32(c.Out[0]), i32(c.Out[1])
	return d.eachPlane(w, func(in, out int) {
		x := x[in : in+w.H*w.W]
		for oh := range w.OH {
			for ow := range w.OW {
				h0, h1 := w.rows(oh)
				c0, c1 := w.cols(ow)
				best, at := float32(math.Inf(-1)), h0*w.W+c0
				for h := h0; h < h1; h++ {
					for q := h*w.W + c0; q < h*w.W+c1; q++ {
						if v := x[q]; !(v <= best) && best == best { // NaN wins and stays
							best, at = v, q
						}
					}
				}
				y[out], index[out] = best, int32(at)
				out++
			}
		}
	}), nil
}

func maxPoolGrad(d *Device, c device.Call) (func(), error) {
	a, err := attrs[graph.PoolAttrs](c)
	if err != nil {
		return nil, err
	}
	w := windowOf(a, c.In[0].Shape)
	dy, index, dx := f32(c.In[0]), i32(c.In[1]), f32(c.Out[0])
	return d.eachPlane(w, func(in, out int) {
		dx := dx[in : in+w.H*w.W]
		clear(dx)
		for q := out; q < out+w.OH*w.OW; q++ {
			dx[index[q]] += dy[q]
		}
	}), nil
}

func avgPool(d *Device, c device.Call) (func(), error) {
	a, err := attrs[graph.PoolAttrs](c)
	if err != nil {
		return nil, err
	}
	a.H, a.W = c.In[0].Shape[2], c.In[0].Shape[3]
	w := windowOf(a, c.Out[0].Shape)
	x, y := f32(c.In[0]), f32(c.Out[0])
	area := float32(a.KH * a.KW)
	return d.eachPlane(w, func(in, out int) {
		x := x[in : in+w.H*w.W]
		for oh := range w.OH {
			for ow := range w.OW {
				h0, h1 := w.rows(oh)
				c0, c1 := w.cols(ow)
				var sum float32
				for h := h0; h < h1; h++ {
					for q := h*w.W + c0; q < h*w.W+c1; q++ {
						sum += x[q]
					}
				}
				y[out] = sum / area
				out++
			}
		}
	}), nil
}

func avgPoolGrad(d *Device, c device.Call) (func(), error) {
	a, err := attrs[graph.PoolAttrs](c)
	if err != nil {
		return nil, err
	}
	w := windowOf(a, c.In[0].Shape)
	dy, dx := f32(c.In[0]), f32(c.Out[0])
	area := float32(a.KH * a.KW)
	return d.eachPlane(w, func(in, out int) {
		dx := dx[in : in+w.H*w.W]
		clear(dx)
		for oh := range w.OH {
			for ow := range w.OW {
				h0, h1 := w.rows(oh)
				c0, c1 := w.cols(ow)
				g := dy[out] / area
				for h := h0; h < h1; h++ {
					for q := h*w.W + c0; q < h*w.W+c1; q++ {
						dx[q] += g
					}
				}
				out++
			}
		}
	}), nil
}

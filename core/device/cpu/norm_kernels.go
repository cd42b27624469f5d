package cpu

import (
	"starling/core/device"
	"starling/core/graph"
	"starling/sdk/vec"
)

// Layer and RMS normalisation over the last dimension.
var normKernels = []kernel{
	{"layer_norm", "f32 f32", layerNorm}, {"layer_norm", "f32 f32 f32", layerNorm},
	{"layer_norm_grad", "f32 f32 f32 f32", layerNormGrad},
	{"rms_norm", "f32 f32", rmsNorm},
	{"rms_norm_grad", "f32 f32 f32 f32", rmsNormGrad},
}

func layerNorm(d *Device, c device.Call) (func(), error) {
	a, err := attrs[graph.NormAttrs](c)
	if err != nil {
		return nil, err
	}
	x, w, n := f32(c.In[0]), f32(c.In[1]), lastOf(c.In[0])
	var b []float32
	if len(c.In) == 3 {
		b = f32(c.In[2])
	}
	y, stats, eps := f32(c.Out[0]), f32(c.Out[1]), float32(a.Eps)
	return d.eachRowOf(len(x)/n, n, costlyBlock, func(r int) {
		lo, hi := r*n, (r+1)*n
		stats[2*r], stats[2*r+1] = vec.LayerNorm(y[lo:hi], x[lo:hi], w, b, eps)
	}), nil
}

func rmsNorm(d *Device, c device.Call) (func(), error) {
	a, err := attrs[graph.NormAttrs](c)
	if err != nil {
		return nil, err
	}
	x, w, n := f32(c.In[0]), f32(c.In[1]), lastOf(c.In[0])
	y, rstd, eps := f32(c.Out[0]), f32(c.Out[1]), float32(a.Eps)
	return d.eachRowOf(len(x)/n, n, costlyBlock, func(r int) {
		lo, hi := r*n, (r+1)*n
		rstd[r] = vec.RMSNorm(y[lo:hi], x[lo:hi], w, eps)
	}), nil
}

// The gradients of weight and bias are sums over rows. Each task adds the rows of one block, of normRows rows or as many
// as make normBlocks blocks, and the blocks' sums are then added in order.
const (
	normRows   = 32
	normBlocks = 64
)

func layerNormGrad(d *Device, c device.Call) (func(), error) {
	dy, x, w, stats, n := f32(c.In[0]), f32(c.In[1]), f32(c.In[2]), f32(c.In[3]), lastOf(c.In[1])
	dx, dw, db := f32(c.Out[0]), f32(c.Out[1]), f32(c.Out[2])
	return d.rowSums(len(x)/n, n, [][]float32{dw, db}, func(r int, sums []float32) {
		lo, hi := r*n, (r+1)*n
		mean, rstd := stats[2*r], stats[2*r+1]
		vec.LayerNormGradParams(sums[:n], sums[n:], dy[lo:hi], x[lo:hi], mean, rstd)
		vec.LayerNormGrad(dx[lo:hi], dy[lo:hi], x[lo:hi], w, mean, rstd)
	})
}

func rmsNormGrad(d *Device, c device.Call) (func(), error) {
	dy, x, w, rstd, n := f32(c.In[0]), f32(c.In[1]), f32(c.In[2]), f32(c.In[3]), lastOf(c.In[1])
	dx, dw := f32(c.Out[0]), f32(c.Out[1])
	return d.rowSums(len(x)/n, n, [][]float32{dw}, func(r int, sums []float32) {
		lo, hi := r*n, (r+1)*n
		vec.RMSNormGradParams(sums, dy[lo:hi], x[lo:hi], rstd[r])
		vec.RMSNormGrad(dx[lo:hi], dy[lo:hi], x[lo:hi], w, rstd[r])
	})
}

// rowSums makes a kernel that runs fn for every row and lets it add to sums, which has n elements for each of
// out; the totals over all rows end there.
func (d *Device) rowSums(rows, n int, out [][]float32, fn func(r int, sums []float32)) (func(), error) {
	each := max(normRows, blocks(rows, normBlocks))
	count, width := blocks(rows, each), n*len(out)
	stride := padded(4*width) / 4
	if err := d.reserve(0, 4*stride*count); err != nil {
		return nil, err
	}
	return sequence(
		d.parallel(count, func(_, i int) {
			s := d.sharedScratch()
			sums := s.floats(stride * count)[i*stride : i*stride+width]
			clear(sums)
			lo, hi := span(i, each, rows)
			for r := lo; r < hi; r++ {
				fn(r, sums)
			}
		}),
		func() {
			s := d.sharedScratch()
			sums := s.floats(stride * count)
			for k, y := range out {
				copy(y, sums[k*n:])
				for i := 1; i < count; i++ {
					vec.AddTo(y, sums[i*stride+k*n:i*stride+k*n+n])
				}
			}
		},
	), nil
}

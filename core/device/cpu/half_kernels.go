package cpu

import (
	"starling/core/device"
	"starling/core/graph"
	"starling/sdk/vec"
)

// Operations on bfloat16 values that are no products: operands are widened, computed in float32 as the kernels of that type do, and
// rounded once, in one pass where vec has one; otherwise a row or piece at a time in a thread's scratch memory.
var halfKernels = []kernel{
	{"add", "bf16 bf16", halfBinary(vec.AddBF16)}, {"sub", "bf16 bf16", halfBinary(vec.SubBF16)}, {"mul", "bf16 bf16", halfBinary(vec.MulBF16)},

	{"relu", "bf16", halfUnary(vec.ReluBF16)}, {"relu_grad", "bf16 bf16", halfPointwise(vec.ReluGradBF16)},
	{"gelu", "bf16", halfUnary(vec.GeluBF16)}, {"gelu_grad", "bf16 bf16", halfPointwise(vec.GeluGradBF16)},
	{"gelu_erf", "bf16", halfUnary(vec.GeluErfBF16)}, {"gelu_erf_grad", "bf16 bf16", halfPointwise(vec.GeluErfGradBF16)},
	{"silu", "bf16", halfUnary(vec.SiluBF16)}, {"silu_grad", "bf16 bf16", halfPointwise(vec.SiluGradBF16)},
	{"swiglu", "bf16 bf16", halfEach(2, 1, func(y, x [][]float32) {
		vec.Silu(y[0], x[0])
		vec.Mul(y[0], y[0], x[1])
	})},
	{"swiglu_grad", "bf16 bf16 bf16", halfEach(3, 2, func(y, x [][]float32) {
		vec.Mul(y[0], x[2], x[1])
		vec.SiluGrad(y[0], x[0], y[0])
		vec.Silu(y[1], x[0])
		vec.Mul(y[1], y[1], x[2])
	})},

	{"reshape", "bf16", copyWhole}, {"slice", "bf16", slice}, {"concat", "bf16...", concat}, {"pad_slice", "bf16", padSlice},

	{"layer_norm", "bf16 bf16", halfLayerNorm}, {"layer_norm", "bf16 bf16 bf16", halfLayerNorm},
	{"rms_norm", "bf16 bf16", halfRMSNorm},
	{"layer_norm_grad", "bf16 bf16 bf16 f32", halfLayerNormGrad},
	{"rms_norm_grad", "bf16 bf16 bf16 f32", halfRMSNormGrad},
}

// halfPiece is the elements that are widened at a time.
const halfPiece = 1024

// halfEach makes the kernels of an operation that works element by element on operands of one shape.
func halfEach(inputs, outputs int, f func(y, x [][]float32)) maker {
	return func(d *Device, c device.Call) (func(), error) {
		n := c.Out[0].Shape.Numel()
		var in, out [][]uint16
		for _, t := range c.In {
			in = append(in, bf16(t))
		}
		for _, t := range c.Out {
			out = append(out, bf16(t))
		}
		if err := d.reserve((inputs+outputs)*padded(4*halfPiece), 0); err != nil {
			return nil, err
		}
		headers := make([][][]float32, d.pool.threads)
		for i := range headers {
			headers[i] = make([][]float32, inputs+outputs)
		}
		return d.parallel(blocks(n, costlyBlock), func(thread, t int) {
			own, h := d.ownScratch(thread), headers[thread]
			for i := range h {
				h[i] = own.floats(halfPiece)
			}
			from, to := span(t, costlyBlock, n)
			for lo := from; lo < to; lo += halfPiece {
				hi := min(lo+halfPiece, to)
				for i := range h {
					h[i] = h[i][:hi-lo]
				}
				x, y := h[:inputs], h[inputs:]
				for i := range x {
					vec.BF16ToF32(x[i], in[i][lo:hi])
				}
				f(y, x)
				for i := range y {
					vec.F32ToBF16(out[i][lo:hi], y[i])
				}
			}
		}), nil
	}
}

// halfUnary and halfPointwise make the kernels of operations that vec has on bfloat16 operands of one shape.
func halfUnary(f func(y, x []uint16)) maker {
	return func(d *Device, c device.Call) (func(), error) {
		x, y := bf16(c.In[0]), bf16(c.Out[0])
		return d.parallelSpan(len(y), costlyBlock, func(lo, hi int) { f(y[lo:hi], x[lo:hi]) }), nil
	}
}

func halfPointwise(f func(y, a, b []uint16)) maker {
	return func(d *Device, c device.Call) (func(), error) {
		a, b, y := bf16(c.In[0]), bf16(c.In[1]), bf16(c.Out[0])
		return d.parallelSpan(len(y), costlyBlock, func(lo, hi int) { f(y[lo:hi], a[lo:hi], b[lo:hi]) }), nil
	}
}

// halfBinary makes the kernels of a broadcasting operation.
func halfBinary(f func(y, a, b []uint16)) maker {
	return func(d *Device, c device.Call) (func(), error) {
		a, b, y := bf16(c.In[0]), bf16(c.In[1]), bf16(c.Out[0])
		shape := c.Out[0].Shape
		w := newWalk(shape, shape.Strides(), stretch(c.In[0].Shape, shape), stretch(c.In[1].Shape, shape))
		if err := d.reserve(2*padded(2*copies), 0); err != nil {
			return nil, err
		}
		return d.eachRow(w, cheapBlock, func(thread int, off [3]int, n int) {
			if n == 1 || w.step[1] != 0 && w.step[2] != 0 {
				f(y[off[0]:off[0]+n], a[off[1]:off[1]+n], b[off[2]:off[2]+n])
				return
			}
			own := d.ownScratch(thread)
			p, q := own.words(copies), own.words(copies) // of an operand that is one number for the row
			for k := range copies {
				p[k], q[k] = a[off[1]], b[off[2]]
			}
			for lo := 0; lo < n; lo += copies {
				k := min(copies, n-lo)
				p, q := p[:k], q[:k]
				if w.step[1] != 0 {
					p = a[off[1]+lo:][:k]
				}
				if w.step[2] != 0 {
					q = b[off[2]+lo:][:k]
				}
				f(y[off[0]+lo:][:k], p, q)
			}
		}), nil
	}
}

// halfRows makes a kernel that normalises: fn computes a row's result from its widened form and the weights, which
// are widened for each task.
func (d *Device) halfRows(c device.Call, fn func(r int, y, x, w, b []float32)) (func(), error) {
	x, y, n := bf16(c.In[0]), bf16(c.Out[0]), lastOf(c.In[0])
	if err := d.reserve(4*padded(4*n), 0); err != nil {
		return nil, err
	}
	rows := len(x) / n
	group := rowsPerTask(n, 2*costlyBlock)
	return d.parallel(blocks(rows, group), func(thread, t int) {
		own := d.ownScratch(thread)
		in, out, w := own.floats(n), own.floats(n), own.floats(n)
		vec.BF16ToF32(w, bf16(c.In[1]))
		var b []float32
		if len(c.In) == 3 {
			b = own.floats(n)
			vec.BF16ToF32(b, bf16(c.In[2]))
		}
		lo, hi := span(t, group, rows)
		for r := lo; r < hi; r++ {
			vec.BF16ToF32(in, x[r*n:(r+1)*n])
			fn(r, out, in, w, b)
			vec.F32ToBF16(y[r*n:(r+1)*n], out)
		}
	}), nil
}

func halfLayerNorm(d *Device, c device.Call) (func(), error) {
	a, err := attrs[graph.NormAttrs](c)
	if err != nil {
		return nil, err
	}
	stats, eps := f32(c.Out[1]), float32(a.Eps)
	return d.halfRows(c, func(r int, y, x, w, b []float32) { stats[2*r], stats[2*r+1] = vec.LayerNorm(y, x, w, b, eps) })
}

func halfRMSNorm(d *Device, c device.Call) (func(), error) {
	a, err := attrs[graph.NormAttrs](c)
	if err != nil {
		return nil, err
	}
	rstd, eps := f32(c.Out[1]), float32(a.Eps)
	return d.halfRows(c, func(r int, y, x, w, _ []float32) { rstd[r] = vec.RMSNorm(y, x, w, eps) })
}

func halfLayerNormGrad(d *Device, c device.Call) (func(), error) {
	stats, n := f32(c.In[3]), lastOf(c.In[1])
	return d.halfRowSums(c, 2, func(r int, dx, dy, x, w, sums []float32) {
		mean, rstd := stats[2*r], stats[2*r+1]
		vec.LayerNormGradParams(sums[:n], sums[n:], dy, x, mean, rstd)
		vec.LayerNormGrad(dx, dy, x, w, mean, rstd)
	})
}

func halfRMSNormGrad(d *Device, c device.Call) (func(), error) {
	rstd := f32(c.In[3])
	return d.halfRowSums(c, 1, func(r int, dx, dy, x, w, sums []float32) {
		vec.RMSNormGradParams(sums, dy, x, rstd[r])
		vec.RMSNormGrad(dx, dy, x, w, rstd[r])
	})
}

// halfRowSums is rowSums for the gradients of norms: (dy, x, w, …) to dx and so many sums over rows.
func (d *Device) halfRowSums(c device.Call, sums int, fn func(r int, dx, dy, x, w, sums []float32)) (func(), error) {
	dy, x, dx, n := bf16(c.In[0]), bf16(c.In[1]), bf16(c.Out[0]), lastOf(c.In[1])
	rows := len(x) / n
	each := max(normRows, blocks(rows, normBlocks))
	count, stride := blocks(rows, each), padded(4*n*sums)/4
	if err := d.reserve(4*padded(4*n), 4*stride*count); err != nil {
		return nil, err
	}
	return sequence(
		d.parallel(count, func(thread, t int) {
			own, shared := d.ownScratch(thread), d.sharedScratch()
			w, in, grad, out := own.floats(n), own.floats(n), own.floats(n), own.floats(n)
			vec.BF16ToF32(w, bf16(c.In[2]))
			total := shared.floats(stride * count)[t*stride:][:n*sums]
			clear(total)
			lo, hi := span(t, each, rows)
			for r := lo; r < hi; r++ {
				vec.BF16ToF32(grad, dy[r*n:(r+1)*n])
				vec.BF16ToF32(in, x[r*n:(r+1)*n])
				fn(r, out, grad, in, w, total)
				vec.F32ToBF16(dx[r*n:(r+1)*n], out)
			}
		}),
		func() {
			shared := d.sharedScratch()
			total := shared.floats(stride * count)
			first := total[:n*sums]
			for i := 1; i < count; i++ {
				vec.AddTo(first, total[i*stride:][:n*sums])
			}
			for k := range sums {
				vec.F32ToBF16(bf16(c.Out[1+k]), first[k*n:(k+1)*n])
			}
		},
	), nil
}

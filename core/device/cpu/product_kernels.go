package cpu

import (
	"starling/core/device"
	"starling/core/graph"
	"starling/core/tensor"
	"starling/sdk/vec"
)

// Matrix products. Every element is one chain of fused multiply-adds over ascending k, so that cutting the result
// into blocks changes no bits.
var productKernels = []kernel{
	{"matmul", "f32 f32", matmul},
	{"linear", "f32 f32", linear}, {"linear", "f32 f32 f32", linear},
	{"linear_grad_x", "f32 f32", linearGradX},
	{"linear_grad_w", "f32 f32", linearGradW},
	{"linear_grad_b", "f32", linearGradB},
}

const (
	// gemmThrift is the work, in multiply-adds, below which a block is not worth a task of its own.
	gemmThrift = 1 << 18
	// gemmShare is the work that a task gets where there is enough of it: packing its operands then costs a few percent.
	gemmShare = 8 << 20
)

// gemmBlocks returns the rows and columns of the blocks that a product is cut into: vec's proposal, with higher blocks while
// four remain or each has less than its share, and halved while there are fewer than four that are worth it. Low blocks
// lose more to packing than narrow ones do.
func gemmBlocks(m, n, k int) (mb, nb int) {
	mb, nb = vec.GemmTasks(m, n, k)
	parts := max(4, blocks(m*n*k/gemmShare, 2)*2)
	if high := blocks(m, blocks(parts, blocks(n, nb))); high > mb {
		mb = min((high+13)/14*14, 40*14)
	}
	for blocks(m, mb)*blocks(n, nb) < 4 && mb*nb*k > 2*gemmThrift {
		switch {
		case mb > 112 || mb >= 28 && nb < 64:
			mb = (blocks(mb, 2) + 13) / 14 * 14
		case nb >= 64:
			nb = (blocks(nb, 2) + 31) / 32 * 32
		default:
			return mb, nb
		}
	}
	return mb, nb
}

// products makes a kernel that computes several products of one shape. done, if set, is called for every finished
// block of rows i0 to i1 and columns j0 to j1 of product p.
func (d *Device) products(ps []vec.GemmArgs, done func(p, i0, i1, j0, j1 int)) (func(), error) {
	if len(ps) == 0 {
		return func() {}, nil
	}
	m, n, k := ps[0].M, ps[0].N, ps[0].K
	need := vec.GemmScratch(&ps[0])
	if err := d.reserve(4*need, 0); err != nil {
		return nil, err
	}
	mb, nb := gemmBlocks(m, n, k)
	if len(ps) >= 4 {
		mb, nb = vec.GemmTasks(m, n, k)
	}
	rows, cols := blocks(m, mb), blocks(n, nb)
	group := max(1, gemmThrift/max(1, mb*nb*k)) // small blocks go together
	total := len(ps) * rows * cols
	return d.parallel(blocks(total, group), func(thread, t int) {
		s := d.ownScratch(thread)
		scratch := s.floats(need)
		lo, hi := span(t, group, total)
		for b := lo; b < hi; b++ {
			p := b / (rows * cols)
			i0, i1 := span(b/cols%rows, mb, m)
			j0, j1 := span(b%cols, nb, n)
			vec.Gemm(&ps[p], i0, i1, j0, j1, scratch)
			if done != nil {
				done(p, i0, i1, j0, j1)
			}
		}
	}), nil
}

func linear(d *Device, c device.Call) (func(), error) {
	x, w, y := f32(c.In[0]), f32(c.In[1]), f32(c.Out[0])
	out, in := c.In[1].Shape[0], c.In[1].Shape[1]
	g := vec.GemmArgs{M: len(x) / in, N: out, K: in, A: x, LDA: in, B: w, LDB: in, TransB: true, C: y, LDC: out}
	if len(c.In) == 2 {
		return d.products([]vec.GemmArgs{g}, nil)
	}
	b := f32(c.In[2])
	return d.products([]vec.GemmArgs{g}, func(_, i0, i1, j0, j1 int) {
		for i := i0; i < i1; i++ {
			vec.AddTo(y[i*out+j0:i*out+j1], b[j0:j1])
		}
	})
}

func linearGradX(d *Device, c device.Call) (func(), error) {
	dy, w, dx := f32(c.In[0]), f32(c.In[1]), f32(c.Out[0])
	out, in := c.In[1].Shape[0], c.In[1].Shape[1]
	return d.products([]vec.GemmArgs{{M: len(dy) / out, N: in, K: out, A: dy, LDA: out, B: w, LDB: in, C: dx, LDC: in}}, nil)
}

func linearGradW(d *Device, c device.Call) (func(), error) {
	dy, x, dw := f32(c.In[0]), f32(c.In[1]), f32(c.Out[0])
	out, in := lastOf(c.In[0]), lastOf(c.In[1])
	return d.products([]vec.GemmArgs{{
		M: out, N: in, K: len(x) / in, A: dy, LDA: out, TransA: true, B: x, LDB: in, C: dw, LDC: in, Accumulate: c.Accum,
	}}, nil)
}

// linearGradB adds rows in order; tasks own columns.
func linearGradB(d *Device, c device.Call) (func(), error) {
	dy, db, n := f32(c.In[0]), f32(c.Out[0]), lastOf(c.In[0])
	rows := len(dy) / n
	width := max(64, (blocks(n, 4)+31)/32*32)
	return d.parallelSpan(n, width, func(lo, hi int) {
		clear(db[lo:hi])
		vec.SumRowsTo(db[lo:hi], dy[lo:], rows, n)
	}), nil
}

func matmul(d *Device, c device.Call) (func(), error) {
	a, err := attrs[graph.MatmulAttrs](c)
	if err != nil {
		return nil, err
	}
	x, w, y := f32(c.In[0]), f32(c.In[1]), f32(c.Out[0])
	xs, ws, ys := c.In[0].Shape, c.In[1].Shape, c.Out[0].Shape
	xb, wb, yb := xs[:len(xs)-2], ws[:len(ws)-2], ys[:len(ys)-2]
	m, n := ys[len(ys)-2], ys[len(ys)-1]
	k := xs[len(xs)-1]
	if a.TransA {
		k = xs[len(xs)-2]
	}
	g := vec.GemmArgs{
		M: m, N: n, K: k, LDC: n,
		LDA: xs[len(xs)-1], TransA: a.TransA,
		LDB: ws[len(ws)-1], TransB: a.TransB,
	}
	if prod(wb) == 1 && !a.TransA { // one right operand for all: one tall product
		g.M = prod(yb) * m
		g.A, g.B, g.C = x, w, y
		return d.products([]vec.GemmArgs{g}, nil)
	}
	walk := newWalk(yb, scaled(tensor.Shape(yb).Strides(), m*n), scaled(stretch(xb, yb), m*k), scaled(stretch(wb, yb), k*n))
	ps := make([]vec.GemmArgs, prod(yb))
	for i := range ps {
		off := walk.element(i)
		ps[i] = g
		ps[i].C, ps[i].A, ps[i].B = y[off[0]:off[0]+m*n], x[off[1]:off[1]+m*k], w[off[2]:off[2]+k*n]
	}
	return d.products(ps, nil)
}

// scaled multiplies a list of strides.
func scaled(strides []int, by int) []int {
	for i := range strides {
		strides[i] *= by
	}
	return strides
}

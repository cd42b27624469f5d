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
	// gemmShare is the work that a task gets where there is enough of it.
	gemmShare = 2 << 20
	// gemmTasks is how many tasks a product of enough work is cut into at least, so that threads end together.
	gemmTasks = 8
	// gemmHigh is the most rows of a block: as many rows of the left operand as stay in the second-level cache beside a strip of
	// the right one.
	gemmHigh = 392
	// gemmWidth is the least width that blocks are cut down to.
	gemmWidth = 96
	// packedMost bounds the right operand that is packed whole, in elements.
	packedMost = 12 << 20
)

// cut is how a product is cut into blocks of rows and columns.
type cut struct {
	mb, nb     int
	rows, cols int
	// whole says that the right operand is packed once, for all blocks, before the first is computed; otherwise each block packs
	// what it needs, which is right where no other block needs the same.
	whole bool
}

// cutProduct follows the shape alone. A result of few rows is cut into strips of columns; others are cut into rows as well.
func cutProduct(m, n, k int) cut {
	want := min(max(m*n*k/gemmShare, 1), gemmTasks)
	c := cut{rows: 1, cols: blocks(n, 512)}
	if m <= gemmHigh+gemmHigh/8 && n >= gemmWidth*want {
		c.cols = max(c.cols, min(want, n/gemmWidth))
	} else {
		c.rows = max(blocks(m, gemmHigh), blocks(want, c.cols))
		if c.rows > 1 && c.rows*c.cols%2 == 1 {
			c.rows++
		}
	}
	c.nb = (blocks(n, c.cols) + 31) / 32 * 32
	c.mb = blocks(m, c.rows)
	c.rows, c.cols = blocks(m, c.mb), blocks(n, c.nb)
	c.whole = c.rows > 1 && n*k <= packedMost
	return c
}

// products makes a kernel that computes several products of one shape.
func (d *Device) products(ps []vec.GemmArgs) (func(), error) {
	if len(ps) == 0 {
		return func() {}, nil
	}
	m, n, k := ps[0].M, ps[0].N, ps[0].K
	if len(ps) == 1 {
		if c := cutProduct(m, n, k); c.whole {
			return d.packedProduct(&ps[0], c)
		}
	}
	need := vec.GemmScratch(&ps[0])
	if err := d.reserve(4*need, 0); err != nil {
		return nil, err
	}
	c := cutProduct(m, n, k)
	if len(ps) >= 4 {
		c.mb, c.nb = vec.GemmTasks(m, n, k)
		c.rows, c.cols = blocks(m, c.mb), blocks(n, c.nb)
	}
	group := max(1, gemmThrift/max(1, c.mb*c.nb*k)) // small blocks go together
	total := len(ps) * c.rows * c.cols
	return d.parallel(blocks(total, group), func(thread, t int) {
		s := d.ownScratch(thread)
		scratch := s.floats(need)
		lo, hi := span(t, group, total)
		for b := lo; b < hi; b++ {
			p := b / (c.rows * c.cols)
			i0, i1 := span(b/c.cols%c.rows, c.mb, m)
			j0, j1 := span(b%c.cols, c.nb, n)
			vec.Gemm(&ps[p], i0, i1, j0, j1, scratch)
		}
	}), nil
}

// packWidth is the columns that one task packs.
const packWidth = 128

// packedProduct packs the right operand whole, then computes the blocks.
func (d *Device) packedProduct(g *vec.GemmArgs, c cut) (func(), error) {
	size := vec.GemmPacked(g)
	packed := *g
	packed.Packed = make([]float32, 0) // of no size yet: only tells GemmScratch that blocks need none for B
	need := vec.GemmScratch(&packed)
	if err := d.reserve(4*need, 4*size); err != nil {
		return nil, err
	}
	steps := vec.GemmPackSteps(g)
	across := blocks(g.N, packWidth)
	// Reserving may move the memory until the last kernel is made, so each run looks where it is.
	locate := func() {
		s := d.sharedScratch()
		packed.Packed = s.floats(size)
	}
	return sequence(
		locate,
		d.parallel(blocks(g.K, steps)*across, func(_, t int) {
			k0, k1 := span(t/across, steps, g.K)
			j0, j1 := span(t%across, packWidth, g.N)
			vec.GemmPack(&packed, k0, k1, j0, j1)
		}),
		d.parallel(c.rows*c.cols, func(thread, t int) {
			s := d.ownScratch(thread)
			i0, i1 := span(t/c.cols, c.mb, g.M)
			j0, j1 := span(t%c.cols, c.nb, g.N)
			vec.Gemm(&packed, i0, i1, j0, j1, s.floats(need))
		}),
	), nil
}

func linear(d *Device, c device.Call) (func(), error) {
	x, w, y := f32(c.In[0]), f32(c.In[1]), f32(c.Out[0])
	out, in := c.In[1].Shape[0], c.In[1].Shape[1]
	g := vec.GemmArgs{M: len(x) / in, N: out, K: in, A: x, LDA: in, B: w, LDB: in, TransB: true, C: y, LDC: out}
	if len(c.In) == 3 {
		g.Bias = f32(c.In[2])
	}
	return d.products([]vec.GemmArgs{g})
}

func linearGradX(d *Device, c device.Call) (func(), error) {
	dy, w, dx := f32(c.In[0]), f32(c.In[1]), f32(c.Out[0])
	out, in := c.In[1].Shape[0], c.In[1].Shape[1]
	return d.products([]vec.GemmArgs{{M: len(dy) / out, N: in, K: out, A: dy, LDA: out, B: w, LDB: in, C: dx, LDC: in}})
}

func linearGradW(d *Device, c device.Call) (func(), error) {
	dy, x, dw := f32(c.In[0]), f32(c.In[1]), f32(c.Out[0])
	out, in := lastOf(c.In[0]), lastOf(c.In[1])
	return d.products([]vec.GemmArgs{{
		M: out, N: in, K: len(x) / in, A: dy, LDA: out, TransA: true, B: x, LDB: in, C: dw, LDC: in, Accumulate: c.Accum,
	}})
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
		return d.products([]vec.GemmArgs{g})
	}
	walk := newWalk(yb, scaled(tensor.Shape(yb).Strides(), m*n), scaled(stretch(xb, yb), m*k), scaled(stretch(wb, yb), k*n))
	ps := make([]vec.GemmArgs, prod(yb))
	for i := range ps {
		off := walk.element(i)
		ps[i] = g
		ps[i].C, ps[i].A, ps[i].B = y[off[0]:off[0]+m*n], x[off[1]:off[1]+m*k], w[off[2]:off[2]+k*n]
	}
	return d.products(ps)
}

// scaled multiplies a list of strides.
func scaled(strides []int, by int) []int {
	for i := range strides {
		strides[i] *= by
	}
	return strides
}

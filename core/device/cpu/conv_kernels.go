package cpu

import (
	"starling/core/device"
	"starling/core/graph"
	"starling/sdk/vec"
)

// Convolution over [N,C,H,W] as matrix products. The columns of a product are pixels, of a part of one image or of several whole
// images; its rows are the elements of a window. The matrix of windows exists a block at a time, in the order in which tiles read it,
// in a thread's scratch memory, where it stays in the second-level cache. How it is cut changes no bits: every element is one chain,
// in conv2d over the window's channels, rows and columns, in conv2d_grad_x over output channels and the places of the window that
// show the pixel, in conv2d_grad_w over images and output pixels, each ascending.
var convKernels = []kernel{
	{"conv2d", "f32 f32", conv2d}, {"conv2d", "f32 f32 f32", conv2d},
	{"conv2d_grad_x", "f32 f32", conv2dGradX},
	{"conv2d_grad_w", "f32 f32", conv2dGradW},
}

const (
	// convPixels is the most pixels that a block has.
	convPixels = 256
	// convSteps is about the most rows of the matrix of windows that one product sums over.
	convSteps = 384
	// convTasks is how many tasks there are at least, where there is enough to share.
	convTasks = 4
)

// product is one thread's product.
type product struct {
	gemm vec.GemmArgs
	_    [cacheLine]byte
}

// workspace reserves what a task needs, pieces of so many floats and the scratch memory of its largest product, and what all share.
func (d *Device) workspace(shape vec.GemmArgs, shared int, pieces ...int) (need int, threads []product, err error) {
	need = vec.GemmScratch(&shape)
	bytes := padded(4 * need)
	for _, p := range pieces {
		bytes += padded(4 * p)
	}
	return need, make([]product, d.pool.threads), d.reserve(bytes, padded(4*shared))
}

// evenly cuts n into pieces of at most size, all about as long, in whole units.
func evenly(n, size, unit int) int {
	return max(1, blocks(blocks(n, blocks(n, max(size, 1))), unit)) * unit
}

// stepsOf is how many rows of the windows of so many channels are summed at a time: whole channels, where a window has no more places
// than that.
func stepsOf(channels, places int) int {
	if places >= convSteps {
		return evenly(channels*places, convSteps, 1)
	}
	return evenly(channels, convSteps/max(1, places), 1) * places
}

// share is the rows of a task's product: fewer than all where there are too few tasks otherwise.
func share(rows, tasks int) int {
	if few := blocks(convTasks, max(1, tasks)); few > 1 {
		return min(rows, evenly(rows, max(64, blocks(rows, few)), 1))
	}
	return rows
}

func conv2d(d *Device, c device.Call) (func(), error) {
	a, err := attrs[graph.ConvAttrs](c)
	if err != nil {
		return nil, err
	}
	x, w, y := f32(c.In[0]), f32(c.In[1]), f32(c.Out[0])
	var bias []float32
	if len(c.In) == 3 {
		bias = f32(c.In[2])
	}
	g := newConv(a, c.In[0].Shape, c.In[1].Shape, c.Out[0].Shape)
	at := cutPixels(g.N, g.area, convPixels)
	kernel := g.KH * g.KW
	steps := stepsOf(g.C, kernel)
	from := g.sees(at, blocks(steps, kernel)+1)
	high := share(g.O, at.blocks*a.Groups)
	parts := blocks(g.O, high)
	result := 0
	if at.images > 1 {
		result = high * at.most
	}
	shape := vec.GemmArgs{M: high, N: at.most, K: steps, Packed: []float32{}}
	packed, room := vec.GemmPacked(&shape), from.floats(at.images)
	need, threads, err := d.workspace(shape, 0, packed, room, result)
	if err != nil {
		return nil, err
	}
	return d.parallel(at.blocks*a.Groups*parts, func(thread, task int) {
		own := d.ownScratch(thread)
		packed, room, scratch, sums := own.floats(packed), own.floats(room), own.floats(need), own.floats(result)
		o0, o1 := span(task%parts, high, g.O)
		group := task / parts % a.Groups
		n0, n1, p0, p1 := at.block(task/parts/a.Groups, g.N, g.area)
		each := p1 - p0 // pixels of an image
		width := (n1 - n0) * each
		o0, o1 = group*g.O+o0, group*g.O+o1
		first := n0*g.outputs + o0*g.area + p0
		p := &threads[thread].gemm
		*p = vec.GemmArgs{M: o1 - o0, N: width, LDA: g.window, Packed: packed, C: y[first:], LDC: g.area}
		if at.images > 1 {
			p.C, p.LDC = sums, width
		}
		units := from.units[p0/vec.PieceWidth:][:blocks(width, vec.PieceWidth)]
		for r0 := 0; r0 < g.window; r0 += steps {
			r1 := min(r0+steps, g.window)
			c0, c1 := r0/kernel, blocks(r1, kernel)
			p.A, p.K, p.Accumulate = w[o0*g.window+r0:], r1-r0, r0 > 0
			packUnits(p, units, from.source(room, x, group, n0, n1, c0, c1, p0, p1), r0-c0*kernel, r1-c0*kernel, n1-n0)
			vec.Gemm(p, 0, p.M, 0, width, scratch)
		}
		if at.images == 1 && bias == nil {
			return
		}
		for o := range o1 - o0 {
			for n := range n1 - n0 {
				row := y[first+n*g.outputs+o*g.area:][:each]
				if at.images > 1 {
					copy(row, sums[o*width+n*each:])
				}
				if bias != nil {
					vec.AddScalar(row, row, bias[o0+o])
				}
			}
		}
	}), nil
}

// packUnits packs rows r0 to r1 of the windows that units show; pieces of images from last on are absent.
func packUnits(p *vec.GemmArgs, units [][]shown, from vec.Source, r0, r1, last int) {
	eachPiece(units, from, last, func(u int, piece *vec.Piece, from vec.Source, over bool) {
		vec.GemmPackPiece(p, u, 0, piece, from, r0, r1, over)
	})
}

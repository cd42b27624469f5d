package cpu

import (
	"starling/core/device"
	"starling/core/graph"
	"starling/sdk/vec"
)

// Convolution over [N,C,H,W] as matrix products. The columns of a product are output pixels, of a strip of rows of one image or
// of several whole images; its rows are the elements of a window. The matrix between them is unrolled a block at a time, into a
// thread's scratch memory, where it stays in the second-level cache. How it is cut changes no bits of conv2d and conv2d_grad_w:
// every element is one chain. In conv2d_grad_x strips of output rows do, so they are a constant of the shape.
var convKernels = []kernel{
	{"conv2d", "f32 f32", conv2d}, {"conv2d", "f32 f32 f32", conv2d},
	{"conv2d_grad_x", "f32 f32", conv2dGradX},
	{"conv2d_grad_w", "f32 f32", conv2dGradW},
}

const (
	// stripFloats bounds the unrolled matrix of a strip of conv2d_grad_x (a single row of output pixels may exceed it).
	stripFloats = 32768
	// convPixels is the most output pixels that a block has (a single row of them may exceed it).
	convPixels = 256
	// convSteps is the most rows of a window, or pixels, that one product sums over.
	convSteps = 384
	// convTasks is how many tasks there are at least, where there is enough to share.
	convTasks = 4
)

// conv is a convolution's geometry.
type conv struct {
	graph.ConvAttrs
	N, C, O            int // images, channels of a group, outputs of a group
	imageH, imageW     int
	KH, KW, OH, OW     int
	window             int // C*KH*KW
	image, plane, area int // elements of an image of all groups, of an input plane, of an output plane
	outputs            int // elements of a result's image of all groups
}

func newConv(a graph.ConvAttrs, x, w, y []int) *conv {
	g := &conv{
		ConvAttrs: a, N: x[0], C: w[1], O: w[0] / a.Groups, imageH: x[2], imageW: x[3],
		KH: w[2], KW: w[3], OH: y[2], OW: y[3],
	}
	g.window = g.C * g.KH * g.KW
	g.plane, g.area = g.imageH*g.imageW, g.OH*g.OW
	g.image, g.outputs = g.C*a.Groups*g.plane, w[0]*g.area
	return g
}

// pixels is how output pixels are cut into blocks: strips of rows of one image, or whole images.
type pixels struct {
	images, strip int // of a block, at most
	strips        int // of an image
	blocks        int
	most          int // pixels of a block, at most
}

func (g *conv) pixels(most int) pixels {
	p := pixels{images: 1, strip: min(g.OH, max(1, most/g.OW))}
	if p.strip == g.OH {
		p.images = min(g.N, max(1, most/g.area))
	}
	p.strips = blocks(g.OH, p.strip)
	p.blocks = blocks(g.N, p.images) * p.strips
	p.most = p.images * p.strip * g.OW
	return p
}

// block is the images and the output rows of block i.
func (g *conv) block(p pixels, i int) (n0, n1, h0, h1 int) {
	n0, n1 = span(i/p.strips, p.images, g.N)
	h0, h1 = span(i%p.strips, p.strip, g.OH)
	return n0, n1, h0, h1
}

// inside is the range of output columns that see the image through the window's column kw, and the image's column that output
// column 0 sees.
func (g *conv) inside(kw int) (lo, hi, w int) {
	w = kw*g.DilationW - g.PadW
	lo = min(blocks(max(-w, 0), g.StrideW), g.OW)
	hi = max(min(g.OW, blocks(max(g.imageW-w, 0), g.StrideW)), lo)
	return lo, hi, w
}

// shortRow is the length up to which a loop copies a row faster than a call does.
const shortRow = 12

// unroll copies, for output rows h0 to h1 and rows r0 to r1 of the window of a group's planes x, what each element of the window
// sees: col[(c, kh, kw)-r0][(oh-h0, ow)], rows of col ld apart.
func (g *conv) unroll(col []float32, ld int, x []float32, r0, r1, h0, h1 int) {
	for r := r0; r < r1; r++ {
		c, kh, kw := r/(g.KH*g.KW), r/g.KW%g.KH, r%g.KW
		plane := x[c*g.plane : (c+1)*g.plane]
		to := col[(r-r0)*ld:][:(h1-h0)*g.OW]
		lo, hi, w := g.inside(kw)
		h := h0*g.StrideH - g.PadH + kh*g.DilationH
		for ; len(to) > 0; h += g.StrideH {
			out := to[:g.OW]
			to = to[g.OW:]
			if h < 0 || h >= g.imageH || lo == hi {
				clear(out)
				continue
			}
			for i := range lo {
				out[i] = 0
			}
			in := plane[h*g.imageW+w+lo*g.StrideW:]
			switch seen := out[lo:hi]; {
			case g.StrideW > 1:
				at := 0
				for i := range seen {
					seen[i] = in[at]
					at += g.StrideW
				}
			case len(seen) <= shortRow:
				for i := range seen { // a call of copy would cost more than the row
					seen[i] = in[i]
				}
			default:
				copy(seen, in)
			}
			for i := hi; i < len(out); i++ {
				out[i] = 0
			}
		}
	}
}

// roll is the transpose of unroll over whole channels: it adds each element of col to the pixel that it was copied from.
func (g *conv) roll(x, col []float32, ld, c0, c1, h0, h1 int) {
	for c := c0; c < c1; c++ {
		plane := x[c*g.plane : (c+1)*g.plane]
		for k := range g.KH * g.KW {
			from := col[((c-c0)*g.KH*g.KW+k)*ld:][:(h1-h0)*g.OW]
			lo, hi, w := g.inside(k % g.KW)
			h := h0*g.StrideH - g.PadH + k/g.KW*g.DilationH
			for ; len(from) > 0; h += g.StrideH {
				in := from[lo:hi]
				from = from[g.OW:]
				if h < 0 || h >= g.imageH || lo == hi {
					continue
				}
				row := plane[h*g.imageW+w+lo*g.StrideW:]
				switch {
				case g.StrideW > 1:
					at := 0
					for _, v := range in {
						row[at] += v
						at += g.StrideW
					}
				case len(in) <= shortRow:
					row = row[:len(in)]
					for i, v := range in {
						row[i] += v
					}
				default:
					vec.AddTo(row[:len(in)], in)
				}
			}
		}
	}
}

// product is one thread's product.
type product struct {
	gemm vec.GemmArgs
	_    [cacheLine]byte
}

// workspace reserves what a task needs: pieces of so many floats, and the scratch memory of its largest product.
func (d *Device) workspace(m, n, k int, pieces ...int) (need int, threads []product, err error) {
	need = vec.GemmScratch(&vec.GemmArgs{M: m, N: n, K: k})
	bytes := padded(4 * need)
	for _, p := range pieces {
		bytes += padded(4 * p)
	}
	return need, make([]product, d.pool.threads), d.reserve(bytes, 0)
}

// evenly cuts n into pieces of at most size, all about as long, in whole units.
func evenly(n, size, unit int) int {
	return max(1, blocks(blocks(n, blocks(n, max(size, 1))), unit)) * unit
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
	at := g.pixels(g.width())
	high := g.O // output channels of a task: fewer where there are too few blocks of pixels
	if few := blocks(convTasks, max(1, at.blocks*a.Groups)); few > 1 {
		high = evenly(g.O, max(64, blocks(g.O, few)), 1)
	}
	parts := blocks(g.O, high)
	steps := evenly(g.window, convSteps, 1)
	result := 0
	if at.images > 1 {
		result = high * at.most
	}
	need, threads, err := d.workspace(high, at.most, steps, steps*at.most, result)
	if err != nil {
		return nil, err
	}
	return d.parallel(at.blocks*a.Groups*parts, func(thread, task int) {
		own := d.ownScratch(thread)
		col, scratch, sums := own.floats(steps*at.most), own.floats(need), own.floats(result)
		o0, o1 := span(task%parts, high, g.O)
		group := task / parts % a.Groups
		n0, n1, h0, h1 := g.block(at, task/parts/a.Groups)
		each := (h1 - h0) * g.OW // pixels of an image
		width := (n1 - n0) * each
		o0, o1 = group*g.O+o0, group*g.O+o1
		first := n0*g.outputs + o0*g.area + h0*g.OW
		p := &threads[thread].gemm
		*p = vec.GemmArgs{M: o1 - o0, N: width, LDA: g.window, B: col, LDB: width, C: y[first:], LDC: g.area}
		if at.images > 1 {
			p.C, p.LDC = sums, width
		}
		for r0 := 0; r0 < g.window; r0 += steps {
			r1 := min(r0+steps, g.window)
			for n := n0; n < n1; n++ {
				g.unroll(col[(n-n0)*each:], width, x[n*g.image+group*g.C*g.plane:], r0, r1, h0, h1)
			}
			p.A, p.K, p.Accumulate = w[o0*g.window+r0:], r1-r0, r0 > 0
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

// width is the pixels of a block of conv2d. Products with few outputs read a narrow block where it lies; one with many packs a
// wide one.
func (g *conv) width() int {
	const narrow, few = 32, 140
	if g.O <= few && g.window >= narrow && (g.OW%narrow == 0 || narrow%g.OW == 0) {
		return narrow
	}
	return convPixels
}

// channelsPerTask is how many channels make a product worth a task: 64 rows or more.
func channelsPerTask(kernel int) int { return max(1, blocks(64, kernel)) }

func conv2dGradX(d *Device, c device.Call) (func(), error) {
	a, err := attrs[graph.ConvAttrs](c)
	if err != nil {
		return nil, err
	}
	dy, w, dx := f32(c.In[0]), f32(c.In[1]), f32(c.Out[0])
	g := newConv(a, c.Out[0].Shape, c.In[1].Shape, c.In[0].Shape)
	kernel := g.KH * g.KW
	channels := min(channelsPerTask(kernel), g.C)
	at := g.pixels(0) // strips of an image are part of the contract, however many images go together
	at.strip = min(g.OH, max(1, stripFloats/(channels*kernel*g.OW)))
	at.strips, at.images = blocks(g.OH, at.strip), 1
	if at.strips == 1 {
		at.images = min(g.N, max(1, convPixels/g.area))
	}
	at.most = at.images * at.strip * g.OW
	high := channels * kernel
	gathered := 0
	if at.images > 1 {
		gathered = g.O * at.most
	}
	need, threads, err := d.workspace(high, at.most, g.O, high*at.most, gathered)
	if err != nil {
		return nil, err
	}
	parts := blocks(g.C, channels)
	return d.parallel(blocks(g.N, at.images)*a.Groups, func(thread, task int) {
		own := d.ownScratch(thread)
		col, scratch, sees := own.floats(high*at.most), own.floats(need), own.floats(gathered)
		group := task % a.Groups
		n0, n1 := span(task/a.Groups, at.images, g.N)
		p := &threads[thread].gemm
		for n := n0; n < n1; n++ {
			clear(dx[n*g.image+group*g.C*g.plane:][:g.C*g.plane])
		}
		for h0 := 0; h0 < g.OH; h0 += at.strip {
			h1 := min(h0+at.strip, g.OH)
			each := (h1 - h0) * g.OW
			width := (n1 - n0) * each
			b, ldb := dy[n0*g.outputs+group*g.O*g.area+h0*g.OW:], g.area
			if at.images > 1 {
				g.gather(sees, dy, group, n0, n1)
				b, ldb = sees, width
			}
			for part := range parts {
				c0, c1 := span(part, channels, g.C)
				rows := (c1 - c0) * kernel
				*p = vec.GemmArgs{
					M: rows, N: width, K: g.O, A: w[group*g.O*g.window+c0*kernel:], LDA: g.window, TransA: true,
					B: b, LDB: ldb, C: col, LDC: width,
				}
				vec.Gemm(p, 0, rows, 0, width, scratch)
				for n := n0; n < n1; n++ {
					g.roll(dx[n*g.image+group*g.C*g.plane:], col[(n-n0)*each:], width, c0, c1, h0, h1)
				}
			}
		}
	}), nil
}

// gather lays the output planes of images n0 to n1 side by side: to[o][(n-n0, oh, ow)].
func (g *conv) gather(to, y []float32, group, n0, n1 int) {
	for o := range g.O {
		for n := n0; n < n1; n++ {
			copy(to[:g.area], y[n*g.outputs+(group*g.O+o)*g.area:])
			to = to[g.area:]
		}
	}
}

// conv2dGradW gives a task a range of the window's rows: it walks all images, so that every element is one chain over images and
// output pixels, ascending.
func conv2dGradW(d *Device, c device.Call) (func(), error) {
	a, err := attrs[graph.ConvAttrs](c)
	if err != nil {
		return nil, err
	}
	dy, x, dw := f32(c.In[0]), f32(c.In[1]), f32(c.Out[0])
	g := newConv(a, c.In[1].Shape, c.Out[0].Shape, c.In[0].Shape)
	at := g.pixels(convPixels)
	rows := min(evenly(g.window, max(32, min(384, g.window/(2*convTasks))), 32), g.window)
	gathered := 0
	if at.images > 1 {
		gathered = g.O * at.most
	}
	need, threads, err := d.workspace(g.O, rows, at.most, rows*at.most, gathered)
	if err != nil {
		return nil, err
	}
	parts := blocks(g.window, rows)
	return d.parallel(a.Groups*parts, func(thread, task int) {
		own := d.ownScratch(thread)
		col, scratch, sees := own.floats(rows*at.most), own.floats(need), own.floats(gathered)
		r0, r1 := span(task%parts, rows, g.window)
		group := task / parts
		p := &threads[thread].gemm
		for i := range at.blocks {
			n0, n1, h0, h1 := g.block(at, i)
			each := (h1 - h0) * g.OW
			width := (n1 - n0) * each
			for n := n0; n < n1; n++ {
				g.unroll(col[(n-n0)*each:], width, x[n*g.image+group*g.C*g.plane:], r0, r1, h0, h1)
			}
			a, lda := dy[n0*g.outputs+group*g.O*g.area+h0*g.OW:], g.area
			if at.images > 1 {
				g.gather(sees, dy, group, n0, n1)
				a, lda = sees, width
			}
			*p = vec.GemmArgs{
				M: g.O, N: r1 - r0, K: width, A: a, LDA: lda,
				B: col, LDB: width, TransB: true,
				C: dw[group*g.O*g.window+r0:], LDC: g.window, Accumulate: i > 0,
			}
			vec.Gemm(p, 0, g.O, 0, p.N, scratch)
		}
	}), nil
}

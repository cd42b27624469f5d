package cpu

import (
	"starling/core/device"
	"starling/core/graph"
	"starling/sdk/vec"
)

// Convolution over [N,C,H,W] as matrix products. The columns of a product are output pixels, its rows the elements of a
// window; the matrix between them is unrolled a strip of output rows at a time, into a thread's scratch memory.
var convKernels = []kernel{
	{"conv2d", "f32 f32", conv2d}, {"conv2d", "f32 f32 f32", conv2d},
	{"conv2d_grad_x", "f32 f32", conv2dGradX},
	{"conv2d_grad_w", "f32 f32", conv2dGradW},
}

// stripFloats bounds the unrolled matrix of a strip (a single row of output pixels may exceed it).
const stripFloats = 32768

// conv is a convolution's geometry.
type conv struct {
	graph.ConvAttrs
	N, C, O            int // images, channels of a group, outputs of a group
	imageH, imageW     int
	KH, KW, OH, OW     int
	window             int // C*KH*KW
	channels           int // input channels that one task unrolls
	strip              int // output rows that are unrolled at once
	image, plane, area int // elements of an image of all groups, of an input plane, of an output plane
}

func newConv(a graph.ConvAttrs, x, w, y []int) *conv {
	g := &conv{
		ConvAttrs: a, N: x[0], C: w[1], O: w[0] / a.Groups, imageH: x[2], imageW: x[3],
		KH: w[2], KW: w[3], OH: y[2], OW: y[3],
	}
	g.window = g.C * g.KH * g.KW
	g.plane, g.area = g.imageH*g.imageW, g.OH*g.OW
	g.image = g.C * a.Groups * g.plane
	return g
}

// unrolling settles how many channels and output rows are unrolled at once and returns the size of that matrix.
func (g *conv) unrolling(channels int) (floats int) {
	g.channels = min(channels, g.C)
	height := g.channels * g.KH * g.KW
	g.strip = min(g.OH, max(1, stripFloats/(height*g.OW)))
	return height * g.strip * g.OW
}

// unroll copies, for output rows h0 to h1 and channels c0 to c1 of a group's planes x, what each element of the window
// sees: col[(c-c0, kh, kw)][(oh-h0, ow)].
func (g *conv) unroll(col, x []float32, c0, c1, h0, h1 int) {
	for c := c0; c < c1; c++ {
		plane := x[c*g.plane : (c+1)*g.plane]
		for kh := range g.KH {
			for kw := range g.KW {
				for oh := h0; oh < h1; oh++ {
					out := col[:g.OW]
					col = col[g.OW:]
					h := oh*g.StrideH - g.PadH + kh*g.DilationH
					if h < 0 || h >= g.imageH {
						clear(out)
						continue
					}
					row := plane[h*g.imageW : (h+1)*g.imageW]
					w := kw*g.DilationW - g.PadW
					if g.StrideW == 1 {
						lo := min(max(-w, 0), g.OW)
						hi := max(min(g.OW, g.imageW-w), lo)
						clear(out[:lo])
						if lo < hi {
							copy(out[lo:hi], row[w+lo:])
						}
						clear(out[hi:])
						continue
					}
					for i := range out {
						out[i] = 0
						if w >= 0 && w < g.imageW {
							out[i] = row[w]
						}
						w += g.StrideW
					}
				}
			}
		}
	}
}

// roll is the transpose of unroll: it adds each element of col to the pixel that it was copied from.
func (g *conv) roll(x, col []float32, c0, c1, h0, h1 int) {
	for c := c0; c < c1; c++ {
		plane := x[c*g.plane : (c+1)*g.plane]
		for kh := range g.KH {
			for kw := range g.KW {
				for oh := h0; oh < h1; oh++ {
					in := col[:g.OW]
					col = col[g.OW:]
					h := oh*g.StrideH - g.PadH + kh*g.DilationH
					if h < 0 || h >= g.imageH {
						continue
					}
					row := plane[h*g.imageW : (h+1)*g.imageW]
					w := kw*g.DilationW - g.PadW
					for _, v := range in {
						if w >= 0 && w < g.imageW {
							row[w] += v
						}
						w += g.StrideW
					}
				}
			}
		}
	}
}

// plan is one thread's product.
type plan struct{ gemm vec.GemmArgs }

// reserve gets scratch memory for an unrolled matrix and the largest product with it.
func (g *conv) reserve(d *Device, floats, m, n, k int) (need int, threads []plan, err error) {
	args := vec.GemmArgs{M: m, N: n, K: k}
	need = vec.GemmScratch(&args)
	return need, make([]plan, d.pool.threads), d.reserve(padded(4*floats)+padded(4*need), 0)
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
	floats := g.unrolling(g.C)
	need, threads, err := g.reserve(d, floats, g.O, g.strip*g.OW, g.window)
	if err != nil {
		return nil, err
	}
	strips := blocks(g.OH, g.strip)
	return d.parallel(g.N*a.Groups*strips, func(thread, task int) {
		own := d.ownScratch(thread)
		col, scratch := own.floats(floats), own.floats(need)
		h0, h1 := span(task%strips, g.strip, g.OH)
		group, n := task/strips%a.Groups, task/strips/a.Groups
		pixels := (h1 - h0) * g.OW
		g.unroll(col, x[n*g.image+group*g.C*g.plane:], 0, g.C, h0, h1)
		first := n*a.Groups*g.O + group*g.O // the first output plane
		p := &threads[thread].gemm
		*p = vec.GemmArgs{
			M: g.O, N: pixels, K: g.window, A: w[group*g.O*g.window:], LDA: g.window,
			B: col, LDB: pixels, C: y[first*g.area+h0*g.OW:], LDC: g.area,
		}
		vec.Gemm(p, 0, g.O, 0, pixels, scratch)
		if bias == nil {
			return
		}
		for o := range g.O {
			row := p.C[o*g.area : o*g.area+pixels]
			vec.AddScalar(row, row, bias[group*g.O+o])
		}
	}), nil
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
	floats := g.unrolling(channelsPerTask(kernel))
	need, threads, err := g.reserve(d, floats, g.channels*kernel, g.strip*g.OW, g.O)
	if err != nil {
		return nil, err
	}
	parts := blocks(g.C, g.channels)
	return d.parallel(g.N*a.Groups*parts, func(thread, task int) {
		own := d.ownScratch(thread)
		col, scratch := own.floats(floats), own.floats(need)
		c0, c1 := span(task%parts, g.channels, g.C)
		group, n := task/parts%a.Groups, task/parts/a.Groups
		rows := (c1 - c0) * kernel
		planes := dx[n*g.image+group*g.C*g.plane:]
		clear(planes[c0*g.plane : c1*g.plane])
		first := n*a.Groups*g.O + group*g.O
		for h0 := 0; h0 < g.OH; h0 += g.strip {
			h1 := min(h0+g.strip, g.OH)
			pixels := (h1 - h0) * g.OW
			p := &threads[thread].gemm
			*p = vec.GemmArgs{
				M: rows, N: pixels, K: g.O, A: w[group*g.O*g.window+c0*kernel:], LDA: g.window, TransA: true,
				B: dy[first*g.area+h0*g.OW:], LDB: g.area, C: col, LDC: pixels,
			}
			vec.Gemm(p, 0, rows, 0, pixels, scratch)
			g.roll(planes, col, c0, c1, h0, h1)
		}
	}), nil
}

// conv2dGradW gives a task a range of input channels: it walks all images, so that every element is one chain over images and
// output pixels, ascending.
func conv2dGradW(d *Device, c device.Call) (func(), error) {
	a, err := attrs[graph.ConvAttrs](c)
	if err != nil {
		return nil, err
	}
	dy, x, dw := f32(c.In[0]), f32(c.In[1]), f32(c.Out[0])
	g := newConv(a, c.In[1].Shape, c.Out[0].Shape, c.In[0].Shape)
	kernel := g.KH * g.KW
	floats := g.unrolling(channelsPerTask(kernel))
	need, threads, err := g.reserve(d, floats, g.O, g.channels*kernel, g.strip*g.OW)
	if err != nil {
		return nil, err
	}
	parts := blocks(g.C, g.channels)
	return d.parallel(a.Groups*parts, func(thread, task int) {
		own := d.ownScratch(thread)
		col, scratch := own.floats(floats), own.floats(need)
		c0, c1 := span(task%parts, g.channels, g.C)
		group := task / parts
		rows := (c1 - c0) * kernel
		for n := range g.N {
			first := n*a.Groups*g.O + group*g.O
			for h0 := 0; h0 < g.OH; h0 += g.strip {
				h1 := min(h0+g.strip, g.OH)
				pixels := (h1 - h0) * g.OW
				g.unroll(col, x[n*g.image+group*g.C*g.plane:], c0, c1, h0, h1)
				p := &threads[thread].gemm
				*p = vec.GemmArgs{
					M: g.O, N: rows, K: pixels, A: dy[first*g.area+h0*g.OW:], LDA: g.area,
					B: col, LDB: pixels, TransB: true,
					C: dw[group*g.O*g.window+c0*kernel:], LDC: g.window, Accumulate: n+h0 > 0,
				}
				vec.Gemm(p, 0, g.O, 0, rows, scratch)
			}
		}
	}), nil
}

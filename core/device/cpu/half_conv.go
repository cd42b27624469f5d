package cpu

import (
	"starling/core/device"
	"starling/core/graph"
	"starling/core/tensor"
	"starling/sdk/vec"
)

// Convolution of bfloat16 images: sums in float32, in the class of arithmetic that vec.BF16Class names, and one rounding. The
// channels of a pixel are laid together first, so that what a window sees of a pixel is one piece of memory; conv2d and its
// gradient by x are then products whose rows are pixels. Every element is one chain over channels by the unit, then over the
// window, then over the unit's channels; in conv2d_grad_w_wide over images and output pixels.
var halfConvKernels = []kernel{
	{"conv2d", "bf16 bf16", halfConv2D}, {"conv2d", "bf16 bf16 bf16", halfConv2D},
	{"conv2d_grad_x", "bf16 bf16", halfConv2DGradX},
	{"conv2d_grad_w_wide", "bf16 bf16", halfConv2DGradW},
	{"conv2d_grad_w_wide", "f32 f32", conv2dGradW},
}

const (
	// halfPixels is the pixels of a task: whole panels.
	halfPixels = 4 * vec.PanelRows
	// halfSteps is about how many pixels one product of conv2d_grad_w_wide sums over.
	halfSteps = 512
	// fewChannels are laid together as they are; more take whole units.
	fewChannels = 16
	// halfTasks is how many tasks conv2d_grad_w_wide has at least, where the window can be shared.
	halfTasks = 8
)

// gathering is a convolution as a result's pixel sees it: which rows and columns of the source each place of the window shows.
type gathering struct {
	images, groups   int
	from, to         int // channels of a group in the source and in the result
	srcArea, dstArea int
	srcW, dstW       int
	rows, cols       [][]int32 // [place in the window][row or column of the result]: of the source, or -1
	window           int       // places
	unit, parts      int       // channels that lie together; of a group
	steps            int       // window*unit
	shown            []int32   // [result pixel][place in the window]: the source pixel, or -1; where whole units lie together
}

func newGathering(images, groups, from, to int, src, dst tensor.Shape, rows, cols [][]int32) *gathering {
	g := &gathering{
		images: images, groups: groups, from: from, to: to, srcArea: src[2] * src[3], dstArea: dst[2] * dst[3], srcW: src[3], dstW: dst[3],
		rows: rows, cols: cols, window: len(rows) * len(cols), unit: vec.ChannelUnit,
	}
	if from <= fewChannels {
		g.unit = from
	}
	g.parts = blocks(from, g.unit)
	g.steps = g.window * g.unit
	if g.unit != vec.ChannelUnit {
		return g
	}
	for p := range g.dstArea {
		for k := range g.window {
			r, c := rows[k/len(cols)][p/g.dstW], cols[k%len(cols)][p%g.dstW]
			at := int32(-1)
			if r >= 0 && c >= 0 {
				at = r*int32(g.srcW) + c
			}
			g.shown = append(g.shown, at)
		}
	}
	return g
}

// looks is where output index i of n sees an extent of size through each place of a window.
func looks(kernel, n, size int, at func(k, i int) int) [][]int32 {
	all := make([][]int32, kernel)
	for k := range all {
		all[k] = make([]int32, n)
		for i := range all[k] {
			all[k][i] = -1
			if v := at(k, i); v >= 0 && v < size {
				all[k][i] = int32(v)
			}
		}
	}
	return all
}

// convForward is the convolution x[N,C,H,W] by w to y.
func convForward(a graph.ConvAttrs, x, w, y tensor.Shape) *gathering {
	rows := looks(w[2], y[2], x[2], func(k, i int) int { return i*a.StrideH - a.PadH + k*a.DilationH })
	cols := looks(w[3], y[3], x[3], func(k, i int) int { return i*a.StrideW - a.PadW + k*a.DilationW })
	return newGathering(x[0], a.Groups, w[1], w[0]/a.Groups, x, y, rows, cols)
}

// convBackward gathers what each pixel of dx gets of dy.
func convBackward(a graph.ConvAttrs, dy, w, dx tensor.Shape) *gathering {
	back := func(stride, pad, dilation int) func(k, i int) int {
		return func(k, i int) int {
			if v := i + pad - k*dilation; v >= 0 && v%stride == 0 {
				return v / stride
			}
			return -1
		}
	}
	rows := looks(w[2], dx[2], dy[2], back(a.StrideH, a.PadH, a.DilationH))
	cols := looks(w[3], dx[3], dy[3], back(a.StrideW, a.PadW, a.DilationW))
	return newGathering(dx[0], a.Groups, w[0]/a.Groups, w[1], dy, dx, rows, cols)
}

// words is the elements of the source with the channels of a pixel together: [image][group][part][pixel][unit].
func (g *gathering) words() int { return g.images * g.groups * g.parts * g.srcArea * g.unit }

// lay is the kernel that makes that form of x in shared scratch memory, which begins with it.
func (g *gathering) lay(d *Device, x []uint16) func() {
	return d.parallel(g.images*g.groups*g.parts, func(_, t int) {
		s := d.sharedScratch()
		size := g.srcArea * g.unit
		to := s.words(g.words())[t*size:][:size]
		c0, c1 := span(t%g.parts, g.unit, g.from)
		from := x[(t/g.parts*g.from+c0)*g.srcArea:]
		if g.unit == vec.ChannelUnit {
			vec.ChannelsLast(to, from, g.srcArea, c1-c0, g.srcArea)
			return
		}
		for c := range c1 - c0 {
			for p, v := range from[c*g.srcArea:][:g.srcArea] {
				to[p*g.unit+c] = v
			}
		}
	})
}

// see copies what places k0 to k1 of the window see from result pixels p0 to p1 of all images: col[p-p0][(k-k0, unit)].
func (g *gathering) see(col, laid []uint16, group, part, p0, p1, k0, k1 int) {
	width := (k1 - k0) * g.unit
	if g.shown != nil {
		for p0 < p1 {
			n, at := p0/g.dstArea, p0%g.dstArea
			count := min(p1-p0, g.dstArea-at) // in one image
			plane := laid[((n*g.groups+group)*g.parts+part)*g.srcArea*g.unit:][:g.srcArea*g.unit]
			vec.GatherUnits(col, plane, count, k1-k0, g.shown[at*g.window+k0:], g.window)
			col = col[count*width:]
			p0 += count
		}
		return
	}
	kw := len(g.cols)
	for p := p0; p < p1; p++ {
		n, at := p/g.dstArea, p%g.dstArea
		h, w := at/g.dstW, at%g.dstW
		plane := laid[((n*g.groups+group)*g.parts+part)*g.srcArea*g.unit:][:g.srcArea*g.unit]
		to := col[(p-p0)*width:][:width]
		row, k := k0/kw, k0%kw
		for len(to) > 0 {
			r, c := g.rows[row][h], g.cols[k][w]
			if r < 0 || c < 0 {
				clear(to[:g.unit])
			} else {
				copy(to[:g.unit], plane[(int(r)*g.srcW+int(c))*g.unit:])
			}
			to = to[g.unit:]
			if k++; k == kw {
				row, k = row+1, 0
			}
		}
	}
}

func halfConv2D(d *Device, c device.Call) (func(), error) {
	a, err := attrs[graph.ConvAttrs](c)
	if err != nil {
		return nil, err
	}
	g := convForward(a, c.In[0].Shape, c.In[1].Shape, c.Out[0].Shape)
	var bias []uint16
	if len(c.In) == 3 {
		bias = bf16(c.In[2])
	}
	w := bf16(c.In[1])
	return g.convolve(d, bf16(c.In[0]), bf16(c.Out[0]), bias, func(to []uint16, group, part int) {
		c0, c1 := span(part, g.unit, g.from)
		for o := range g.to {
			from := w[((group*g.to+o)*g.from+c0)*g.window:]
			row := to[o*g.steps:][:g.steps]
			for k := range g.window {
				for c := range c1 - c0 {
					row[k*g.unit+c] = from[c*g.window+k]
				}
			}
		}
	})
}

func halfConv2DGradX(d *Device, c device.Call) (func(), error) {
	a, err := attrs[graph.ConvAttrs](c)
	if err != nil {
		return nil, err
	}
	g := convBackward(a, c.In[0].Shape, c.In[1].Shape, c.Out[0].Shape)
	w := bf16(c.In[1])
	return g.convolve(d, bf16(c.In[0]), bf16(c.Out[0]), nil, func(to []uint16, group, part int) {
		o0, o1 := span(part, g.unit, g.from)
		for c := range g.to {
			row := to[c*g.steps:][:g.steps]
			for o := range o1 - o0 {
				for k, v := range w[((group*g.from+o0+o)*g.to+c)*g.window:][:g.window] {
					row[k*g.unit+o] = v
				}
			}
		}
	})
}

// convolve is the kernel of y[n, r, pixel] = Σ weights·source. arrange writes the weights of a part of a group as rows
// [r][(place, unit)], over zeros.
func (g *gathering) convolve(d *Device, x, y, bias []uint16, arrange func(to []uint16, group, part int)) (func(), error) {
	pixels := g.images * g.dstArea
	strip := min(halfPixels, blocks(pixels, vec.PanelRows)*vec.PanelRows)
	shape := vec.GemmBF16Args{M: strip, N: g.to, K: g.steps, LDA: g.steps, LDB: g.steps, TransB: true, LDC: g.to}
	need, size := vec.GemmBF16Scratch(&shape), vec.GemmBF16Packed(&shape)
	weights := g.to * g.steps
	panel := vec.PanelFloats(g.to)
	pieces := g.groups * g.parts
	if err := d.reserve(padded(2*strip*g.steps)+padded(4*strip*g.to)+padded(4*need)+padded(4*panel),
		padded(2*g.words())+padded(2*pieces*weights)+padded(4*pieces*size)); err != nil {
		return nil, err
	}
	threads := make([]struct {
		gemm vec.GemmBF16Args
		_    [cacheLine]byte
	}, d.pool.threads)
	share := func() (laid, rows []uint16, packed []float32) {
		s := d.sharedScratch()
		return s.words(g.words()), s.words(pieces * weights), s.floats(pieces * size)
	}
	return sequence(
		g.lay(d, x),
		d.parallel(pieces, func(thread, t int) {
			_, rows, packed := share()
			p := &threads[thread].gemm
			*p = shape
			p.M, p.B, p.Packed = 0, rows[t*weights:][:weights], packed[t*size:][:size]
			clear(p.B)
			arrange(p.B, t/g.parts, t%g.parts)
			vec.GemmBF16Pack(p, 0, g.steps, 0, g.to)
		}),
		d.parallel(blocks(pixels, strip)*g.groups, func(thread, t int) {
			laid, rows, packed := share()
			own := d.ownScratch(thread)
			col, sums, scratch, turned := own.words(strip*g.steps), own.floats(strip*g.to), own.floats(need), own.floats(panel)
			group := t % g.groups
			p0, p1 := span(t/g.groups, strip, pixels)
			p := &threads[thread].gemm
			*p = shape
			p.M, p.A, p.C = p1-p0, col, sums
			for part := range g.parts {
				i := group*g.parts + part
				g.see(col, laid, group, part, p0, p1, 0, g.window)
				p.B, p.Packed, p.Accumulate = rows[i*weights:][:weights], packed[i*size:][:size], part > 0
				vec.GemmBF16(p, 0, p.M, 0, p.N, scratch)
			}
			for q := p0; q < p1; q += vec.PanelRows {
				vec.TransposePanel(turned, sums[(q-p0)*g.to:], g.to, g.to)
				g.round(y, turned, bias, group, q, min(q+vec.PanelRows, p1))
			}
		}),
	), nil
}

// round writes the result's pixels q0 to q1, whose sums are turned[r][q-q0].
func (g *gathering) round(y []uint16, turned []float32, bias []uint16, group, q0, q1 int) {
	for q := q0; q < q1; {
		n, at := q/g.dstArea, q%g.dstArea
		count := min(q1-q, g.dstArea-at) // in one image
		first := (n*g.groups+group)*g.to*g.dstArea + at
		for r := range g.to {
			row := turned[r*vec.PanelRows+q-q0:][:count]
			if bias != nil {
				var b [1]float32
				vec.BF16ToF32(b[:], bias[group*g.to+r:][:1])
				vec.AddScalar(row, row, b[0])
			}
			vec.F32ToBF16(y[first+r*g.dstArea:][:count], row)
		}
		q += count
	}
}

// halfConv2DGradW gives a task a unit of channels at some places of the window: it walks all images.
func halfConv2DGradW(d *Device, c device.Call) (func(), error) {
	a, err := attrs[graph.ConvAttrs](c)
	if err != nil {
		return nil, err
	}
	dy, x, dw := bf16(c.In[0]), bf16(c.In[1]), f32(c.Out[0])
	g := convForward(a, c.In[1].Shape, c.Out[0].Shape, c.In[0].Shape)
	pixels := g.images * g.dstArea
	strip := halfSteps / g.dstArea * g.dstArea // whole images, or pieces of one
	if strip == 0 {
		strip = evenly(g.dstArea, halfSteps, 64)
	}
	strip = min(strip, pixels)
	inOne := strip <= g.dstArea
	each := blocks(g.dstArea, strip) // strips of an image
	strips := g.images * each
	gathered := 0
	if !inOne {
		each, strips = 1, blocks(pixels, strip)
		gathered = g.to * strip
	}
	places := evenly(g.window, max(1, g.window*g.groups*g.parts/halfTasks), 1)
	across := blocks(g.window, places)
	width := places * g.unit
	shape := vec.GemmBF16Args{M: g.to, N: width, K: strip, LDC: width}
	need, size := vec.GemmBF16Scratch(&shape), vec.GemmBF16Packed(&shape)
	if err := d.reserve(padded(2*strip*width)+padded(2*gathered)+padded(4*g.to*width)+padded(4*need)+padded(4*size), padded(2*g.words())); err != nil {
		return nil, err
	}
	threads := make([]struct {
		gemm vec.GemmBF16Args
		_    [cacheLine]byte
	}, d.pool.threads)
	return sequence(g.lay(d, x), d.parallel(g.groups*g.parts*across, func(thread, t int) {
		shared, own := d.sharedScratch(), d.ownScratch(thread)
		laid := shared.words(g.words())
		col, sees := own.words(strip*width), own.words(gathered)
		sums, scratch, packed := own.floats(g.to*width), own.floats(need), own.floats(size)
		k0, k1 := span(t%across, places, g.window)
		part, group := t/across%g.parts, t/across/g.parts
		n := (k1 - k0) * g.unit
		p := &threads[thread].gemm
		for i := range strips {
			p0, p1 := i*strip, min((i+1)*strip, pixels)
			from, lda := sees, 0
			if inOne {
				image, at := i/each, i%each*strip
				p0 = image*g.dstArea + at
				p1 = min(p0+strip, (image+1)*g.dstArea)
				from, lda = dy[(image*g.groups+group)*g.to*g.dstArea+at:], g.dstArea
			} else {
				lda = p1 - p0
				for r := range g.to {
					for q := p0; q < p1; q += g.dstArea {
						copy(sees[r*lda+q-p0:][:g.dstArea], dy[((q/g.dstArea*g.groups+group)*g.to+r)*g.dstArea:])
					}
				}
			}
			g.see(col, laid, group, part, p0, p1, k0, k1)
			*p = vec.GemmBF16Args{
				M: g.to, N: n, K: p1 - p0, A: from, LDA: lda, B: col, LDB: n, C: sums, LDC: n, Accumulate: i > 0, Packed: packed,
			}
			vec.GemmBF16Pack(p, 0, p.K, 0, n)
			vec.GemmBF16(p, 0, g.to, 0, n, scratch)
		}
		c0, c1 := span(part, g.unit, g.from)
		for o := range g.to {
			for c := c0; c < c1; c++ {
				out := dw[((group*g.to+o)*g.from+c)*g.window:]
				for k := k0; k < k1; k++ {
					out[k] = sums[o*n+(k-k0)*g.unit+c-c0]
				}
			}
		}
	})), nil
}

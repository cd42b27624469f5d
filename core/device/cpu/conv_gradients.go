package cpu

import (
	"starling/core/device"
	"starling/core/graph"
	"starling/sdk/vec"
)

// spread is the pixels of the input that have one phase of the stride: what they get is a convolution of the output's gradient.
type spread struct {
	view
	phase
	window []int // the places of the window, by index
	at     pixels
	units  [][]shown
	steps  int
	weight int // where its arranged weights begin
}

// spreads are the phases of the input. Phases that no place of the window shows have no places: their gradient is zero.
func (g *conv) spreads() (all []spread, weights int) {
	for a := range min(g.StrideH, g.imageH) {
		for b := range min(g.StrideW, g.imageW) {
			s := spread{phase: phase{a, b}, weight: weights}
			s.h, s.w, s.pitch = blocks(g.imageH-a, g.StrideH), blocks(g.imageW-b, g.StrideW), g.OW
			for k := range g.KH * g.KW {
				h, w := a+g.PadH-k/g.KW*g.DilationH, b+g.PadW-k%g.KW*g.DilationW
				if h%g.StrideH != 0 || w%g.StrideW != 0 {
					continue
				}
				s.places = append(s.places, place{row: h / g.StrideH, col: w / g.StrideW, h: g.OH, w: g.OW})
				s.window = append(s.window, k)
			}
			s.at = cutPixels(g.N, s.h*s.w, convPixels)
			if len(s.places) > 0 {
				s.units = s.view.units(s.at.images, g.outputs)
				s.steps = stepsOf(g.O, len(s.places))
			}
			weights += g.Groups * g.O * g.C * len(s.places)
			all = append(all, s)
		}
	}
	return all, weights
}

// arrange writes the weights of a group's channel c in the order of a chain: outputs, then the places that show the phase.
func (g *conv) arrange(to, w []float32, s *spread, group, c int) {
	kernel := g.KH * g.KW
	n := len(s.window)
	for o := range g.O {
		from := w[(group*g.O+o)*g.window+c*kernel:][:kernel]
		row := to[o*n:][:n]
		if n == kernel {
			copy(row, from)
			continue
		}
		for i, k := range s.window {
			row[i] = from[k]
		}
	}
}

func conv2dGradX(d *Device, c device.Call) (func(), error) {
	a, err := attrs[graph.ConvAttrs](c)
	if err != nil {
		return nil, err
	}
	dy, w, dx := f32(c.In[0]), f32(c.In[1]), f32(c.Out[0])
	g := newConv(a, c.Out[0].Shape, c.In[1].Shape, c.In[0].Shape)
	all, weights := g.spreads()
	type task struct{ spread, block, group, part int }
	var tasks []task
	count := 0
	for i := range all {
		count += all[i].at.blocks * a.Groups
	}
	high := share(g.C, count)
	parts := blocks(g.C, high)
	packed, result := 0, 0
	shape := vec.GemmArgs{M: high, Packed: []float32{}}
	for i := range all {
		s := &all[i]
		for t := range s.at.blocks * a.Groups * parts {
			tasks = append(tasks, task{i, t / parts / a.Groups, t / parts % a.Groups, t % parts})
		}
		shape.N, shape.K = max(shape.N, s.at.most), max(shape.K, s.steps)
		result = max(result, high*s.at.most)
		packed = max(packed, vec.GemmPacked(&vec.GemmArgs{N: s.at.most, K: s.steps}))
	}
	need, threads, err := d.workspace(shape, weights, packed, result)
	if err != nil {
		return nil, err
	}
	direct := a.StrideH == 1 && a.StrideW == 1
	return sequence(
		d.parallel(len(all)*a.Groups*g.C, func(_, t int) {
			s := &all[t/g.C/a.Groups]
			shared := d.sharedScratch()
			row := g.O * len(s.window)
			g.arrange(shared.floats(weights)[s.weight+t%(g.C*a.Groups)*row:][:row], w, s, t/g.C%a.Groups, t%g.C)
		}),
		d.parallel(len(tasks), func(thread, t int) {
			shared, own := d.sharedScratch(), d.ownScratch(thread)
			arranged := shared.floats(weights)
			packed, scratch, sums := own.floats(packed), own.floats(need), own.floats(result)
			task := &tasks[t]
			s := &all[task.spread]
			c0, c1 := span(task.part, high, g.C)
			n0, n1, p0, p1 := s.at.block(task.block, g.N, s.h*s.w)
			each := p1 - p0
			width := (n1 - n0) * each
			first := n0*g.image + (task.group*g.C+c0)*g.plane
			places := len(s.places)
			row := g.O * places
			p := &threads[thread].gemm
			*p = vec.GemmArgs{M: c1 - c0, N: width, LDA: row, Packed: packed, C: sums, LDC: width}
			if direct && s.at.images == 1 {
				p.C, p.LDC = dx[first+p0:], g.plane
			}
			if places == 0 {
				clear(sums[:p.M*width])
			} else {
				units := s.units[p0/vec.PieceWidth:][:blocks(width, vec.PieceWidth)]
				from := vec.Source{Data: dy, At: n0*g.outputs + task.group*g.O*g.area, Plane: g.area}
				for r0 := 0; r0 < row; r0 += s.steps {
					r1 := min(r0+s.steps, row)
					p.A, p.K, p.Accumulate = arranged[s.weight+(task.group*g.C+c0)*row+r0:], r1-r0, r0 > 0
					packUnits(p, units, from, r0, r1, n1-n0)
					vec.Gemm(p, 0, p.M, 0, width, scratch)
				}
			}
			if direct && s.at.images == 1 {
				return
			}
			for c := range p.M {
				for n := range n1 - n0 {
					s.put(g, dx[first+n*g.image+c*g.plane:][:g.plane], sums[c*width+n*each:][:each], p0)
				}
			}
		}),
	), nil
}

// put writes the phase's pixels of a plane from p0 on.
func (s *spread) put(g *conv, plane, from []float32, p0 int) {
	if g.StrideH == 1 && g.StrideW == 1 {
		copy(plane[p0:], from)
		return
	}
	for len(from) > 0 {
		row, col := p0/s.w, p0%s.w
		n := min(s.w-col, len(from))
		at := (row*g.StrideH+s.row)*g.imageW + s.col + col*g.StrideW
		for _, v := range from[:n] {
			plane[at] = v
			at += g.StrideW
		}
		from = from[n:]
		p0 += n
	}
}

// conv2dGradW gives a task a range of the window's rows: it walks all images, so that every element is one chain over images and
// output pixels, ascending. The product is transposed, so that windows are rows of pixels.
func conv2dGradW(d *Device, c device.Call) (func(), error) {
	a, err := attrs[graph.ConvAttrs](c)
	if err != nil {
		return nil, err
	}
	dy, x, dw := f32(c.In[0]), f32(c.In[1]), f32(c.Out[0])
	g := newConv(a, c.In[1].Shape, c.Out[0].Shape, c.In[0].Shape)
	at := cutPixels(g.N, g.area, convPixels)
	kernel := g.KH * g.KW
	rows := min(evenly(g.window, max(32, min(384, g.window/(2*convTasks))), 14), g.window)
	from := g.sees(at, blocks(rows, kernel)+1)
	ld := blocks(at.most, vec.PieceWidth)*vec.PieceWidth + vec.PieceWidth
	gathered := 0
	var one [][]shown // gathers the pixels of several images
	if at.images > 1 {
		gathered = g.O * ld
		v := view{h: 1, w: g.area, pitch: g.area, places: []place{{h: 1, w: g.area}}}
		one = v.units(at.images, g.outputs)
	}
	shape := vec.GemmArgs{M: rows, N: g.O, K: at.most}
	room := from.floats(at.images)
	need, threads, err := d.workspace(shape, 0, rows*ld, room, gathered, rows*g.O)
	if err != nil {
		return nil, err
	}
	parts := blocks(g.window, rows)
	return d.parallel(a.Groups*parts, func(thread, task int) {
		own := d.ownScratch(thread)
		windows, room, sees, sums, scratch := own.floats(rows*ld), own.floats(room), own.floats(gathered), own.floats(rows*g.O), own.floats(need)
		r0, r1 := span(task%parts, rows, g.window)
		group := task / parts
		c0, c1 := r0/kernel, blocks(r1, kernel)
		p := &threads[thread].gemm
		for i := range at.blocks {
			n0, n1, p0, p1 := at.block(i, g.N, g.area)
			width := (n1 - n0) * (p1 - p0)
			count := blocks(width, vec.PieceWidth)
			showUnits(windows, ld, from.units[p0/vec.PieceWidth:][:count],
				from.source(room, x, group, n0, n1, c0, c1, p0, p1), r0-c0*kernel, r1-c0*kernel, n1-n0)
			*p = vec.GemmArgs{
				M: r1 - r0, N: g.O, K: width, A: windows, LDA: ld, TransB: true, C: sums, LDC: g.O, Accumulate: i > 0,
				B: dy[n0*g.outputs+group*g.O*g.area+p0:], LDB: g.area,
			}
			if at.images > 1 {
				showUnits(sees, ld, one[:count], vec.Source{Data: dy, At: n0*g.outputs + group*g.O*g.area, Plane: g.area}, 0, g.O, n1-n0)
				p.B, p.LDB = sees, ld
			}
			vec.Gemm(p, 0, p.M, 0, g.O, scratch)
		}
		for o := range g.O {
			to := dw[(group*g.O+o)*g.window+r0:][:r1-r0]
			for r := range to {
				to[r] = sums[r*g.O+o]
			}
		}
	}), nil
}

// showUnits writes rows r0 to r1 of the windows that units show, ld apart; pieces of images from last on are absent.
func showUnits(to []float32, ld int, units [][]shown, from vec.Source, r0, r1, last int) {
	eachPiece(units, from, last, func(u int, piece *vec.Piece, from vec.Source, over bool) {
		vec.PackPiece(to[u*vec.PieceWidth:], ld, piece, from, r0, r1, over)
	})
}

package cpu

import (
	"math"

	"starling/core/device"
	"starling/core/graph"
	"starling/core/tensor"
	"starling/sdk/vec"
)

// Reductions over any axes. A sum along the last axis adds blocks of sumBlock elements in float32 and the blocks'
// sums in float64, in order; a sum across rows adds whole rows in float32, in order.
var reduceKernels = []kernel{
	{"sum", "f32", reduceWith(summation)},
	{"mean", "f32", reduceWith(averaging)},
	{"max", "f32", reduceWith(maximizing)},
	{"max_grad", "f32 f32 f32", maxGrad},
	{"sum_to", "f32", sumTo},
	{"argmax", "f32", argmax},
}

type reduction int

const (
	summation reduction = iota
	averaging
	maximizing
)

// reduced is a reduction's geometry. The dimensions of the input are told apart into those that the result keeps
// and those that are summed away; neighbours of one kind are merged.
type reduced struct {
	keep   *walk // strides in the input and in the result
	away   *walk // strides in the input
	kept   int   // elements of the result
	summed int   // elements behind each of them
}

// newReduced reads the input's shape and the strides by which the result is stretched over it.
func newReduced(shape tensor.Shape, out []int) reduced {
	own := shape.Strides()
	var keep, away [3][]int // dimensions, strides in the input, strides in the result
	for i, n := range shape {
		part := &keep
		if out[i] == 0 && n != 1 {
			part = &away
		}
		part[0] = append(part[0], n)
		part[1] = append(part[1], own[i])
		part[2] = append(part[2], out[i])
	}
	return reduced{
		keep: newWalk(keep[0], keep[1], keep[2]), away: newWalk(away[0], away[1]),
		kept: prod(keep[0]), summed: prod(away[0]),
	}
}

// over reads the geometry of reducing x over the given axes.
func over(x device.Tensor, axes []int) reduced {
	thin := x.Shape.Clone()
	for _, a := range axes {
		thin[a] = 1
	}
	return newReduced(x.Shape, stretch(thin, x.Shape))
}

// along reports whether the last axis is among those that are summed away, so that runs of the input lie together.
func (r *reduced) along() bool { return r.away.inner > 1 && r.away.step[0] == 1 }

func reduceWith(kind reduction) maker {
	return func(d *Device, c device.Call) (func(), error) {
		a, err := attrs[graph.ReduceAttrs](c)
		if err != nil {
			return nil, err
		}
		return d.reduce(kind, over(c.In[0], a.Axes.Slice()), f32(c.In[0]), f32(c.Out[0]))
	}
}

func sumTo(d *Device, c device.Call) (func(), error) {
	x, y := c.In[0], c.Out[0]
	return d.reduce(summation, newReduced(x.Shape, stretch(y.Shape, x.Shape)), f32(x), f32(y))
}

func (d *Device) reduce(kind reduction, r reduced, x, y []float32) (func(), error) {
	if !r.along() {
		return d.reduceAcross(kind, r, x, y), nil
	}
	// One block's sum, or its maximum.
	part := func(x []float32) float64 { return float64(vec.Sum(x)) }
	join := func(a, b float64) float64 { return a + b }
	finish := func(v float64) float32 { return float32(v) }
	switch kind {
	case averaging:
		n := float64(r.summed)
		finish = func(v float64) float32 { return float32(v / n) }
	case maximizing:
		part = func(x []float32) float64 { return float64(vec.MaxOf(x)) }
		join = func(a, b float64) float64 { return max(a, b) }
	}
	pieces := blocks(r.away.inner, sumBlock)
	each := r.away.rows() * pieces // blocks behind one element of the result
	block := func(from, i int) float64 {
		at := from + r.away.seek(i / pieces).off[0]
		lo, hi := span(i%pieces, sumBlock, r.away.inner)
		return part(x[at+lo : at+hi])
	}
	if each == 1 || r.kept >= 64 {
		group := rowsPerTask(r.summed, cheapBlock)
		return d.parallel(blocks(r.kept, group), func(_, t int) {
			lo, hi := span(t, group, r.kept)
			for o := lo; o < hi; o++ {
				off := r.keep.element(o)
				v := block(off[0], 0)
				for i := 1; i < each; i++ {
					v = join(v, block(off[0], i))
				}
				y[off[1]] = finish(v)
			}
		}), nil
	}
	total := r.kept * each
	if err := d.reserve(0, padded(8*total)); err != nil {
		return nil, err
	}
	group := rowsPerTask(min(r.away.inner, sumBlock), cheapBlock)
	return sequence(
		d.parallel(blocks(total, group), func(_, t int) {
			s := d.sharedScratch()
			parts := s.doubles(total)
			lo, hi := span(t, group, total)
			for i := lo; i < hi; i++ {
				parts[i] = block(r.keep.element(i / each)[0], i%each)
			}
		}),
		func() {
			s := d.sharedScratch()
			parts := s.doubles(total)
			for o := range r.kept {
				v := parts[o*each]
				for _, p := range parts[o*each+1 : (o+1)*each] {
					v = join(v, p)
				}
				y[r.keep.element(o)[1]] = finish(v)
			}
		},
	), nil
}

// reduceAcross adds rows of the input to rows of the result. Tasks split columns where there are few rows.
func (d *Device) reduceAcross(kind reduction, r reduced, x, y []float32) func() {
	block := max(64, cheapBlock/max(r.summed, 1))
	n := float32(r.summed)
	return d.eachRow(r.keep, block, func(_ int, off [3]int, count int) {
		y := y[off[1] : off[1]+count]
		step := r.keep.step[0]
		if count == 1 {
			step = 1
		}
		for s := range r.summed {
			at := off[0] + r.away.element(s)[0]
			switch {
			case step != 1: // the result's last dimension is not the input's
				acrossScattered(kind, y, x[at:], step, s == 0)
			case s == 0:
				copy(y, x[at:at+count])
			case kind == maximizing:
				vec.Max(y, y, x[at:at+count])
			default:
				vec.Add(y, y, x[at:at+count])
			}
		}
		if kind == averaging {
			for i := range y {
				y[i] /= n
			}
		}
	})
}

// acrossScattered adds elements of x that lie step apart to y.
func acrossScattered(kind reduction, y, x []float32, step int, first bool) {
	for i := range y {
		switch v := x[i*step]; {
		case first:
			y[i] = v
		case kind == maximizing:
			y[i] = max(y[i], v)
		default:
			y[i] += v
		}
	}
}

// maxGrad sends each gradient to the first element, in the input's order, that equals the maximum.
func maxGrad(d *Device, c device.Call) (func(), error) {
	a, err := attrs[graph.ReduceAttrs](c)
	if err != nil {
		return nil, err
	}
	r := over(c.In[0], a.Axes.Slice())
	x, y, dy, dx := f32(c.In[0]), f32(c.In[1]), f32(c.In[2]), f32(c.Out[0])
	group := rowsPerTask(r.summed, costlyBlock)
	return sequence(
		d.parallelSpan(len(dx), cheapBlock, func(lo, hi int) { clear(dx[lo:hi]) }),
		d.parallel(blocks(r.kept, group), func(_, t int) {
			lo, hi := span(t, group, r.kept)
			for o := lo; o < hi; o++ {
				off := r.keep.element(o)
				for s := range r.summed {
					if at := off[0] + r.away.element(s)[0]; x[at] == y[off[1]] {
						dx[at] = dy[off[1]]
						break
					}
				}
			}
		}),
	), nil
}

// argmax gives the first maximum of each row, or its first NaN.
func argmax(d *Device, c device.Call) (func(), error) {
	x, y := f32(c.In[0]), i32(c.Out[0])
	width := c.In[0].Shape[len(c.In[0].Shape)-1]
	return d.eachRowOf(len(y), width, costlyBlock, func(r int) {
		best, at := float32(math.Inf(-1)), 0
		for i, v := range x[r*width : (r+1)*width] {
			if !(v <= best) && best == best {
				best, at = v, i
			}
		}
		y[r] = int32(at)
	}), nil
}

// eachRowOf makes a kernel that calls fn for each of so many rows. Tasks hold about block elements.
func (d *Device) eachRowOf(rows, width, block int, fn func(r int)) func() {
	group := rowsPerTask(width, block)
	return d.parallel(blocks(rows, group), func(_, t int) {
		lo, hi := span(t, group, rows)
		for r := lo; r < hi; r++ {
			fn(r)
		}
	})
}

// element returns the operands' offsets of the i-th element of a walk.
func (w *walk) element(i int) [3]int {
	c := w.seek(i / w.inner)
	for k, s := range w.step {
		c.off[k] += i % w.inner * s
	}
	return c.off
}

package cpu

import (
	"slices"
	"unsafe"

	"starling/core/device"
	"starling/core/graph"
)

// Kernels that move elements without arithmetic. Where they take elements apart these are words of four bytes.
var layoutKernels = []kernel{
	{"const", "", constant},
	{"reshape", "f32", copyWhole}, {"reshape", "i32", copyWhole},
	{"stop_gradient", "f32", copyWhole},
	{"transpose", "f32", transpose}, {"transpose", "i32", transpose},
	{"slice", "f32", slice}, {"slice", "i32", slice},
	{"pad_slice", "f32", padSlice},
	{"concat", "f32...", concat}, {"concat", "i32...", concat},
	{"broadcast_to", "f32", broadcastTo}, {"broadcast_to", "i32", broadcastTo},
}

// copyBlock is the bytes that one task copies.
const copyBlock = 64 << 10

func constant(d *Device, c device.Call) (func(), error) {
	a, err := attrs[graph.FullAttrs](c)
	if err != nil {
		return nil, err
	}
	y, v := f32(c.Out[0]), float32(a.Value)
	return d.parallelSpan(len(y), cheapBlock, func(lo, hi int) { fill(y[lo:hi], v) }), nil
}

func fill[T any](y []T, v T) {
	for i := range y {
		y[i] = v
	}
}

// copyWhole serves the operations that change a shape only. Where the plan gives the result the input's own
// memory there is nothing to do.
func copyWhole(d *Device, c device.Call) (func(), error) {
	x, y := c.In[0].Bytes(), c.Out[0].Bytes()
	if unsafe.SliceData(x) == unsafe.SliceData(y) {
		return func() {}, nil
	}
	return d.copyRows(y, x, 1, len(x), 0, 0), nil
}

// copyRows copies rows of width bytes between memories whose rows lie dstStep and srcStep bytes apart.
func (d *Device) copyRows(dst, src []byte, rows, width, dstStep, srcStep int) func() {
	if width == 0 {
		return func() {}
	}
	if rows > 1 && dstStep == width && srcStep == width {
		rows, width = 1, rows*width
	}
	if rows == 1 {
		return d.parallelSpan(width, copyBlock, func(lo, hi int) { copy(dst[lo:hi], src[lo:hi]) })
	}
	group := rowsPerTask(width, copyBlock)
	return d.parallel(blocks(rows, group), func(_, i int) {
		lo, hi := span(i, group, rows)
		for r := lo; r < hi; r++ {
			copy(dst[r*dstStep:r*dstStep+width], src[r*srcStep:r*srcStep+width])
		}
	})
}

// around returns the number of rows before an axis and the bytes of one step along it.
func around(t device.Tensor, axis int) (rows, unit int) {
	return prod(t.Shape[:axis]), prod(t.Shape[axis+1:]) * t.DType.Size()
}

func slice(d *Device, c device.Call) (func(), error) {
	a, err := attrs[graph.SliceAttrs](c)
	if err != nil {
		return nil, err
	}
	x := c.In[0]
	rows, unit := around(x, a.Axis)
	return d.copyRows(c.Out[0].Bytes(), x.Bytes()[a.Start*unit:], rows, (a.End-a.Start)*unit, (a.End-a.Start)*unit, x.Shape[a.Axis]*unit), nil
}

// padSlice writes the slice's place and the zeros around it, row by row.
func padSlice(d *Device, c device.Call) (func(), error) {
	a, err := attrs[graph.SliceAttrs](c)
	if err != nil {
		return nil, err
	}
	rows, unit := around(c.In[0], a.Axis)
	x, y := c.In[0].Bytes(), c.Out[0].Bytes()
	width, step := (a.End-a.Start)*unit, a.Size*unit
	group := rowsPerTask(step, copyBlock)
	return d.parallel(blocks(rows, group), func(_, i int) {
		lo, hi := span(i, group, rows)
		for r := lo; r < hi; r++ {
			out := y[r*step : (r+1)*step]
			clear(out[:a.Start*unit])
			copy(out[a.Start*unit:], x[r*width:(r+1)*width])
			clear(out[a.End*unit:])
		}
	}), nil
}

func concat(d *Device, c device.Call) (func(), error) {
	a, err := attrs[graph.AxisAttrs](c)
	if err != nil {
		return nil, err
	}
	y := c.Out[0]
	rows, unit := around(y, a.Axis)
	var parts []func()
	at := 0
	for _, x := range c.In {
		width := x.Shape[a.Axis] * unit
		parts = append(parts, d.copyRows(y.Bytes()[at:], x.Bytes(), rows, width, y.Shape[a.Axis]*unit, width))
		at += width
	}
	return sequence(parts...), nil
}

func broadcastTo(d *Device, c device.Call) (func(), error) {
	x, y := u32(c.In[0]), u32(c.Out[0])
	shape := c.Out[0].Shape
	w := newWalk(shape, shape.Strides(), stretch(c.In[0].Shape, shape))
	return d.eachRow(w, cheapBlock, func(_ int, off [3]int, n int) {
		if w.step[1] == 0 {
			fill(y[off[0]:off[0]+n], x[off[1]])
		} else {
			copy(y[off[0]:off[0]+n], x[off[1]:off[1]+n])
		}
	}), nil
}

// tile is the side of the square that transposition moves at once: its rows in both memories stay in L1.
const tile = 32

// transpose copies whole rows where the last dimension stays last, else it moves squares of the two dimensions that are
// contiguous in the input and in the result.
func transpose(d *Device, c device.Call) (func(), error) {
	a, err := attrs[graph.PermAttrs](c)
	if err != nil {
		return nil, err
	}
	x, y := u32(c.In[0]), u32(c.Out[0])
	shape, own := c.Out[0].Shape, c.In[0].Shape.Strides()
	from := make([]int, len(shape))
	for i, p := range a.Perm.Slice() {
		from[i] = own[p]
	}
	w := newWalk(shape, shape.Strides(), from)
	if w.step[1] <= 1 {
		return d.eachRow(w, cheapBlock, func(_ int, off [3]int, n int) {
			copy(y[off[0]:off[0]+n], x[off[1]:off[1]+n])
		}), nil
	}
	// Dimension j is contiguous in the input, the rows of w in the result.
	j := slices.Index(w.strides[1], 1)
	rows, to := w.dims[j], w.strides[0][j]
	cols, by := w.inner, w.step[1]
	rest := newWalk(drop(w.dims, j), drop(w.strides[0], j), drop(w.strides[1], j))
	outer := rest.rows() * rest.inner
	bands := blocks(rows, tile)
	return d.parallel(outer*bands, func(_, i int) {
		o := rest.seek(i / bands / rest.inner)
		k := i / bands % rest.inner
		y, x := y[o.off[0]+k*rest.step[0]:], x[o.off[1]+k*rest.step[1]:]
		r0, r1 := span(i%bands, tile, rows)
		for c0 := 0; c0 < cols; c0 += tile {
			c1 := min(c0+tile, cols)
			for r := r0; r < r1; r++ {
				out := y[r*to : r*to+c1]
				for q := c0; q < c1; q++ {
					out[q] = x[q*by+r]
				}
			}
		}
	}), nil
}

// drop returns the list without entry i.
func drop(list []int, i int) []int {
	return append(append([]int{}, list[:i]...), list[i+1:]...)
}

package cpu

import "starling/core/tensor"

// maxDims bounds the rank of a tensor, as core/graph does.
const maxDims = 8

// walk visits several operands of one logical shape, each with strides of its own (0 where it is broadcast), row by
// row. Neighbouring dimensions that every operand steps through evenly are merged, so that a row is as long as can be.
type walk struct {
	dims    []int   // outer dimensions
	strides [][]int // of each operand over dims, in elements
	inner   int     // elements of a row
	step    []int   // stride of each operand along a row
}

// newWalk merges dimensions. Each list of strides has one entry for each dimension of shape.
func newWalk(shape []int, strides ...[]int) *walk {
	w := &walk{strides: make([][]int, len(strides)), step: make([]int, len(strides)), inner: 1}
	var dims []int
	merged := make([][]int, len(strides))
	for i, n := range shape {
		if n == 1 {
			continue
		}
		last := len(dims) - 1
		fits := last >= 0
		for k := range strides {
			fits = fits && merged[k][last] == strides[k][i]*n
		}
		if fits {
			dims[last] *= n
			for k := range strides {
				merged[k][last] = strides[k][i]
			}
			continue
		}
		dims = append(dims, n)
		for k := range strides {
			merged[k] = append(merged[k], strides[k][i])
		}
	}
	if last := len(dims) - 1; last >= 0 {
		w.inner = dims[last]
		w.dims = dims[:last]
		for k := range strides {
			w.strides[k] = merged[k][:last]
			w.step[k] = merged[k][last]
		}
	}
	return w
}

// rows is the number of rows.
func (w *walk) rows() int { return tensor.Shape(w.dims).Numel() }

// cursor is a place in a walk of at most three operands: the row's offset in each.
type cursor struct {
	w   *walk
	at  [maxDims]int
	off [3]int
}

// seek returns the cursor of a row.
func (w *walk) seek(row int) cursor {
	c := cursor{w: w}
	for i := len(w.dims) - 1; i >= 0; i-- {
		c.at[i] = row % w.dims[i]
		row /= w.dims[i]
		for k := range w.strides {
			c.off[k] += c.at[i] * w.strides[k][i]
		}
	}
	return c
}

// next moves to the following row.
func (c *cursor) next() {
	for i := len(c.w.dims) - 1; i >= 0; i-- {
		c.at[i]++
		for k := range c.w.strides {
			c.off[k] += c.w.strides[k][i]
		}
		if c.at[i] < c.w.dims[i] {
			return
		}
		for k := range c.w.strides {
			c.off[k] -= c.at[i] * c.w.strides[k][i]
		}
		c.at[i] = 0
	}
}

// stretch returns the strides by which a tensor of shape from is read as one of shape to, by NumPy's rule.
func stretch(from, to tensor.Shape) []int {
	st := make([]int, len(to))
	own := from.Strides()
	for i := range from {
		if j := i + len(to) - len(from); from[i] != 1 {
			st[j] = own[i]
		}
	}
	return st
}

// eachRow makes a kernel that calls fn for every piece of every row with the thread, the offsets of the operands and the
// number of elements. Tasks hold about block elements.
func (d *Device) eachRow(w *walk, block int, fn func(thread int, off [3]int, count int)) func() {
	rows := w.rows()
	if w.inner == 0 || rows == 0 {
		return func() {}
	}
	if w.inner >= block { // long rows: cut them
		pieces := blocks(w.inner, block)
		return d.parallel(rows*pieces, func(thread, i int) {
			c := w.seek(i / pieces)
			lo, hi := span(i%pieces, block, w.inner)
			for k, s := range w.step {
				c.off[k] += lo * s
			}
			fn(thread, c.off, hi-lo)
		})
	}
	group := rowsPerTask(w.inner, block)
	return d.parallel(blocks(rows, group), func(thread, i int) {
		lo, hi := span(i, group, rows)
		c := w.seek(lo)
		for range hi - lo {
			fn(thread, c.off, w.inner)
			c.next()
		}
	})
}

// prod is the product of dimensions.
func prod(dims []int) int { return tensor.Shape(dims).Numel() }

package cpu

import (
	"math"

	"starling/core/device"
	"starling/sdk/vec"
)

// Looking rows of a table up.
var embeddingKernels = []kernel{
	{"embedding", "f32 i32", embedding},
	{"embedding_grad", "f32 i32", embeddingGrad},
}

func embedding(d *Device, c device.Call) (func(), error) {
	table, ids, n := f32(c.In[0]), i32(c.In[1]), lastOf(c.In[0])
	rows, y := c.In[0].Shape[0], f32(c.Out[0])
	nan := float32(math.NaN())
	return d.eachRowOf(len(ids), n, cheapBlock, func(r int) {
		out := y[r*n : (r+1)*n]
		if id := int(ids[r]); uint(id) < uint(rows) {
			copy(out, table[id*n:(id+1)*n])
		} else {
			vec.Fill(out, nan)
		}
	}), nil
}

// embeddingTasks is the number of tasks of an embedding's gradient. Each owns a range of the table's rows and reads
// all ids, so that every row is summed by one task in the order of positions.
const embeddingTasks = 16

// embeddingGrad sums the rows of dy of each id. Accumulating, it touches only the rows of the table that are looked up: the others would have zeros added.
func embeddingGrad(d *Device, c device.Call) (func(), error) {
	dy, ids, n := f32(c.In[0]), i32(c.In[1]), lastOf(c.In[0])
	rows, dt := c.Out[0].Shape[0], f32(c.Out[0])
	each := blocks(rows, embeddingTasks)
	tasks := blocks(rows, each)
	// A list of positions for each row of the table: places are positions plus one, zero ends a list.
	if err := d.reserve(padded(4*each)+padded(4*n), padded(4*len(ids))); err != nil {
		return nil, err
	}
	return d.parallel(tasks, func(thread, i int) {
		lo, hi := span(i, each, rows)
		own, shared := d.ownScratch(thread), d.sharedScratch()
		first, sum := own.ints(each)[:hi-lo], own.floats(n)
		next := shared.ints(len(ids)) // each position belongs to one task at most
		clear(first)
		for r := len(ids) - 1; r >= 0; r-- {
			if id := int(ids[r]); id >= lo && id < hi {
				next[r] = first[id-lo]
				first[id-lo] = int32(r + 1)
			}
		}
		for k, at := range first {
			to := dt[(lo+k)*n : (lo+k+1)*n]
			switch {
			case !c.Accum:
				clear(to)
				addRows(to, dy, at, next, n)
			case at != 0:
				clear(sum)
				addRows(sum, dy, at, next, n)
				vec.AddTo(to, sum)
			}
		}
	}), nil
}

// addRows adds the rows of x on a list of positions.
func addRows(to, x []float32, at int32, next []int32, n int) {
	for ; at != 0; at = next[at-1] {
		vec.AddTo(to, x[int(at-1)*n:int(at)*n])
	}
}

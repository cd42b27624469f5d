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

func embeddingGrad(d *Device, c device.Call) (func(), error) {
	dy, ids, n := f32(c.In[0]), i32(c.In[1]), lastOf(c.In[0])
	rows, dt := c.Out[0].Shape[0], f32(c.Out[0])
	each := blocks(rows, embeddingTasks)
	return d.parallel(blocks(rows, each), func(_, i int) {
		lo, hi := span(i, each, rows)
		clear(dt[lo*n : hi*n])
		for r, id := range ids {
			if id := int(id); id >= lo && id < hi {
				vec.AddTo(dt[id*n:(id+1)*n], dy[r*n:(r+1)*n])
			}
		}
	}), nil
}

package cpu

import (
	"starling/core/device"
	"starling/core/graph"
)

// Rotary positions.
var rotaryKernels = []kernel{
	{"rotary", "f32", rotary},
}

// turns is a table of cosines and sines, shared by all kernels that turn alike.
type turns struct{ cos, sin []float32 }

// turnsKey tells tables apart; Inverse is not in it.
type turnsKey struct {
	graph.RotaryAttrs
	time, width int
}

func (d *Device) turns(a graph.RotaryAttrs, time, width int) turns {
	a.Inverse = false
	key := turnsKey{a, time, width}
	t, ok := d.tables[key]
	if !ok {
		t.cos, t.sin = graph.RotaryTable(a, time, width)
		d.tables[key] = t
	}
	return t
}

// rotary turns pairs by a table that is computed once, when the first kernel is made.
func rotary(d *Device, c device.Call) (func(), error) {
	a, err := attrs[graph.RotaryAttrs](c)
	if err != nil {
		return nil, err
	}
	x, y, shape := f32(c.In[0]), f32(c.Out[0]), c.In[0].Shape
	time, heads, width := shape[1], shape[2], shape[3]
	half := width / 2
	table := d.turns(a, time, width)
	direction := float32(1)
	if a.Inverse {
		direction = -1
	}
	return d.eachRowOf(len(x)/width, width, costlyBlock, func(r int) {
		t := r / heads % time
		cos, sin := table.cos[t*half:(t+1)*half], table.sin[t*half:(t+1)*half]
		x, y := x[r*width:(r+1)*width], y[r*width:(r+1)*width]
		for i, c := range cos {
			s, lo, hi := direction*sin[i], x[i], x[half+i]
			y[i] = float32(lo*c) - float32(hi*s)
			y[half+i] = float32(hi*c) + float32(lo*s)
		}
	}), nil
}

package cpu

import (
	"starling/core/device"
	"starling/core/graph"
)

// Rotary positions.
var rotaryKernels = []kernel{
	{"rotary", "f32", rotary},
}

// rotary turns pairs by a table that is computed once, when the kernel is made.
func rotary(d *Device, c device.Call) (func(), error) {
	a, err := attrs[graph.RotaryAttrs](c)
	if err != nil {
		return nil, err
	}
	x, y, shape := f32(c.In[0]), f32(c.Out[0]), c.In[0].Shape
	time, heads, width := shape[1], shape[2], shape[3]
	half := width / 2
	cos, sin := graph.RotaryTable(a, time, width)
	if a.Inverse {
		for i := range sin {
			sin[i] = -sin[i]
		}
	}
	return d.eachRowOf(len(x)/max(width, 1), width, costlyBlock, func(r int) {
		t := r / heads % time
		cos, sin := cos[t*half:(t+1)*half], sin[t*half:(t+1)*half]
		x, y := x[r*width:(r+1)*width], y[r*width:(r+1)*width]
		for i, c := range cos {
			s, lo, hi := sin[i], x[i], x[half+i]
			y[i] = float32(lo*c) - float32(hi*s)
			y[half+i] = float32(hi*c) + float32(lo*s)
		}
	}), nil
}

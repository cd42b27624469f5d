package cpu

import (
	"math"

	"starling/core/device"
	"starling/core/graph"
	"starling/sdk/vec"
)

// Random zeroes, by counter.
var dropoutKernels = []kernel{
	{"dropout", "f32 u32", dropout},
}

func dropout(d *Device, c device.Call) (func(), error) {
	a, err := attrs[graph.DropoutAttrs](c)
	if err != nil {
		return nil, err
	}
	x, rng, y := f32(c.In[0]), u32(c.In[1]), f32(c.Out[0])
	threshold := math.Floor(a.P * (1 << 32))
	scale := float32(1 / (1 - a.P))
	stream := func() vec.Stream {
		return vec.Stream{
			Key:    [2]uint32{uint32(a.Key) ^ rng[0], uint32(a.Key>>32) ^ rng[1]},
			Prefix: [2]uint32{rng[2], rng[3]},
		}
	}
	// vec rounds the threshold to nearest. With a probability that is a multiple of 2^-32 this is the floor that the
	// operation asks for, and the factor is nearly always the same.
	if p := threshold / (1 << 32); float32(1/(1-p)) == scale {
		return d.parallelSpan(len(y), costlyBlock, func(lo, hi int) {
			vec.Dropout(y[lo:hi], x[lo:hi], p, stream(), uint64(lo))
		}), nil
	}
	return d.parallelSpan(len(y), costlyBlock, func(lo, hi int) {
		s := stream()
		for i := lo; i < hi; i += 4 { // costlyBlock is a multiple of four
			words := s.Block(uint64(i) / 4)
			for k := i; k < min(i+4, hi); k++ {
				v := float32(0)
				if words[k-i] >= uint32(threshold) {
					v = x[k] * scale
				}
				y[k] = v
			}
		}
	}), nil
}

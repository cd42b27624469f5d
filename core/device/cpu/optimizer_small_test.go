package cpu

import (
	"math"
	"math/rand/v2"
	"testing"

	"starling/core/device"
	"starling/core/graph"
	"starling/core/tensor"
)

// Every ratio gets the code whose value is nearest.
func TestQuantisingFindsTheNearestCode(t *testing.T) {
	signed, positive := dynamicCodes()
	r := rand.New(rand.NewPCG(1, 2))
	for _, c := range []*codes{signed, positive} {
		check := func(x float32) {
			pair := make([]uint8, 2)
			if scale := c.write(pair, []float32{x, 1}); scale != 1 {
				t.Fatalf("the scale of %v and 1 is %v", x, scale)
			}
			best := math.Inf(1)
			for _, v := range c.values {
				best = min(best, math.Abs(float64(v)-float64(x)))
			}
			if d := math.Abs(float64(c.values[pair[0]]) - float64(x)); d != best || c.values[pair[1]] != 1 {
				t.Fatalf("%v is kept as %v, %v away; the nearest code is %v away", x, c.values[pair[0]], d, best)
			}
		}
		sign := float32(1)
		for i := range 5000 {
			if c == signed {
				sign = -sign
			}
			check(sign * float32(math.Pow(10, -8*r.Float64())))
			if i < 255 { // at the codes and at the middles between them
				check(c.values[i])
				check((c.values[i] + c.values[i+1]) / 2)
			}
		}
		check(0)
	}
}

// A run of steps against float64 throughout: parameters go where they go with exact moments, up to what the rounding of moments makes of it.
func TestSmallStateFollowsTheReference(t *testing.T) {
	d := open(t, Config{Threads: 2})
	const n, blocks = 1000, 4
	arena, err := d.Alloc("test", 1<<16)
	if err != nil {
		t.Fatal(err)
	}
	defer arena.Free()
	at := int64(0)
	place := func(dt tensor.DType, n int) device.Tensor {
		x := device.Tensor{Type: graph.Type{DType: dt, Shape: tensor.Shape{n}}, Arena: arena, Offset: at}
		at += (x.Type.Bytes() + 63) &^ 63
		return x
	}
	for _, c := range []struct {
		op    string
		state []device.Tensor
		bound float64 // of the distance in steps of size lr
	}{
		{"adamw_bf16", []device.Tensor{place(tensor.BF16, n), place(tensor.BF16, n)}, 0.005},
		{"adamw_int8", []device.Tensor{place(tensor.U8, n), place(tensor.F32, blocks), place(tensor.U8, n), place(tensor.F32, blocks)}, 0.06},
	} {
		p, g, hyper := place(tensor.F32, n), place(tensor.F32, n), place(tensor.F64, graph.HyperCount)
		op, err := graph.Lookup(c.op)
		if err != nil {
			t.Fatal(err)
		}
		out := append([]device.Tensor{p}, c.state...)
		run, err := d.Bind(device.Call{Op: op, Attrs: graph.AdamWAttrs{}, In: append(append([]device.Tensor{p, g}, c.state...), hyper), Out: out})
		if err != nil {
			t.Fatal(err)
		}
		r := rand.New(rand.NewPCG(7, 7))
		exact, m, v, noise := make([]float64, n), make([]float64, n), make([]float64, n), make([]float64, n)
		for i := range exact {
			noise[i] = math.Pow(10, 2*r.Float64()-3) // elements of one block that differ by a factor of a hundred
		}
		const lr, b1, b2, steps = 1e-2, 0.9, 0.95, 30
		for step := 1; step <= steps; step++ {
			h := f64(hyper)
			h[graph.HyperLR], h[graph.HyperBeta1], h[graph.HyperBeta2], h[graph.HyperEps], h[graph.HyperGradScale] = lr, b1, b2, 1e-8, 1
			h[graph.HyperCorrection1], h[graph.HyperCorrection2] = 1-math.Pow(b1, float64(step)), 1-math.Pow(b2, float64(step))
			for i := range exact {
				x := float32(noise[i] * (0.5 + r.NormFloat64()))
				f32(g)[i] = x
				m[i] += (1 - b1) * (float64(x) - m[i])
				v[i] = b2*v[i] + (1-b2)*float64(x)*float64(x)
				exact[i] -= lr / h[graph.HyperCorrection1] * m[i] / (math.Sqrt(v[i]/h[graph.HyperCorrection2]) + 1e-8)
			}
			run()
		}
		sum, length := 0.0, 0.0
		for i, want := range exact {
			sum += math.Abs(float64(f32(p)[i]) - want)
			length += math.Abs(want)
		}
		if mean := sum / length; mean > c.bound {
			t.Errorf("%s: after %d steps the parameters are off by %.3g of the way that they went, want at most %v", c.op, steps, mean, c.bound)
		} else {
			t.Logf("%s: off by %.3g of the way", c.op, mean)
		}
	}
}

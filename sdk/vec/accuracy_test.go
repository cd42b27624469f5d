package vec

import (
	"math"
	"math/rand/v2"
	"testing"
)

// ulps is the distance of got from want in units of the last place of want as
// a float32.
func ulps(got float32, want float64) float64 {
	w := float32(want)
	if got == w || got != got && want != want {
		return 0
	}
	e := math.Abs(float64(w))
	unit := float64(math.Nextafter32(float32(e), float32(math.Inf(1)))) - e
	if math.IsInf(float64(w), 0) || math.IsInf(float64(got), 0) {
		return math.Inf(1)
	}
	return math.Abs(float64(got)-want) / unit
}

// everyBits calls f with floats of all exponents and both signs.
func everyBits(f func(x float32)) {
	r := rand.New(rand.NewPCG(3, 4))
	for u := uint64(0); u < 1<<32; u += 1 + uint64(r.IntN(8191)) {
		f(math.Float32frombits(uint32(u)))
	}
	for _, x := range []float64{0, math.Copysign(0, -1), math.Inf(1), math.Inf(-1), math.NaN(), 1, -1, 0.625, 88.72284, 88.72283, -87.33655, -103.97, -103.98, 0x1p-126, 0x1p-149} {
		f(float32(x))
	}
}

func TestAccuracy(t *testing.T) {
	sig := func(x float64) float64 { return 1 / (1 + math.Exp(-x)) }
	phi := func(x float64) float64 { return 0.5 * math.Erfc(-x/math.Sqrt2) }
	for _, c := range []struct {
		name string
		f    func(dst, x []float32)
		want func(float64) float64
		max  float64

		gated bool
	}{
		{"Exp", Exp, math.Exp, 1.5, false},
		{"Log", Log, math.Log, 1.5, false},
		{"Tanh", Tanh, math.Tanh, 2, false},
		{"Sigmoid", Sigmoid, sig, 2.5, false},
		{"Sqrt", Sqrt, math.Sqrt, 0.5, false},
		{"Rsqrt", Rsqrt, func(x float64) float64 { return 1 / math.Sqrt(x) }, 1.5, false},
		{"Silu", Silu, func(x float64) float64 {
			if math.IsInf(x, -1) {
				return 0
			}
			return x * sig(x)
		}, 3, true},
		{"GeluErf", GeluErf, func(x float64) float64 {
			if math.IsInf(x, -1) {
				return 0
			}
			return x * phi(x)
		}, 7, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			var worst float64
			var at float32
			everyBits(func(x float32) {
				var y [1]float32
				c.f(y[:], []float32{x})
				want := c.want(float64(x))
				if c.gated && math.Abs(want) < 1e-36 {
					// x times a subnormal factor: only the absolute error is small.
					if d := math.Abs(float64(y[0]) - want); d > 0x1p-141 {
						t.Errorf("at %g: %g, want %g", x, y[0], want)
					}
					return
				}
				if u := ulps(y[0], want); u > worst {
					worst, at = u, x
				}
			})
			t.Logf("worst error %.2f units in the last place, at %g", worst, at)
			if worst > c.max {
				t.Errorf("error %.2f at %g, allowed %.1f", worst, at, c.max)
			}
		})
	}
}

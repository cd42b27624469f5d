package vec

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
)

// exactFMA rounds a·b + c once, with unlimited precision before.
func exactFMA(a, b, c float32) float32 {
	x := new(big.Float).SetPrec(2000).SetFloat64(float64(a))
	x.Mul(x, new(big.Float).SetPrec(2000).SetFloat64(float64(b)))
	x.Add(x, new(big.Float).SetPrec(2000).SetFloat64(float64(c)))
	f, _ := x.Float32()
	return f
}

func TestFMARoundsOnce(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	check := func(a, b, c float32) {
		t.Helper()
		got, want := fma32(a, b, c), exactFMA(a, b, c)
		if slow := fmaSlow(a, b, c); got != want || slow != want {
			t.Fatalf("fma32(%x, %x, %x) = %x and fmaSlow %x, want %x", a, b, c, got, slow, want)
		}
	}
	// Ties that a doubly rounded sum gets wrong: 1 + 2**-24 ± a product too small for float64.
	for _, p := range []float32{0x1p-40, -0x1p-40, 0x1.8p-35} {
		check(p, p, 1+0x1p-23)
		check(p, 0x1p-20, 0x1.000002p0)
	}
	check(0x1.000002p0, 0x1.000002p0, 0x1p-80)
	check(0x1.000002p-12, 0x1p-12, 1)
	check(0x1.000002p-12, -0x1p-12, 1)
	check(0x1.8p-75, 0x1p-75, 0)
	check(0x1.8p-75, 0x1p-75, 0x1p-149)
	check(0x1.fffffep127, 1, 0x1p103)
	check(0x1.fffffep127, 1, 0x1.fffffep102)
	for range 200000 {
		// Exponents near each other, so that sums cancel, tie and go subnormal.
		f := func(lo, hi int) float32 {
			m := r.Uint32() & 0x7fffff
			if r.IntN(2) == 0 {
				m &= 0x7ff800 // short mantissas tie often
			}
			return math.Float32frombits(r.Uint32()&signBit | uint32(lo+r.IntN(hi-lo))<<23 | m)
		}
		check(f(100, 140), f(100, 140), f(60, 160))
		check(f(40, 70), f(40, 70), f(0, 20))
		check(f(1, 200), f(60, 130), f(0, 250))
	}
}

func TestFMASpecialValues(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	negZero := float32(math.Copysign(0, -1))
	for _, c := range []struct{ a, b, c, want float32 }{
		{inf, 1, 1, inf}, {inf, 0, 1, nan}, {inf, 1, -inf, nan}, {nan, 1, 1, nan}, {1, 1, -inf, -inf},
		{1, negZero, negZero, negZero}, {1, 0, negZero, 0}, {1, -1, 1, 0}, {math.MaxFloat32, 2, 0, inf},
	} {
		for _, got := range []float32{fma32(c.a, c.b, c.c), fmaSlow(c.a, c.b, c.c)} {
			if !sameBits(got, c.want) {
				t.Errorf("%v·%v + %v = %v, want %v", c.a, c.b, c.c, got, c.want)
			}
		}
	}
}

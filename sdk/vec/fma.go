package vec

import "math"

// fma32 is a*b + c with a single rounding, as the processor's fused
// multiply-add computes it.
//
// The product of two float32 is exact in float64, so the float64 sum is the
// exact value rounded to 53 bits. Rounding that again to float32 is right unless
// roundsTwice says otherwise.
func fma32(a, b, c float32) float32 {
	s := float64(a)*float64(b) + float64(c)
	if roundsTwice(s) {
		return fmaSlow(a, b, c)
	}
	return float32(s)
}

// roundsTwice reports whether rounding the float64 s, itself rounded, to float32
// may differ from rounding the exact value: if s lies halfway between two
// float32, or is subnormal as a float32, where halfway patterns are others.
func roundsTwice(s float64) bool {
	u := math.Float64bits(s)
	return u&0x1fffffff == 0x10000000 || u<<1-1 < 0x381<<53-1
}

// fmaSlow rounds the float64 sum to odd, using the error of the addition, so
// that the rounding to float32 sees on which side of a tie the exact value is.
func fmaSlow(a, b, c float32) float32 {
	p, q := float64(a)*float64(b), float64(c)
	s := p + q
	t := s - p
	e := (p - (s - t)) + (q - t)
	if u := math.Float64bits(s); (e > 0 || e < 0) && u&1 == 0 { // the error of an infinite sum is NaN
		// Step one unit toward the exact value: up in magnitude if the error has the sum's sign.
		if (e > 0) == (s > 0) {
			u++
		} else {
			u--
		}
		s = math.Float64frombits(u)
	}
	return float32(s)
}

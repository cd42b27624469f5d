package graph

import (
	"math"

	"starling/core/tensor"
)

// Round returns the value of type d that is nearest to x, ties to even: what storing x as d makes of it.
// Integers saturate, and NaN becomes 0 in them.
func Round(d tensor.DType, x float64) float64 {
	switch d {
	case tensor.F64:
		return x
	case tensor.F32:
		return float64(float32(x))
	case tensor.BF16:
		return roundTo(x, 8, -126, 127)
	case tensor.F16:
		return roundTo(x, 11, -14, 15)
	case tensor.I32:
		return clampRound(x, math.MinInt32, math.MaxInt32)
	case tensor.I64:
		return clampRound(x, math.MinInt64, math.MaxInt64)
	case tensor.U32:
		return clampRound(x, 0, math.MaxUint32)
	case tensor.U8:
		return clampRound(x, 0, math.MaxUint8)
	}
	panic("graph: no values of type " + d.String())
}

func clampRound(x, lo, hi float64) float64 {
	if math.IsNaN(x) {
		return 0
	}
	return min(max(math.RoundToEven(x), lo), hi)
}

// roundTo rounds to a binary format with the given bits of significand (the hidden one counted)
// and range of exponents.
func roundTo(x float64, bits, minExp, maxExp int) float64 {
	if x == 0 || math.IsNaN(x) || math.IsInf(x, 0) {
		return x
	}
	_, e := math.Frexp(x) // |x| in [2^(e-1), 2^e)
	unit := max(e-1, minExp) - (bits - 1)
	y := math.Ldexp(math.RoundToEven(math.Ldexp(x, -unit)), unit)
	if math.Abs(y) >= math.Ldexp(1, maxExp+1) {
		return math.Inf(int(math.Copysign(1, x)))
	}
	return y
}

package graph_test

import (
	"math"
	"testing"

	"starling/core/graph"
	"starling/core/tensor"
)

func TestRound(t *testing.T) {
	inf := math.Inf(1)
	for _, c := range []struct {
		d       tensor.DType
		x, want float64
	}{
		{tensor.F64, 1.0 / 3, 1.0 / 3},
		{tensor.F32, 1.0 / 3, 0.3333333432674408},
		{tensor.F32, 1e39, inf},
		{tensor.BF16, 1 + 1.0/256, 1},          // halfway, to even
		{tensor.BF16, 1 + 3.0/256, 1 + 1.0/64}, // halfway, to even
		{tensor.BF16, 1 + 1.0/256 + 1e-12, 1 + 1.0/128},
		{tensor.BF16, -3.140625, -3.140625},
		{tensor.BF16, 3.3895e38, 3.3895313892515355e38},
		{tensor.BF16, 3.4e38, inf},
		{tensor.BF16, -3.4e38, -inf},
		{tensor.BF16, math.Ldexp(1, -133), math.Ldexp(1, -133)}, // least subnormal
		{tensor.BF16, math.Ldexp(1, -134), 0},
		{tensor.F16, 1.0 / 3, 0.333251953125},
		{tensor.F16, 65504, 65504},
		{tensor.F16, 65519.99, 65504},
		{tensor.F16, 65520, inf},
		{tensor.F16, math.Ldexp(3, -25), math.Ldexp(1, -23)}, // halfway between subnormals
		{tensor.F16, math.Ldexp(1, -24), math.Ldexp(1, -24)},
		{tensor.F16, inf, inf},
		{tensor.I32, 2.5, 2}, {tensor.I32, 3.5, 4}, {tensor.I32, -1e12, math.MinInt32}, {tensor.I32, math.NaN(), 0},
		{tensor.U32, -1, 0}, {tensor.U8, 300, 255}, {tensor.I64, 7, 7},
	} {
		if got := graph.Round(c.d, c.x); got != c.want {
			t.Errorf("%v as %v is %v, want %v", c.x, c.d, got, c.want)
		}
	}
	if !math.IsNaN(graph.Round(tensor.BF16, math.NaN())) {
		t.Error("NaN is lost in bf16")
	}
	if !math.Signbit(graph.Round(tensor.F16, math.Copysign(0, -1))) {
		t.Error("the sign of zero is lost in f16")
	}
}

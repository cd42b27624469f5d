package ref

import (
	"fmt"
	"math"

	"starling/core/device"
	"starling/core/graph"
	"starling/core/tensor"
)

// Read returns a tensor's elements as float64. Integers of 64 bits beyond 2^53 lose their last bits.
func Read(x device.Tensor) *graph.Array {
	a := graph.NewArray(x.Type)
	b := x.Bytes()
	switch x.DType {
	case tensor.F32:
		widen(a.Data, tensor.View[float32](b))
	case tensor.F64:
		widen(a.Data, tensor.View[float64](b))
	case tensor.I32:
		widen(a.Data, tensor.View[int32](b))
	case tensor.I64:
		widen(a.Data, tensor.View[int64](b))
	case tensor.U32:
		widen(a.Data, tensor.View[uint32](b))
	case tensor.U8:
		widen(a.Data, b)
	case tensor.BF16:
		for i, v := range tensor.View[uint16](b) {
			a.Data[i] = float64(math.Float32frombits(uint32(v) << 16))
		}
	case tensor.F16:
		for i, v := range tensor.View[uint16](b) {
			a.Data[i] = fromHalf(v)
		}
	default:
		panic("ref: no elements of type " + x.DType.String())
	}
	return a
}

// Write rounds an array to the tensor's type, as graph.Round does, and stores it.
func Write(x device.Tensor, a *graph.Array) {
	if n := x.Shape.Numel(); n != len(a.Data) {
		panic(fmt.Sprintf("ref: %d values for a tensor of %d", len(a.Data), n))
	}
	b := x.Bytes()
	switch x.DType {
	case tensor.F32:
		store(tensor.View[float32](b), a.Data, x.DType)
	case tensor.F64:
		store(tensor.View[float64](b), a.Data, x.DType)
	case tensor.I32:
		store(tensor.View[int32](b), a.Data, x.DType)
	case tensor.I64:
		store(tensor.View[int64](b), a.Data, x.DType)
	case tensor.U32:
		store(tensor.View[uint32](b), a.Data, x.DType)
	case tensor.U8:
		store(b, a.Data, x.DType)
	case tensor.BF16:
		for i, v := range a.Data {
			// The rounded value is a float32 whose low half is zero, so the cut is exact.
			tensor.View[uint16](b)[i] = uint16(math.Float32bits(float32(graph.Round(x.DType, v))) >> 16)
		}
	case tensor.F16:
		for i, v := range a.Data {
			tensor.View[uint16](b)[i] = toHalf(graph.Round(x.DType, v))
		}
	default:
		panic("ref: no elements of type " + x.DType.String())
	}
}

type number interface {
	float32 | float64 | int32 | int64 | uint32 | uint8
}

func widen[T number](dst []float64, src []T) {
	for i, v := range src {
		dst[i] = float64(v)
	}
}

func store[T number](dst []T, src []float64, d tensor.DType) {
	for i, v := range src {
		dst[i] = T(graph.Round(d, v))
	}
}

// fromHalf decodes IEEE 754 binary16.
func fromHalf(h uint16) float64 {
	sign := 1.0
	if h>>15 == 1 {
		sign = -1
	}
	exponent, fraction := int(h>>10&31), float64(h&1023)
	switch exponent {
	case 0:
		return sign * math.Ldexp(fraction, -24)
	case 31:
		if fraction != 0 {
			return math.NaN()
		}
		return math.Inf(int(sign))
	}
	return sign * math.Ldexp(1024+fraction, exponent-25)
}

// toHalf encodes a value that binary16 holds exactly.
func toHalf(x float64) uint16 {
	var sign uint16
	if math.Signbit(x) {
		sign = 1 << 15
		x = -x
	}
	switch {
	case math.IsNaN(x):
		return sign | 0x7e00
	case math.IsInf(x, 0):
		return sign | 0x7c00
	case x < math.Ldexp(1, -14):
		return sign | uint16(math.Ldexp(x, 24))
	}
	fraction, exponent := math.Frexp(x) // fraction in [1/2, 1)
	return sign | uint16(exponent+14)<<10 | uint16(math.Ldexp(fraction, 11))&1023
}

package cpu

import (
	"math"

	"starling/core/device"
	"starling/core/graph"
	"starling/core/tensor"
	"starling/sdk/vec"
)

// Conversions of element types.
var castKernels = castTable(tensor.F32, tensor.F64, tensor.BF16, tensor.F16, tensor.I32, tensor.I64, tensor.U32, tensor.U8)

func castTable(from ...tensor.DType) []kernel {
	var ks []kernel
	for _, t := range from {
		ks = append(ks, kernel{"cast", t.String(), cast})
	}
	return ks
}

func cast(d *Device, c device.Call) (func(), error) {
	a, err := attrs[graph.CastAttrs](c)
	if err != nil {
		return nil, err
	}
	x, y := c.In[0], c.Out[0]
	n := x.Shape.Numel()
	var piece func(lo, hi int)
	switch from, to := x.DType, a.To; {
	case from == to:
		return copyWhole(d, c)
	case from == tensor.BF16 && to == tensor.F32:
		x, y := tensor.View[uint16](x.Bytes()), f32(y)
		piece = func(lo, hi int) { vec.BF16ToF32(y[lo:hi], x[lo:hi]) }
	case from == tensor.F32 && to == tensor.BF16:
		x, y := f32(x), tensor.View[uint16](y.Bytes())
		piece = func(lo, hi int) { vec.F32ToBF16(y[lo:hi], x[lo:hi]) }
	case from == tensor.F16 && to == tensor.F32:
		x, y := tensor.View[uint16](x.Bytes()), f32(y)
		piece = func(lo, hi int) { vec.F16ToF32(y[lo:hi], x[lo:hi]) }
	case from == tensor.F32 && to == tensor.F16:
		x, y := f32(x), tensor.View[uint16](y.Bytes())
		piece = func(lo, hi int) { vec.F32ToF16(y[lo:hi], x[lo:hi]) }
	default:
		get, set := reader(x), writer(y)
		piece = func(lo, hi int) {
			for i := lo; i < hi; i++ {
				set(i, graph.Round(to, get(i)))
			}
		}
	}
	return d.parallelSpan(n, costlyBlock, piece), nil
}

// reader returns element i of a tensor as a float64, which holds every element of every type that models
// use exactly (64-bit integers beyond 2^53 excepted).
func reader(t device.Tensor) func(i int) float64 {
	switch t.DType {
	case tensor.BF16:
		v := tensor.View[uint16](t.Bytes())
		return func(i int) float64 { return float64(math.Float32frombits(uint32(v[i]) << 16)) }
	case tensor.F16:
		v := tensor.View[uint16](t.Bytes())
		return func(i int) float64 {
			var y [1]float32
			vec.F16ToF32(y[:], v[i:i+1])
			return float64(y[0])
		}
	case tensor.F64:
		return get[float64](t)
	case tensor.I32:
		return get[int32](t)
	case tensor.I64:
		return get[int64](t)
	case tensor.U32:
		return get[uint32](t)
	case tensor.U8:
		return get[uint8](t)
	}
	return get[float32](t)
}

// writer stores a float64 that the tensor's type holds exactly.
func writer(t device.Tensor) func(i int, v float64) {
	switch t.DType {
	case tensor.BF16:
		v := tensor.View[uint16](t.Bytes())
		return func(i int, f float64) { v[i] = uint16(math.Float32bits(float32(f)) >> 16) }
	case tensor.F16:
		v := tensor.View[uint16](t.Bytes())
		return func(i int, f float64) {
			x := [1]float32{float32(f)}
			vec.F32ToF16(v[i:i+1], x[:])
		}
	case tensor.F64:
		return set[float64](t)
	case tensor.I32:
		return set[int32](t)
	case tensor.I64:
		v := tensor.View[int64](t.Bytes())
		return func(i int, f float64) {
			v[i] = int64(f)
			if f >= 1<<63 {
				v[i] = math.MaxInt64
			}
		}
	case tensor.U32:
		return set[uint32](t)
	case tensor.U8:
		return set[uint8](t)
	}
	return set[float32](t)
}

type number interface {
	float32 | float64 | int32 | int64 | uint32 | uint8
}

func get[T number](t device.Tensor) func(i int) float64 {
	v := tensor.View[T](t.Bytes())
	return func(i int) float64 { return float64(v[i]) }
}

func set[T number](t device.Tensor) func(i int, f float64) {
	v := tensor.View[T](t.Bytes())
	return func(i int, f float64) { v[i] = T(f) }
}

package graph

import (
	"math"
	"slices"
)

// Optimizer state in 8 bits: block-wise dynamic quantisation (Dettmers, Lewis, Shleifer and Zettlemoyer, 8-bit Optimizers via Block-wise Quantization, 2022).
// A tensor is cut into blocks of QuantBlock elements, each with the largest of its absolute values as an f32; an element is kept as
// the code of its ratio to that. Blocks restart at each parameter, and norm blocks, at which shards are cut, are whole numbers of
// them, so sharding cuts no block.

// QuantBlock is the number of elements that share a scale.
const QuantBlock = 256

// Dynamic8 and Dynamic8Positive are the values of the codes 0 … 255, ascending: the paper's dynamic tree type. The number of leading zeros says the
// power of ten, the bits that are left divide the span from a tenth of it to it evenly; a code is the middle of its part. Zero and one are exact.
var Dynamic8, Dynamic8Positive = dynamicTree(true), dynamicTree(false)

func dynamicTree(signed bool) (values [256]float32) {
	powers := [7]float64{1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1}
	all := []float64{0, 1}
	for i, power := range powers {
		parts := 1 << i
		if !signed {
			parts *= 2
		}
		width := 0.9 / float64(parts)
		for k := range parts {
			middle := power * float64(0.1+float64((float64(k)+0.5)*width))
			all = append(all, middle)
			if signed {
				all = append(all, -middle)
			}
		}
	}
	slices.Sort(all)
	for i, v := range all {
		values[i] = float32(v)
	}
	return values
}

// Quantise is the code whose value is nearest to x, the lower one of two.
func Quantise(values *[256]float32, x float32) uint8 {
	i, _ := slices.BinarySearch(values[:], x)
	switch {
	case i == 256:
		return 255
	case i > 0 && float64(x)-float64(values[i-1]) <= float64(values[i])-float64(x):
		return uint8(i - 1)
	}
	return uint8(i)
}

// refQuantised reads a tensor of codes and the scales of its blocks.
func refQuantised(values *[256]float32, codes, scales *Array) []float64 {
	out := make([]float64, len(codes.Data))
	for i, c := range codes.Data {
		out[i] = float64(values[uint8(c)]) * scales.Data[i/QuantBlock]
	}
	return out
}

// refQuantise writes one.
func refQuantise(values *[256]float32, x []float64, codes, scales *Array) {
	for lo := 0; lo < len(x); lo += QuantBlock {
		block := x[lo:min(lo+QuantBlock, len(x))]
		most := 0.0
		for _, v := range block {
			most = math.Max(most, math.Abs(v))
		}
		scales.Data[lo/QuantBlock] = most
		for i, v := range block {
			code := uint8(0)
			if most > 0 {
				code = Quantise(values, float32(v/most))
			}
			codes.Data[lo+i] = float64(code)
		}
	}
}

// Command fourbit compresses gradients to four bits an element, with a scale for each block of elements: rounding to nearest as in
// QSGD's levels (Alistarh et al., 2017), without its randomness, because the runtime feeds the errors back (Seide et al., 2014).
package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"starling/sdk"
)

func main() { sdk.Serve(&fourbit{}) }

// levels is the largest magnitude of a code; codes are stored as code + levels, 0 … 14 of a nibble's 16 values.
const levels = 7

// smallest is the least scale that is worth a product: below it a block counts as zeros, which wait until they have grown.
const smallest = 0x1p-120

type fourbit struct{ block int }

func (*fourbit) Manifest() sdk.Manifest {
	return sdk.Manifest{
		Name:    "fourbit",
		Version: "1.0.0",
		Doc:     "four bits an element, with a scale for each block of elements",
		Hypers:  []sdk.Hyper{sdk.Int("block", 64, "elements that share a scale; even").AtLeast(2).AtMost(1 << 20)},
	}
}

// Setup implements sdk.Compressor: a block is a float32 and half a byte for each element.
func (f *fourbit) Setup(h sdk.Hypers) (sdk.Layout, error) {
	f.block = h.Int("block")
	if f.block%2 != 0 {
		return sdk.Layout{}, fmt.Errorf("block = %d: must be even, two elements share a byte", f.block)
	}
	return sdk.Layout{Block: f.block, BlockBytes: 4 + f.block/2}, nil
}

// Encode implements sdk.Compressor. An element is off by half a scale at most, its block's largest magnitude / 14.
func (f *fourbit) Encode(dst []byte, x []float32) error {
	for len(x) > 0 {
		part := x[:min(f.block, len(x))]
		top := float32(0)
		for _, v := range part {
			top = max(top, v, -v)
		}
		scale := top / levels
		if scale < smallest {
			scale = 0
		}
		binary.LittleEndian.PutUint32(dst, math.Float32bits(scale))
		codes := dst[4 : 4+f.block/2]
		for i := range f.block {
			q := 0
			if scale > 0 && i < len(part) {
				q = nearest(part[i] / scale)
			}
			codes[i/2] |= byte(q+levels) << (i % 2 * 4)
		}
		dst, x = dst[4+f.block/2:], x[len(part):]
	}
	return nil
}

// rounder is 1.5·2²³: adding it rounds a float32 of small magnitude to an integer, to even where it lies between two.
const rounder = 12582912

// nearest rounds a ratio of at most 7, and a little that the division may add.
func nearest(r float32) int {
	return max(-levels, min(levels, int(float32(r+rounder)-rounder)))
}

// Decode implements sdk.Compressor.
func (f *fourbit) Decode(dst []float32, src []byte) error {
	for len(dst) > 0 {
		part := dst[:min(f.block, len(dst))]
		scale := math.Float32frombits(binary.LittleEndian.Uint32(src))
		if !(scale == 0 || scale >= smallest && scale <= math.MaxFloat32/levels) {
			return fmt.Errorf("a block's scale is %v", scale)
		}
		codes := src[4 : 4+f.block/2]
		for i := range f.block {
			code := int(codes[i/2]) >> (i % 2 * 4) & 15
			switch {
			case code > 2*levels:
				return errors.New("a code of 15 stands for nothing")
			case i < len(part):
				part[i] = float32(code-levels) * scale
			case code != levels:
				return errors.New("there is something behind the last element")
			}
		}
		dst, src = dst[len(part):], src[4+f.block/2:]
	}
	return nil
}

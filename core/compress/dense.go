package compress

import (
	"encoding/binary"
	"fmt"
	"math"
	"unsafe"

	"starling/sdk/vec"
)

// codec turns a vector into bytes.
type codec interface {
	// encode writes x to dst, which has the right size, and leaves in x what dst lacks of it. Only foreign ones fail.
	encode(dst []byte, x []float32) error
	// decode writes what src says to dst. Whoever sent src is not trusted.
	decode(dst []float32, src []byte) error
}

// int8Size is a float32 scale for each block, then a byte for each element.
func int8Size(n, block int) int { return 4*((n+block-1)/block) + n }

// nan is what stands for what is lost.
var nan = float32(math.NaN())

// infBits is the pattern of +Inf; larger magnitudes are NaN.
const infBits = 0x7f800000

// magnitude orders floats by absolute value, infinity and then NaN last.
func magnitude(v float32) uint32 { return math.Float32bits(v) &^ (1 << 31) }

// int8Codec rounds each element to a multiple of its block's largest magnitude / 127. A block that holds a value which is not
// finite decodes to NaN, but for its zeros.
type int8Codec struct{ block int }

// rounder is 1.5·2²³: a float32 of magnitude below 2²² is rounded to an integer by adding it, to even where it lies between two.
const rounder = 12582912

func (c int8Codec) encode(dst []byte, x []float32) error {
	blocks := (len(x) + c.block - 1) / c.block
	scales, out := dst[:4*blocks], dst[4*blocks:]
	for b := range blocks {
		part := x[b*c.block : min((b+1)*c.block, len(x))]
		q := out[b*c.block:][:len(part)]
		top := uint32(0)
		for _, v := range part {
			top = max(top, magnitude(v))
		}
		scale := math.Float32frombits(top) / 127
		switch {
		case top >= infBits:
			scale = nan
			for i, v := range part { // zeros stay zeros: some are padding, which nobody writes again
				q[i] = 0
				if v != 0 {
					q[i] = 1
				}
			}
		case scale < 0x1p-120: // too small to divide by: it waits
			scale = 0
			clear(q)
		default:
			inverse := 1 / scale
			for i, v := range part {
				n := int32(math.Float32bits(float32(v*inverse)+rounder)) - 0x4b400000
				q[i] = byte(n)
				part[i] = v - float32(float32(n)*scale)
			}
		}
		binary.LittleEndian.PutUint32(scales[4*b:], math.Float32bits(scale))
	}
	return nil
}

func (c int8Codec) decode(dst []float32, src []byte) error {
	if want := int8Size(len(dst), c.block); len(src) != want {
		return sizeError(len(src), want)
	}
	blocks := (len(dst) + c.block - 1) / c.block
	scales, in := src[:4*blocks], src[4*blocks:]
	for b := range blocks {
		part := dst[b*c.block : min((b+1)*c.block, len(dst))]
		scale := math.Float32frombits(binary.LittleEndian.Uint32(scales[4*b:]))
		for i, q := range in[b*c.block:][:len(part)] {
			part[i] = 0
			if q != 0 {
				part[i] = float32(int8(q)) * scale
			}
		}
	}
	return nil
}

// bf16Codec rounds to nearest even.
type bf16Codec struct{ back []float32 }

// halves is how many elements bf16Codec has in hand at once.
const halves = 1024

func (c *bf16Codec) encode(dst []byte, x []float32) error {
	if c.back == nil {
		c.back = make([]float32, halves)
	}
	for len(x) > 0 {
		n := min(halves, len(x))
		q := words(dst[:2*n])
		vec.F32ToBF16(q, x[:n])
		vec.BF16ToF32(c.back[:n], q)
		vec.Sub(x[:n], x[:n], c.back[:n])
		dst, x = dst[2*n:], x[n:]
	}
	return nil
}

func (c *bf16Codec) decode(dst []float32, src []byte) error {
	if len(src) != 2*len(dst) {
		return sizeError(len(src), 2*len(dst))
	}
	vec.BF16ToF32(dst, words(src))
	return nil
}

// words views bytes as 16-bit words. Buffers of this package's callers begin at even addresses, and so do all parts of them.
func words(b []byte) []uint16 {
	if len(b) == 0 {
		return nil
	}
	return unsafe.Slice((*uint16)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/2)
}

func sizeError(got, want int) error {
	return fmt.Errorf("compressed gradient: %d bytes where %d were expected", got, want)
}

package vec

import "math"

func bf16ToF32Generic(dst []float32, src []uint16) {
	for i := range dst {
		dst[i] = widenBF16(src[i])
	}
}

// f32ToBF16Generic rounds to nearest even; a NaN stays one, made quiet.
func f32ToBF16Generic(dst []uint16, src []float32) {
	for i := range dst {
		dst[i] = roundBF16(src[i])
	}
}

func roundBF16(x float32) uint16 {
	u := math.Float32bits(x)
	if x != x {
		return uint16(u>>16) | 0x40
	}
	return uint16((u + 0x7fff + u>>16&1) >> 16)
}

func widenBF16(x uint16) float32 { return math.Float32frombits(uint32(x) << 16) }

func f16ToF32Generic(dst []float32, src []uint16) {
	for i := range dst {
		h := uint32(src[i])
		sign, e, f := h&0x8000<<16, h>>10&0x1f, h&0x3ff
		switch e {
		case 0: // zero or subnormal: f units of 2**-24, exact in float32
			dst[i] = math.Float32frombits(math.Float32bits(float32(f)*0x1p-24) | sign)
		case 0x1f:
			if f != 0 {
				f |= 0x200
			}
			dst[i] = math.Float32frombits(sign | 0x7f800000 | f<<13)
		default:
			dst[i] = math.Float32frombits(sign | (e+112)<<23 | f<<13)
		}
	}
}

// f32ToF16Generic rounds to nearest even, to infinity from 65520 up.
func f32ToF16Generic(dst []uint16, src []float32) {
	for i := range dst {
		u := math.Float32bits(src[i])
		sign, a := uint16(u>>16&0x8000), u&^signBit
		switch {
		case a > 0x7f800000: // NaN
			dst[i] = sign | 0x7e00 | uint16(a>>13&0x1ff)
		case a >= 0x477ff000: // 65520 and above
			dst[i] = sign | 0x7c00
		case a < 0x38800000: // below 2**-14: adding 0.5 leaves multiples of 2**-24
			dst[i] = sign | uint16(math.Float32bits(math.Float32frombits(a)+0.5)-0x3f000000)
		default:
			dst[i] = sign | uint16((a-112<<23+0xfff+a>>13&1)>>13)
		}
	}
}

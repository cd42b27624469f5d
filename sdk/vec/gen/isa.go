package main

import (
	"fmt"
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// isa is one of the two instruction sets the kernels are generated for.
type isa struct {
	suffix string
	width  int // float32 per vector
	wide   bool
}

var (
	avx512 = &isa{suffix: "AVX512", width: 16, wide: true}
	avx2   = &isa{suffix: "AVX2", width: 8}
)

// bytes is the size of a vector.
func (s *isa) bytes() int { return 4 * s.width }

// vec is a fresh vector register.
func (s *isa) vec() VecVirtual {
	if s.wide {
		return ZMM()
	}
	return YMM()
}

func (s *isa) vecs(n int) []VecVirtual {
	v := make([]VecVirtual, n)
	for i := range v {
		v[i] = s.vec()
	}
	return v
}

var constants = map[uint32]Mem{}

// bits is a read-only vector whose every element has the given bit pattern, 64
// bytes long so that both widths may use it as a memory operand.
func bits(u uint32) Mem {
	m, ok := constants[u]
	if !ok {
		m = GLOBL(fmt.Sprintf("const_%08x", u), RODATA|NOPTR)
		for i := range 16 {
			DATA(4*i, U32(u))
		}
		constants[u] = m
	}
	return m
}

// f32 is bits of a float32.
func f32(v float64) Mem { return bits(math.Float32bits(float32(v))) }

var tailTable *Mem

// tailMasks is a table of 32 words of all ones followed by 32 of zeros: the mask
// of vector v of eight, when n elements are left, begins 32-n+8v words in.
func tailMasks() Mem {
	if tailTable == nil {
		m := GLOBL("tail_masks", RODATA|NOPTR)
		for i := range 64 {
			v := uint32(0)
			if i < 32 {
				v = math.MaxUint32
			}
			DATA(4*i, U32(v))
		}
		tailTable = &m
	}
	return *tailTable
}

// zero clears a register.
func (s *isa) zero(v Register) {
	if s.wide {
		VPXORD(v, v, v)
	} else {
		VXORPS(v, v, v)
	}
}

// imm is an immediate of any size; avo's Imm picks operand types that some
// instructions refuse.
func imm(n int) Op { return I32(int32(n)) }

package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// The operations below are written in the order of their mathematical
// arguments; the assembler's order is the reverse. Where an argument is an Op it
// may be a memory operand. Each returns a fresh register unless it says so.

func (s *isa) add(a VecVirtual, b Op) VecVirtual { d := s.vec(); VADDPS(b, a, d); return d }
func (s *isa) sub(a VecVirtual, b Op) VecVirtual { d := s.vec(); VSUBPS(b, a, d); return d }
func (s *isa) mul(a VecVirtual, b Op) VecVirtual { d := s.vec(); VMULPS(b, a, d); return d }
func (s *isa) div(a VecVirtual, b Op) VecVirtual { d := s.vec(); VDIVPS(b, a, d); return d }
func (s *isa) sqrt(a Op) VecVirtual              { d := s.vec(); VSQRTPS(a, d); return d }

// larger is a > b ? a : b and smaller is a < b ? a : b.
func (s *isa) larger(a VecVirtual, b Op) VecVirtual  { d := s.vec(); VMAXPS(b, a, d); return d }
func (s *isa) smaller(a VecVirtual, b Op) VecVirtual { d := s.vec(); VMINPS(b, a, d); return d }

func (s *isa) and(a VecVirtual, b Op) VecVirtual { d := s.vec(); VANDPS(b, a, d); return d }
func (s *isa) or(a VecVirtual, b Op) VecVirtual  { d := s.vec(); VORPS(b, a, d); return d }
func (s *isa) xor(a VecVirtual, b Op) VecVirtual { d := s.vec(); VXORPS(b, a, d); return d }

func (s *isa) iadd(a VecVirtual, b Op) VecVirtual { d := s.vec(); VPADDD(b, a, d); return d }
func (s *isa) isub(a VecVirtual, b Op) VecVirtual { d := s.vec(); VPSUBD(b, a, d); return d }
func (s *isa) shl(a VecVirtual, n uint) VecVirtual {
	d := s.vec()
	VPSLLD(Imm(uint64(n)), a, d)
	return d
}
func (s *isa) shr(a VecVirtual, n uint) VecVirtual {
	d := s.vec()
	VPSRLD(Imm(uint64(n)), a, d)
	return d
}
func (s *isa) sar(a VecVirtual, n uint) VecVirtual {
	d := s.vec()
	VPSRAD(Imm(uint64(n)), a, d)
	return d
}

// iand is and in the integer unit.
func (s *isa) iand(a VecVirtual, b Op) VecVirtual {
	d := s.vec()
	if s.wide {
		VPANDD(b, a, d)
	} else {
		VPAND(b, a, d)
	}
	return d
}

// load reads a vector of constants into a register.
func (s *isa) load(m Mem) VecVirtual { d := s.vec(); VMOVUPS(m, d); return d }

// Fused multiply-adds overwrite an argument.

// mulAdd sets a to a·b + c and returns it.
func (s *isa) mulAdd(a, b VecVirtual, c Op) VecVirtual { VFMADD213PS(c, b, a); return a }

// addMul sets c to a·b + c and returns it.
func (s *isa) addMul(c, a VecVirtual, b Op) VecVirtual { VFMADD231PS(b, a, c); return c }

// subMul sets c to -(a·b) + c and returns it.
func (s *isa) subMul(c, a VecVirtual, b Op) VecVirtual { VFNMADD231PS(b, a, c); return c }

// poly is the polynomial with coefficients cs, highest first, at x.
func (s *isa) poly(x VecVirtual, cs ...float64) VecVirtual {
	p := s.load(f32(cs[0]))
	for _, c := range cs[1:] {
		p = s.mulAdd(p, x, f32(c))
	}
	return p
}

// Comparison predicates; all but isNaN and notLE are false for NaN, none raises.
const (
	eq    = 0x00
	isNaN = 0x03 // of a or b
	lt    = 0x11
	le    = 0x12
	notLE = 0x16
)

// mask is the result of a comparison: an opmask or a vector of all ones and
// zeros.
type mask struct {
	k Register
	v VecVirtual
}

func (s *isa) cmp(pred uint64, a VecVirtual, b Op) mask {
	if s.wide {
		k := K()
		VCMPPS(Imm(pred), b, a, k)
		return mask{k: k}
	}
	d := s.vec()
	VCMPPS(Imm(pred), b, a, d)
	return mask{v: d}
}

// choose is yes where m holds, else no.
func (s *isa) choose(m mask, yes Op, no VecVirtual) VecVirtual {
	d := s.vec()
	if s.wide {
		VBLENDMPS(yes, no, m.k, d)
	} else {
		VBLENDVPS(m.v, yes, no, d)
	}
	return d
}

// negative is a mask of the elements below zero; -0 and NaN may fall either way.
func (s *isa) negative(x VecVirtual) mask {
	if s.wide {
		return s.cmp(lt, x, f32(0))
	}
	return mask{v: x} // blends look at the sign bit alone
}

// max and min pass a NaN in a; the processor passes one in b.
func (s *isa) max(a, b VecVirtual) VecVirtual {
	return s.choose(s.cmp(isNaN, a, a), a, s.larger(a, b))
}

func (s *isa) min(a, b VecVirtual) VecVirtual {
	return s.choose(s.cmp(isNaN, a, a), a, s.smaller(a, b))
}

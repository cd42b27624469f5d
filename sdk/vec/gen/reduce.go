package main

import (
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// accumulate adds v to an accumulator.
func (p *pass) accumulate(name string, v VecVirtual) {
	a := p.acc(name)
	VADDPS(v, a, a)
}

// A vector past the end contributes +0, which leaves an accumulator as it is:
// one that began at +0 is never -0.
func (s *isa) reductions() {
	one := []string{"lanes"}
	s.fold("sum", one, func(p *pass) { p.accumulate("lanes", p.in("x")) })
	s.fold("dot", one, func(p *pass) { s.addMul(p.acc("lanes"), p.in("a"), p.in("b")) })
	s.fold("devSq", one, func(p *pass) {
		d := p.kept(s.sub(p.in("x"), p.scalar("mean")))
		s.addMul(p.acc("lanes"), d, d)
	})
	s.fold("maxOf", one, func(p *pass) {
		a := p.acc("lanes")
		v := p.keptOr(p.in("x"), f32(math.Inf(-1)))
		VMOVUPS(s.max(v, a), a)
	})
	s.combine("combine", func(a, b VecVirtual) VecVirtual { d := newLike(a); VADDPS(b, a, d); return d })
	s.combine("combineMax", func(a, b VecVirtual) VecVirtual {
		d, m := newLike(a), newLike(a)
		VMAXPS(a, b, d) // b > a ? b : a
		VCMPPS(Imm(isNaN), b, b, m)
		VBLENDVPS(m, b, d, d)
		return d
	})
	s.sumSq64()
	s.allFinite()
}

// newLike is a fresh register of v's width.
func newLike(v VecVirtual) VecVirtual {
	if v.Size() == 16 {
		return XMM()
	}
	return YMM()
}

// combine writes a function that folds lanes by halves; f takes lower and upper
// halves. 256-bit and smaller registers do for both instruction sets.
func (s *isa) combine(name string, f func(a, b VecVirtual) VecVirtual) {
	TEXT(name+s.suffix, NOSPLIT, "func(lanes *[32]float32) (ret float32)")
	Pragma("noescape")
	p := Load(Param("lanes"), GP64())
	v := make([]VecVirtual, 4)
	for i := range v {
		v[i] = YMM()
		VMOVUPS(Mem{Base: p, Disp: 32 * i}, v[i])
	}
	y := f(f(v[0], v[2]), f(v[1], v[3]))
	hi := XMM()
	VEXTRACTF128(Imm(1), y, hi)
	x := f(y.AsX().(VecVirtual), hi)
	hi = XMM()
	VMOVHLPS(x, x, hi)
	x = f(x, hi)
	hi = XMM()
	VMOVSHDUP(x, hi)
	x = f(x, hi)
	Store(x, Return("ret"))
	VZEROUPPER()
	RET()
}

// sumSq64 widens to float64; it takes a multiple of 32 elements.
func (s *isa) sumSq64() {
	f := s.begin(find("sumSq64"))
	acc := s.vecs(lanes * 2 / s.width)
	lp := f.ptr["lanes"]
	for i, v := range acc {
		VMOVUPD(Mem{Base: lp, Disp: i * s.bytes()}, v)
	}
	Label("loop")
	for i, v := range acc {
		d := s.vec()
		VCVTPS2PD(Mem{Base: f.ptr["x"], Index: f.off, Scale: 1, Disp: i * s.bytes() / 2}, d)
		VFMADD231PD(d, d, v)
	}
	ADDQ(imm(4*lanes), f.off)
	SUBQ(imm(lanes), f.left)
	JG(LabelRef("loop"))
	for i, v := range acc {
		VMOVUPD(v, Mem{Base: lp, Disp: i * s.bytes()})
	}
	VZEROUPPER()
	RET()
}

// allFinite adds up 0·x, which is NaN from the first infinity or NaN on; it
// takes a multiple of 32 elements.
func (s *isa) allFinite() {
	f := s.begin(find("allFinite"))
	acc := s.vecs(lanes / s.width)
	zero := s.vec()
	s.zero(zero)
	for _, v := range acc {
		s.zero(v)
	}
	Label("loop")
	for i, v := range acc {
		VFMADD231PS(Mem{Base: f.ptr["x"], Index: f.off, Scale: 1, Disp: i * s.bytes()}, zero, v)
	}
	ADDQ(imm(4*lanes), f.off)
	SUBQ(imm(lanes), f.left)
	JG(LabelRef("loop"))
	v := acc[0]
	for _, a := range acc[1:] {
		v = s.add(v, a)
	}
	m, r := s.cmp(isNaN, v, v), GP32()
	if s.wide {
		KMOVW(m.k, r)
	} else {
		VMOVMSKPS(m.v, r)
	}
	ret := GP8()
	TESTL(r, r)
	SETEQ(ret)
	Store(ret, ReturnIndex(0))
	VZEROUPPER()
	RET()
}

// conversions between float32 and 16 bits take a multiple of 32 elements.
func (s *isa) conversions() {
	convert := func(name string, body func(src, dst Mem)) {
		f := s.begin(find(name))
		n := s.width
		src, dst := 4, 2
		if name == "bf16ToF32" || name == "f16ToF32" {
			src, dst = 2, 4
		}
		Label("loop")
		for i := 0; i < lanes; i += n {
			body(Mem{Base: f.ptr["src"], Index: f.off, Scale: uint8(src), Disp: src * i},
				Mem{Base: f.ptr["dst"], Index: f.off, Scale: uint8(dst), Disp: dst * i})
		}
		ADDQ(imm(lanes), f.off)
		SUBQ(imm(lanes), f.left)
		JG(LabelRef("loop"))
		VZEROUPPER()
		RET()
	}
	convert("bf16ToF32", func(src, dst Mem) {
		v := s.vec()
		VPMOVZXWD(src, v)
		VMOVUPS(s.shl(v, 16), dst)
	})
	convert("f32ToBF16", func(src, dst Mem) {
		x := s.vec()
		VMOVUPS(src, x)
		odd := s.iand(s.shr(x, 16), bits(1))
		v := s.shr(s.iadd(s.iadd(x, bits(0x7fff)), odd), 16)
		quiet := s.or(s.shr(x, 16), bits(0x40))
		v = s.choose(s.cmp(isNaN, x, x), quiet, v)
		if s.wide {
			VPMOVDW(v, dst)
			return
		}
		VPACKUSDW(v, v, v)
		VPERMQ(Imm(0x08), v, v)
		VMOVUPS(v.AsX(), dst)
	})
	convert("f16ToF32", func(src, dst Mem) {
		v := s.vec()
		VCVTPH2PS(src, v)
		VMOVUPS(v, dst)
	})
	convert("f32ToF16", func(src, dst Mem) {
		v := s.vec()
		VMOVUPS(src, v)
		VCVTPS2PH(Imm(0), v, dst)
	})
}

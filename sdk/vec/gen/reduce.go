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
	s.total("sum", func(p *pass) { p.accumulate("lanes", p.in("x")) })
	s.total("dot", func(p *pass) { s.addMul(p.acc("lanes"), p.in("a"), p.in("b")) })
	s.total("devSq", func(p *pass) {
		d := p.kept(s.sub(p.in("x"), p.scalar("mean")))
		s.addMul(p.acc("lanes"), d, d)
	})
	s.fold("maxOf", []string{"lanes"}, math.Inf(-1), s.max, func(p *pass) {
		a := p.acc("lanes")
		v := p.keptOr(p.in("x"), f32(math.Inf(-1)))
		VMOVUPS(s.max(v, a), a)
	})
	s.sumSq64()
	s.allFinite()
}

// total writes a fold that adds to one set of lanes.
func (s *isa) total(name string, body func(p *pass)) {
	s.fold(name, []string{"lanes"}, 0, s.plus, body)
}

func (s *isa) plus(a, b VecVirtual) VecVirtual { return s.add(a, b) }

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
		s.storeBF16(x, dst)
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

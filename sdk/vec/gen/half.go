package main

import (
	"strings"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// halfPass is one vector's worth of a kernel some of whose slices are bfloat16: those are widened as they are read
// and rounded as they are written.
type halfPass struct {
	*isa
	fn   *function
	half map[string]bool
	at   int // elements past the loop's offset
}

func (p *halfPass) mem(name string) Mem {
	size := 4
	if p.half[name] {
		size = 2
	}
	return Mem{Base: p.fn.ptr[name], Index: p.fn.off, Scale: uint8(size), Disp: size * p.at}
}

func (p *halfPass) in(name string) VecVirtual {
	v := p.vec()
	if !p.half[name] {
		VMOVUPS(p.mem(name), v)
		return v
	}
	VPMOVZXWD(p.mem(name), v)
	return p.shl(v, 16)
}

func (p *halfPass) out(name string, v VecVirtual) {
	if p.half[name] {
		p.storeBF16(v, p.mem(name))
		return
	}
	VMOVUPS(v, p.mem(name))
}

// storeBF16 rounds to nearest even; a NaN stays one, made quiet.
func (s *isa) storeBF16(x VecVirtual, dst Mem) {
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
}

// onHalves writes an elementwise kernel on multiples of 32 elements.
func (s *isa) onHalves(name string, body func(p *halfPass)) {
	k := find(name)
	f := s.begin(k)
	half := map[string]bool{}
	for _, p := range parse(k.params) {
		half[p.name] = strings.HasSuffix(p.typ, "uint16")
	}
	Label("loop")
	for i := 0; i < lanes; i += s.width {
		body(&halfPass{isa: s, fn: f, half: half, at: i})
	}
	ADDQ(imm(lanes), f.off)
	SUBQ(imm(lanes), f.left)
	JG(LabelRef("loop"))
	VZEROUPPER()
	RET()
}

func (s *isa) halves() {
	binary := func(name string, f func(a, b VecVirtual) VecVirtual) {
		s.onHalves(name, func(p *halfPass) { p.out("dst", f(p.in("a"), p.in("b"))) })
	}
	plus := func(a, b VecVirtual) VecVirtual { return s.add(a, b) }
	binary("addRound", plus)
	binary("addBF16", plus)
	binary("subBF16", func(a, b VecVirtual) VecVirtual { return s.sub(a, b) })
	binary("mulBF16", func(a, b VecVirtual) VecVirtual { return s.mul(a, b) })
	s.onHalves("addWide", func(p *halfPass) { p.out("dst", s.add(p.in("dst"), p.in("src"))) })

	unary := func(name string, f func(x VecVirtual) VecVirtual) {
		s.onHalves(name, func(p *halfPass) { p.out("dst", f(p.in("x"))) })
	}
	unary("reluBF16", func(x VecVirtual) VecVirtual { return s.larger(s.load(f32(0)), x) })
	unary("geluBF16", s.gelu)
	unary("geluErfBF16", s.geluErf)
	unary("siluBF16", s.silu)

	slope := func(name string, f func(x VecVirtual) VecVirtual) {
		s.onHalves(name, func(p *halfPass) { p.out("dst", s.mul(f(p.in("x")), p.in("dy"))) })
	}
	s.onHalves("reluGradBF16", func(p *halfPass) {
		p.out("dst", s.choose(s.cmp(le, p.in("x"), f32(0)), f32(0), p.in("dy")))
	})
	slope("geluGradBF16", s.geluSlope)
	slope("geluErfGradBF16", s.geluErfSlope)
	slope("siluGradBF16", s.siluSlope)
}

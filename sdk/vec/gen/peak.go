package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
)

// peak writes a loop of independent multiply-adds, one per accumulator, as many
// as the latency of two units needs.
func (s *isa) peak() {
	const chains = 12
	TEXT("fmaLoop"+s.suffix, NOSPLIT, "func(n int)")
	n := Load(Param("n"), GP64())
	acc, x, y := s.vecs(chains), s.vec(), s.vec()
	for _, v := range append(acc[:chains:chains], x, y) {
		s.zero(v)
	}
	Label("loop")
	for _, v := range acc {
		VFMADD231PS(x, y, v)
	}
	DECQ(n)
	JNZ(LabelRef("loop"))
	VZEROUPPER()
	RET()
}

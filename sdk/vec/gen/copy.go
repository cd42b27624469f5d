package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
)

// copyEach copies the n elements from the given one on of each slice of src to the slice of dst, 32 of each slice in turn; n is a multiple
// of 32 and not zero, and there is a slice.
func (s *isa) copyEach() {
	const slice = 24 // bytes of a slice's header, which begins with its pointer
	TEXT("copyEach"+s.suffix, NOSPLIT, "func(dst, src [][]float32, from, n int)")
	Pragma("noescape")
	dst, src := Load(Param("dst").Base(), GP64()), Load(Param("src").Base(), GP64())
	end := Load(Param("dst").Len(), GP64())
	at := Load(Param("from"), GP64())
	left := Load(Param("n"), GP64())
	LEAQ(Mem{Base: end, Index: end, Scale: 2}, end)
	SHLQ(Imm(3), end)
	SHLQ(Imm(2), at)
	i, to, from := GP64(), GP64(), GP64()
	Label("block")
	XORQ(i, i)
	Label("slice")
	MOVQ(Mem{Base: src, Index: i, Scale: 1}, from)
	MOVQ(Mem{Base: dst, Index: i, Scale: 1}, to)
	v := s.vecs(lanes / s.width)
	for k := range v {
		VMOVUPS(Mem{Base: from, Index: at, Scale: 1, Disp: k * s.bytes()}, v[k])
	}
	for k := range v {
		VMOVUPS(v[k], Mem{Base: to, Index: at, Scale: 1, Disp: k * s.bytes()})
	}
	ADDQ(Imm(slice), i)
	CMPQ(i, end)
	JLT(LabelRef("slice"))
	ADDQ(imm(4*lanes), at)
	SUBQ(Imm(lanes), left)
	JG(LabelRef("block"))
	VZEROUPPER()
	RET()
}

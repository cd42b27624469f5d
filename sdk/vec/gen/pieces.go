package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// packPiece writes a function that copies a piece of 16 columns: row (plane, place) of dst, ld bytes after the one before, takes from
// src + at + shifts[place] bytes, plane bytes further on for each plane, the elements that masks[place] names. The others become
// zero, or with over stay as they are.
func (s *isa) packPiece(over bool) {
	name := "packPiece"
	if over {
		name = "packPieceOver"
	}
	TEXT(name+s.suffix, NOSPLIT, "func(planes, places int, src *float32, at, plane int, shifts *int, masks *uint32, dst *float32, ld int)")
	Pragma("noescape")
	planes := Load(Param("planes"), GP64())
	places := Load(Param("places"), GP64())
	src := Load(Param("src"), GP64())
	ADDQ(address("at"), src)
	plane := Load(Param("plane"), GP64())
	shifts := Load(Param("shifts"), GP64())
	masks := Load(Param("masks"), GP64())
	dst := Load(Param("dst"), GP64())
	ld := Load(Param("ld"), GP64())
	place, from := GP64(), GP64()
	var low, high VecVirtual
	if !s.wide {
		low, high = s.vec(), s.vec()
		VMOVUPS(laneBits(0), low)
		VMOVUPS(laneBits(8), high)
	}
	Label("planes")
	XORQ(place, place)
	Label("places")
	MOVQ(Mem{Base: shifts, Index: place, Scale: 8}, from)
	mask := Mem{Base: masks, Index: place, Scale: 4}
	if s.wide {
		k, v := K(), s.vec()
		KMOVW(mask, k)
		m := Mem{Base: src, Index: from, Scale: 1}
		if over {
			VMOVUPS(Mem{Base: dst}, v)
			VMOVUPS(m, k, v)
		} else {
			VMOVUPS_Z(m, k, v)
		}
		VMOVUPS(v, Mem{Base: dst})
	} else {
		all := s.vec()
		VPBROADCASTD(mask, all)
		for i, b := range []VecVirtual{low, high} {
			lanes, v := s.vec(), s.vec()
			VPAND(b, all, lanes)
			VPCMPEQD(b, lanes, lanes)
			VMASKMOVPS(Mem{Base: src, Index: from, Scale: 1, Disp: 32 * i}, lanes, v)
			if over {
				VBLENDVPS(lanes, v, s.load(Mem{Base: dst, Disp: 32 * i}), v)
			}
			VMOVUPS(v, Mem{Base: dst, Disp: 32 * i})
		}
	}
	ADDQ(ld, dst)
	INCQ(place)
	CMPQ(place, places)
	JL(LabelRef("places"))
	ADDQ(plane, src)
	DECQ(planes)
	JNZ(LabelRef("planes"))
	VZEROUPPER()
	RET()
}

var laneTables = map[int]Mem{}

// laneBits is a read-only vector whose element i has bit first+i alone.
func laneBits(first int) Mem {
	m, ok := laneTables[first]
	if !ok {
		m = GLOBL([]string{0: "lane_bits_low", 8: "lane_bits_high"}[first], RODATA|NOPTR)
		for i := range 8 {
			DATA(4*i, U32(1<<(first+i)))
		}
		laneTables[first] = m
	}
	return m
}

// gatherUnits writes a function that copies units of 128 bytes: of every row, n of them, whose places in src the row's part of at
// gives in units, or zeros where it is negative. Rows of at lie step elements apart.
func (s *isa) gatherUnits() {
	TEXT("gatherUnits"+s.suffix, NOSPLIT, "func(rows, n int, dst, src *uint16, at *int32, step int)")
	Pragma("noescape")
	rows := Load(Param("rows"), GP64())
	n := Load(Param("n"), GP64())
	dst := Load(Param("dst"), GP64())
	src := Load(Param("src"), GP64())
	at := Load(Param("at"), GP64())
	step := Load(Param("step"), GP64())
	i, from := GP64(), GP64()
	v := s.vecs(128 / s.bytes())
	none := s.vec()
	s.zero(none)
	Label("rows")
	XORQ(i, i)
	Label("units")
	MOVLQSX(Mem{Base: at, Index: i, Scale: 4}, from)
	SHLQ(Imm(7), from)
	JS(LabelRef("none"))
	for j, v := range v {
		VMOVUPS(Mem{Base: src, Index: from, Scale: 1, Disp: s.bytes() * j}, v)
	}
	for j, v := range v {
		VMOVUPS(v, Mem{Base: dst, Disp: s.bytes() * j})
	}
	JMP(LabelRef("next"))
	Label("none")
	for j := range v {
		VMOVUPS(none, Mem{Base: dst, Disp: s.bytes() * j})
	}
	Label("next")
	ADDQ(imm(128), dst)
	INCQ(i)
	CMPQ(i, n)
	JL(LabelRef("units"))
	LEAQ(Mem{Base: at, Index: step, Scale: 4}, at)
	DECQ(rows)
	JNZ(LabelRef("rows"))
	VZEROUPPER()
	RET()
}

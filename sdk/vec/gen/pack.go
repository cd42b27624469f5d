package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// packColumns writes a function that copies n columns of k rows, ld bytes apart,
// to rows of exactly one or two vectors, the rest zero.
func (s *isa) packColumns(name string, vectors int) {
	TEXT(name+s.suffix, NOSPLIT, "func(k int, src *float32, ld int, dst *float32, n int)")
	Pragma("noescape")
	k := Load(Param("k"), GP64())
	src := Load(Param("src"), GP64())
	ld := Load(Param("ld"), GP64())
	dst := Load(Param("dst"), GP64())
	n := Load(Param("n"), GP64())
	v := s.vecs(vectors)
	w := s.bytes()
	later := GP64()
	LEAQ(Mem{Base: src, Index: ld, Scale: 8}, later)
	loop := func(label string, load func(i int)) {
		Label(label)
		for i := range v {
			load(i)
		}
		PREFETCHT0(Mem{Base: later})
		if vectors*w > 64 {
			PREFETCHT0(Mem{Base: later, Disp: 64})
		}
		for i := range v {
			VMOVUPS(v[i], Mem{Base: dst, Disp: w * i})
		}
		ADDQ(ld, src)
		ADDQ(ld, later)
		ADDQ(imm(vectors*w), dst)
		DECQ(k)
		JNZ(LabelRef(label))
		VZEROUPPER()
		RET()
	}
	if s.wide {
		m := GP64()
		MOVQ(I32(-1), m)
		BZHIQ(n, m, m)
		ks := []Register{K(), K()}
		KMOVW(m.As32(), ks[0])
		SHRQ(Imm(uint64(s.width)), m)
		KMOVW(m.As32(), ks[1])
		loop("rows", func(i int) { VMOVUPS_Z(Mem{Base: src, Disp: w * i}, ks[i], v[i]) })
		return
	}
	CMPQ(n, imm(vectors*s.width))
	JL(LabelRef("part"))
	loop("rows", func(i int) { VMOVUPS(Mem{Base: src, Disp: w * i}, v[i]) })
	Label("part")
	t := GP64()
	masks := s.vecs(vectors)
	LEAQ(tailMasks(), t)
	NEGQ(n)
	for i, m := range masks {
		VMOVUPS(Mem{Base: t, Index: n, Scale: 4, Disp: 4*lanes + w*i}, m)
	}
	loop("partrows", func(i int) { VMASKMOVPS(Mem{Base: src, Disp: w * i}, masks[i], v[i]) })
}

// packTransposed writes a function that transposes one vector's worth of rows, ld bytes
// apart and k elements long, into k rows of a panel two vectors wide. It
// writes whole squares: up to width-1 rows past the k-th are overwritten.
func (s *isa) packTransposed() {
	TEXT("packTransposed"+s.suffix, NOSPLIT, "func(k int, src *float32, ld int, dst *float32)")
	Pragma("noescape")
	k := Load(Param("k"), GP64())
	src := Load(Param("src"), GP64())
	ld := Load(Param("ld"), GP64())
	dst := Load(Param("dst"), GP64())
	ld3 := GP64()
	LEAQ(Mem{Base: ld, Index: ld, Scale: 2}, ld3)
	base := []Register{src}
	for r := 4; r < s.width; r += 4 {
		p := GP64()
		LEAQ(Mem{Base: base[len(base)-1], Index: ld, Scale: 4}, p)
		base = append(base, p)
	}
	row := func(r int) Mem {
		m := Mem{Base: base[r/4]}
		switch r % 4 {
		case 1, 2:
			m.Index, m.Scale = ld, uint8(r%4)
		case 3:
			m.Index, m.Scale = ld3, 1
		}
		return m
	}
	square := func(load func(r int, v VecVirtual)) {
		v := s.vecs(s.width)
		for r := range v {
			load(r, v[r])
		}
		v = s.transpose(v)
		for r := range v {
			VMOVUPS(v[r], Mem{Base: dst, Disp: 2 * s.bytes() * r})
		}
	}
	SUBQ(imm(s.width), k)
	JL(LabelRef("rest"))
	Label("squares")
	square(func(r int, v VecVirtual) { VMOVUPS(row(r), v) })
	for _, p := range base {
		ADDQ(imm(s.bytes()), p)
	}
	ADDQ(imm(2*s.bytes()*s.width), dst)
	SUBQ(imm(s.width), k)
	JGE(LabelRef("squares"))
	Label("rest")
	ADDQ(imm(s.width), k)
	JZ(LabelRef("done"))
	if s.wide {
		m := GP64()
		k1 := K()
		MOVQ(I32(-1), m)
		BZHIQ(k, m, m)
		KMOVW(m.As32(), k1)
		square(func(r int, v VecVirtual) { VMOVUPS_Z(row(r), k1, v) })
	} else {
		// The eight rows fill half the registers; the mask takes one more.
		t, mask := GP64(), s.vec()
		LEAQ(tailMasks(), t)
		NEGQ(k)
		VMOVUPS(Mem{Base: t, Index: k, Scale: 4, Disp: 128}, mask)
		square(func(r int, v VecVirtual) { VMASKMOVPS(row(r), mask, v) })
	}
	Label("done")
	VZEROUPPER()
	RET()
}

// transpose returns registers holding the transpose of a square.
func (s *isa) transpose(v []VecVirtual) []VecVirtual {
	n := len(v)
	next := func(f func(t []VecVirtual)) {
		t := s.vecs(n)
		f(t)
		v = t
	}
	// Pairs, then fours, within each 128-bit quarter (half).
	next(func(t []VecVirtual) {
		for i := 0; i < n; i += 2 {
			VUNPCKLPS(v[i+1], v[i], t[i])
			VUNPCKHPS(v[i+1], v[i], t[i+1])
		}
	})
	next(func(t []VecVirtual) {
		for i := 0; i < n; i += 4 {
			VUNPCKLPD(v[i+2], v[i], t[i])
			VUNPCKHPD(v[i+2], v[i], t[i+1])
			VUNPCKLPD(v[i+3], v[i+1], t[i+2])
			VUNPCKHPD(v[i+3], v[i+1], t[i+3])
		}
	})
	// v[4q+c] now holds columns c, 4+c, … of rows 4q…4q+3, one per quarter.
	if !s.wide {
		next(func(t []VecVirtual) {
			for c := range 4 {
				VPERM2F128(Imm(0x20), v[4+c], v[c], t[c])
				VPERM2F128(Imm(0x31), v[4+c], v[c], t[4+c])
			}
		})
		return v
	}
	next(func(t []VecVirtual) {
		for c := range 4 {
			VSHUFF32X4(Imm(0x88), v[4+c], v[c], t[c])      // quarters 0, 2 of rows 0-3, 4-7
			VSHUFF32X4(Imm(0xdd), v[4+c], v[c], t[4+c])    // quarters 1, 3
			VSHUFF32X4(Imm(0x88), v[12+c], v[8+c], t[8+c]) // the same of rows 8-11, 12-15
			VSHUFF32X4(Imm(0xdd), v[12+c], v[8+c], t[12+c])
		}
	})
	next(func(t []VecVirtual) {
		for c := range 4 {
			VSHUFF32X4(Imm(0x88), v[8+c], v[c], t[c])
			VSHUFF32X4(Imm(0x88), v[12+c], v[4+c], t[4+c])
			VSHUFF32X4(Imm(0xdd), v[8+c], v[c], t[8+c])
			VSHUFF32X4(Imm(0xdd), v[12+c], v[4+c], t[12+c])
		}
	})
	return v
}

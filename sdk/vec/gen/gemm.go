package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// tileRows is the height of the largest tile: with two vectors of columns its
// accumulators leave registers for two vectors of B and two broadcasts of A.
func (s *isa) tileRows() int {
	if s.wide {
		return 14
	}
	return 6
}

const (
	unroll = 4  // steps of k per turn of the innermost loop
	ahead  = 12 // steps of k between prefetching B and using it
)

// gemmTile writes a function that multiplies mr rows of A by n columns of B,
// two vectors of columns at a time: the innermost two loops of a product.
//
// A is read by broadcasts, at a + row·lda + step·4 bytes, or with byK at
// a + step·lda + row·4 (A stored transposed, or packed so). Panel p of B is at
// b + p·bpanel, its step k at k·ldb. C is loaded first if load is not 0, so that
// chains continue over blocks of k.
//
// What the caller will read next is fetched meanwhile, a line or two for each turn
// of the loop: of two rows of A from pf on, two further rows for each panel of B; or with
// byK the line at pf, which moves by pfstep bytes.
//
// With bias, which has one element a column, it is added to every row once its chain is done.
//
// AVX-512 masks the columns past n, of B in a loop of its own: a load under a mask takes
// a slot of the multiply-adds' ports, two of them 7% of a tile of 14 rows. AVX2 reads whole
// panels of B, which must be there, and masks C only.
//
// With pairs, what stands for an element of A and of B is a pair of bfloat16, neighbours in k, and panels of B are
// whole there too.
func (s *isa) gemmTile(mr int, byK, pairs bool) {
	form := "Rows"
	if byK {
		form = "Steps"
	}
	masksB := s.wide && !pairs
	name, acc, b0, b1, av := "gemmTile", asRegisters(s.vecs(2*mr)), Register(s.vec()), Register(s.vec()), asRegisters(s.vecs(2))
	if pairs { // written as bytes, so registers are not avo's to choose
		name, acc, b0, b1, av = "pairTile", wideRegisters[:2*mr], wideRegisters[28], wideRegisters[29], wideRegisters[30:]
	}
	TEXT(fmt.Sprintf("%s%s%d%s", name, form, mr, s.suffix), NOSPLIT,
		"func(k int, a *float32, lda int, b *float32, ldb, bpanel int, c *float32, ldc, n, load int, pf *float32, pfstep int, bias *float32)")
	Pragma("noescape")
	lda := Load(Param("lda"), GP64())
	ldb := Load(Param("ldb"), GP64())
	c := Load(Param("c"), GP64())
	n := address("n")
	w := s.bytes()
	var k1, k2 Register
	if s.wide {
		k1, k2 = K(), K()
	}

	Label("panel")
	if s.wide {
		m := GP64()
		MOVQ(I32(-1), m)
		width := Load(Param("n"), GP64())
		CMPQ(width, imm(2*s.width))
		JGE(LabelRef("whole"))
		BZHIQ(width, m, m)
		Label("whole")
		KMOVW(m.As32(), k1)
		SHRQ(Imm(uint64(s.width)), m)
		KMOVW(m.As32(), k2)
	}
	s.loadC(mr, acc, b0, b1, c, n, k1, k2)

	k := Load(Param("k"), GP64())
	pb := Load(Param("b"), GP64())
	next := Load(Param("pf"), GP64())
	// A pointer for every third row: an address has a base and a scaled index.
	base := []Register{Load(Param("a"), GP64())}
	if !byK {
		for r := 3; r < mr; r += 3 {
			p := GP64()
			LEAQ(Mem{Base: base[len(base)-1], Index: lda, Scale: 2}, p)
			ADDQ(lda, p)
			base = append(base, p)
		}
	}
	step := func(u int, masked bool) {
		for i, v := range []Register{b0, b1} {
			m := Mem{Base: pb, Disp: w * i}
			if masked {
				VMOVUPS_Z(m, []Register{k1, k2}[i], v)
			} else {
				VMOVUPS(m, v)
			}
		}
		// A packed panel of B streams from the second-level cache.
		for line := 0; line < 2*w; line += 64 {
			PREFETCHT0(Mem{Base: pb, Disp: 2*w*ahead + line})
		}
		for r := range mr {
			m := Mem{Base: base[0], Disp: 4 * r}
			if !byK {
				m = Mem{Base: base[r/3], Disp: 4 * u}
				if r%3 != 0 {
					m.Index, m.Scale = lda, uint8(r%3)
				}
			}
			x := av[r%2]
			VBROADCASTSS(m, x)
			if pairs {
				dotPairs(b0, x, acc[2*r])
				dotPairs(b1, x, acc[2*r+1])
				continue
			}
			VFMADD231PS(b0, x, acc[2*r])
			VFMADD231PS(b1, x, acc[2*r+1])
		}
		ADDQ(ldb, pb)
		if byK {
			ADDQ(lda, base[0])
		}
	}
	advance := func(n int) {
		if byK {
			return
		}
		for _, p := range base {
			ADDQ(imm(4*n), p)
		}
	}
	if masksB {
		CMPQ(n, imm(2*s.width))
		JL(LabelRef("part"))
	}
	// Lines of C are fetched a few steps apart: all of them at once, where they come from memory, would take
	// every buffer that the lines of B need.
	pc := GP64()
	last := AllocLocal(8)
	{
		t := GP64()
		ld := Load(Param("ldc"), GP64())
		MOVQ(c, pc)
		load := Load(Param("load"), GP64())
		TESTQ(load, load)
		JZ(LabelRef("fetch"))
		ADDQ(imm(2*w), pc) // the next tile's: this one is loaded already
		Label("fetch")
		IMUL3Q(imm(mr-1), ld, t)
		ADDQ(pc, t)
		MOVQ(t, last)
	}
	SUBQ(imm(unroll), k)
	JL(LabelRef("rest"))
	Label("steps")
	if byK {
		PREFETCHT1(Mem{Base: next})
		ADDQ(address("pfstep"), next)
	} else {
		PREFETCHT1(Mem{Base: next})
		PREFETCHT1(Mem{Base: next, Index: lda, Scale: 1})
		ADDQ(imm(4*unroll), next)
	}
	for u := range unroll {
		if u == 0 || u == unroll/2 && 2*w > 64 {
			PREFETCHT0(Mem{Base: pc, Disp: 32 * u})
		}
		step(u, false)
	}
	{
		t := GP64()
		MOVQ(pc, t)
		ADDQ(address("ldc"), t)
		CMPQ(t, last)
		CMOVQLE(t, pc)
	}
	advance(unroll)
	SUBQ(imm(unroll), k)
	JGE(LabelRef("steps"))
	Label("rest")
	ADDQ(imm(unroll), k)
	JZ(LabelRef("done"))
	Label("single")
	step(0, false)
	advance(1)
	DECQ(k)
	JNZ(LabelRef("single"))
	Label("done")

	s.addBias(acc, b0, b1, av, n, k1, k2)
	s.storeC(mr, acc, b0, b1, c, n, k1, k2)
	if byK {
		MOVQ(next, address("pf"))
	} else {
		LEAQ(Mem{Base: lda, Index: lda, Scale: 1}, next)
		ADDQ(next, address("pf"))
	}
	far := Load(Param("bpanel"), GP64())
	ADDQ(far, address("b"))
	ADDQ(imm(2*w), c)
	SUBQ(imm(2*s.width), n)
	JG(LabelRef("panel"))
	VZEROUPPER()
	RET()

	if masksB { // the last panel, where it is narrower
		Label("part")
		step(0, true)
		advance(1)
		DECQ(k)
		JNZ(LabelRef("part"))
		JMP(LabelRef("done"))
	}
}

// loadC begins the chains, at zero or at C.
func (s *isa) loadC(mr int, acc []Register, m0, m1 Register, c Register, n Op, k1, k2 Register) {
	p := GP64()
	MOVQ(c, p)
	ld := Load(Param("ldc"), GP64())
	load := Load(Param("load"), GP64())
	TESTQ(load, load)
	JNZ(LabelRef("load"))
	for r := range mr {
		s.zero(acc[2*r])
		s.zero(acc[2*r+1])
	}
	JMP(LabelRef("loaded"))
	Label("load")
	s.eachC(mr, p, ld, "load", m0, m1, n, func(r, i int, m Mem, mask Register) {
		switch v := acc[2*r+i]; {
		case s.wide:
			VMOVUPS_Z(m, []Register{k1, k2}[i], v)
		case mask != nil:
			VMASKMOVPS(m, mask, v)
		default:
			VMOVUPS(m, v)
		}
	})
	Label("loaded")
}

// addBias adds the bias of the tile's columns, if there is one.
func (s *isa) addBias(acc []Register, b0, b1 Register, masks []Register, n Op, k1, k2 Register) {
	p := Load(Param("bias"), GP64())
	TESTQ(p, p)
	JZ(LabelRef("unbiased"))
	m0, m1 := Mem{Base: p}, Mem{Base: p, Disp: s.bytes()}
	if s.wide {
		VMOVUPS_Z(m0, k1, b0)
		VMOVUPS_Z(m1, k2, b1)
	} else {
		CMPQ(n, imm(2*s.width))
		JL(LabelRef("partbias"))
		VMOVUPS(m0, b0)
		VMOVUPS(m1, b1)
		JMP(LabelRef("bias"))
		Label("partbias")
		s.masks(n, masks[0], masks[1])
		VMASKMOVPS(m0, masks[0], b0)
		VMASKMOVPS(m1, masks[1], b1)
		Label("bias")
	}
	for i, v := range acc {
		VADDPS([]Register{b0, b1}[i%2], v, v)
	}
	ADDQ(imm(2*s.bytes()), address("bias"))
	Label("unbiased")
}

// masks makes the AVX2 masks of the last n columns of a panel.
func (s *isa) masks(n Op, m0, m1 Register) {
	t, q := GP64(), GP64()
	LEAQ(tailMasks(), t)
	MOVQ(n, q)
	NEGQ(q)
	VMOVUPS(Mem{Base: t, Index: q, Scale: 4, Disp: 128}, m0)
	VMOVUPS(Mem{Base: t, Index: q, Scale: 4, Disp: 160}, m1)
}

// storeC writes the tile.
func (s *isa) storeC(mr int, acc []Register, m0, m1 Register, c Register, n Op, k1, k2 Register) {
	p := GP64()
	MOVQ(c, p)
	ld := Load(Param("ldc"), GP64())
	s.eachC(mr, p, ld, "store", m0, m1, n, func(r, i int, m Mem, mask Register) {
		switch v := acc[2*r+i]; {
		case s.wide:
			VMOVUPS(v, []Register{k1, k2}[i], m)
		case mask != nil:
			VMASKMOVPS(v, mask, m)
		default:
			VMOVUPS(v, m)
		}
	})
}

// eachC calls f for the two vectors of every row of C, on AVX2 once for whole
// panels and once, with masks, for the last.
func (s *isa) eachC(mr int, p, ld Register, label string, m0, m1 Register, n Op, f func(r, i int, m Mem, mask Register)) {
	rows := func(masks [2]Register) {
		for r := range mr {
			for i := range 2 {
				f(r, i, Mem{Base: p, Disp: s.bytes() * i}, masks[i])
			}
			if r < mr-1 {
				ADDQ(ld, p)
			}
		}
	}
	if s.wide {
		rows([2]Register{})
		return
	}
	CMPQ(n, imm(2*s.width))
	JL(LabelRef(label + "part"))
	rows([2]Register{})
	JMP(LabelRef(label + "end"))
	Label(label + "part")
	s.masks(n, m0, m1)
	rows([2]Register{m0, m1})
	Label(label + "end")
}

func (s *isa) gemm() {
	for mr := 1; mr <= s.tileRows(); mr++ {
		s.gemmTile(mr, false, false)
	}
	for mr := 1; mr <= s.tileRows(); mr++ {
		s.gemmTile(mr, true, false)
	}
	s.packColumns("packColumns", 2)
	s.packColumns("packSteps", 1)
	s.packTransposed()
}

package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// dropout writes Philox4x32-10 on a vector of counters at a time, and the
// multiplication masked by its words.
//
// A counter's four words lie in four vectors, each word in the low half of a
// 64-bit element, where the widening multiplication wants it; what is in the
// high halves does not matter. At the end the words are interleaved into the
// order of elements: two 64-bit unpackings do that if counters are dealt to
// elements as in the table below.
//
// It takes a multiple of 32 elements, beginning at a counter's first word; the
// low half of the counter must not overflow.
func (s *isa) dropout() {
	order := s.philoxOrder()
	TEXT("dropout"+s.suffix, NOSPLIT, "func(dst, x []float32, ctr *[4]uint32, keys *[20]uint32, threshold uint32, scale float32)")
	Pragma("noescape")
	dst := Load(Param("dst").Base(), GP64())
	x := Load(Param("x").Base(), GP64())
	left := Load(Param("dst").Len(), GP64())
	ctr := Load(Param("ctr"), GP64())
	keys := Load(Param("keys"), GP64())
	lo := GP64()
	MOVL(Mem{Base: ctr}, lo.As32())
	loop := func(vectors int) {
		elements := 2 * s.width * vectors
		label, end := fmt.Sprintf("by%d", elements), fmt.Sprintf("end%d", elements)
		SUBQ(imm(elements), left)
		JL(LabelRef(end))
		Label(label)
		s.dropoutGroup(vectors, order, dst, x, ctr, keys, lo)
		ADDQ(imm(4*elements), dst)
		ADDQ(imm(4*elements), x)
		SUBQ(imm(elements), left)
		JGE(LabelRef(label))
		Label(end)
		ADDQ(imm(elements), left)
	}
	if s.wide {
		loop(4)
		loop(1)
	} else {
		loop(2)
	}
	VZEROUPPER()
	RET()
}

// philoxOrder is the table by which counters are dealt to elements.
func (s *isa) philoxOrder() Mem {
	if m, ok := philoxOrders[s.suffix]; ok {
		return m
	}
	m := GLOBL("philox_order_"+s.suffix, RODATA|NOPTR)
	counters := s.width / 2
	for i := range counters {
		DATA(8*i, U64(uint64(i/2+i%2*counters/2)))
	}
	philoxOrders[s.suffix] = m
	return m
}

var philoxOrders = map[string]Mem{}

func (s *isa) dropoutGroup(vectors int, order Mem, dst, x, ctr, keys Register, lo GPVirtual) {
	w := s.philox(vectors, order, ctr, keys, lo)
	threshold, scale := s.vec(), s.vec()
	VBROADCASTSS(address("threshold"), threshold)
	VBROADCASTSS(address("scale"), scale)
	for i, a := range w {
		even, odd := s.interleave(a)
		for j, words := range []VecVirtual{even, odd} {
			disp := s.bytes() * (2*i + j)
			v := s.vec()
			if s.wide {
				k := K()
				VPCMPUD(Imm(5), threshold, words, k) // not less than
				VMULPS_Z(Mem{Base: x, Disp: disp}, scale, k, v)
			} else {
				keep := s.vec()
				VPMAXUD(threshold, words, keep)
				VPCMPEQD(words, keep, keep)
				VMULPS(Mem{Base: x, Disp: disp}, scale, v)
				VANDPS(keep, v, v)
			}
			VMOVUPS(v, Mem{Base: dst, Disp: disp})
		}
	}
}

// philox makes the words of so many vectors of counters from lo on, and moves lo behind them.
func (s *isa) philox(vectors int, order Mem, ctr, keys Register, lo GPVirtual) [][4]VecVirtual {
	word := func(p Register, i int) VecVirtual {
		v := s.vec()
		VPBROADCASTD(Mem{Base: p, Disp: 4 * i}, v)
		return v
	}
	w := make([][4]VecVirtual, vectors)
	for i := range w {
		low := s.vec()
		if s.wide {
			VPBROADCASTQ(lo, low)
		} else {
			first := XMM()
			VMOVQ(lo, first)
			VPBROADCASTQ(first, low)
		}
		w[i][0] = s.vec()
		VPADDQ(order, low, w[i][0])
		ADDQ(imm(s.width/2), lo)
		for j := 1; j < 4; j++ {
			w[i][j] = word(ctr, j)
		}
	}
	for round := range 10 {
		k0, k1 := word(keys, 2*round), word(keys, 2*round+1)
		for i, a := range w {
			p0, p1, h0, h1 := s.vec(), s.vec(), s.vec(), s.vec()
			VPMULUDQ(bits(0xd2511f53), a[0], p0)
			VPMULUDQ(bits(0xcd9e8d57), a[2], p1)
			VPSRLQ(Imm(32), p0, h0)
			VPSRLQ(Imm(32), p1, h1)
			w[i] = [4]VecVirtual{s.xor3(h1, a[1], k0), p1, s.xor3(h0, a[3], k1), p0}
		}
	}
	return w
}

// interleave puts the words of a vector of counters into the order of elements.
func (s *isa) interleave(a [4]VecVirtual) (even, odd VecVirtual) {
	ab, cd := s.pair(a[0], a[1]), s.pair(a[2], a[3])
	even, odd = s.vec(), s.vec()
	VPUNPCKLQDQ(cd, ab, even)
	VPUNPCKHQDQ(cd, ab, odd)
	return even, odd
}

func (s *isa) xor3(a, b, c VecVirtual) VecVirtual {
	if s.wide {
		VPTERNLOGD(Imm(0x96), b, c, a)
		return a
	}
	VPXOR(b, a, a)
	VPXOR(c, a, a)
	return a
}

// pair puts the low halves of b's elements into the high halves of a's.
func (s *isa) pair(a, b VecVirtual) VecVirtual {
	d := s.vec()
	VPSLLQ(Imm(32), b, b)
	if s.wide {
		m, k := GP32(), K()
		MOVL(U32(0xaaaa), m)
		KMOVW(m, k)
		VPBLENDMD(b, a, k, d)
	} else {
		VPBLENDD(Imm(0xaa), b, a, d)
	}
	return d
}

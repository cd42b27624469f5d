package main

import (
	"fmt"
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// draw writes a function that fills dst with random numbers from the words of Philox4x32-10, computed in float64 by the
// operations of package vec's draw.go in the same order and rounded once. Like dropout it takes a multiple of 32 elements.
func (s *isa) draw(name, params string, number func(words VecVirtual) VecVirtual) {
	order := s.philoxOrder()
	TEXT("draw"+name+s.suffix, NOSPLIT, "func(dst []float32, ctr *[4]uint32, keys *[20]uint32, "+params+")")
	Pragma("noescape")
	dst := Load(Param("dst").Base(), GP64())
	left := Load(Param("dst").Len(), GP64())
	ctr := Load(Param("ctr"), GP64())
	keys := Load(Param("keys"), GP64())
	lo := GP64()
	MOVL(Mem{Base: ctr}, lo.As32())
	const elements = 32
	SUBQ(imm(elements), left)
	JL(LabelRef("end"))
	Label("loop")
	vectors := elements / (2 * s.width)
	w := s.philox(vectors, order, ctr, keys, lo)
	var words []VecVirtual
	for _, a := range w {
		even, odd := s.interleave(a)
		words = append(words, even, odd)
	}
	for i, v := range words {
		for half := range 2 {
			part := VecVirtual(XMM())
			if s.wide {
				part = YMM()
				VEXTRACTI64X4(Imm(uint64(half)), v, part)
			} else {
				VEXTRACTI128(Imm(uint64(half)), v, part)
			}
			d := s.vec()
			VPMOVZXDQ(part, d)
			at := Mem{Base: dst, Disp: s.bytes()*i + s.bytes()/2*half}
			VMOVUPS(s.single(number(s.fromWord(d))), at)
		}
	}
	ADDQ(imm(4*elements), dst)
	SUBQ(imm(elements), left)
	JGE(LabelRef("loop"))
	Label("end")
	VZEROUPPER()
	RET()
}

// fromWord makes float64 of integers below 2^32 in the elements: exact.
func (s *isa) fromWord(d VecVirtual) VecVirtual {
	return s.dsub(s.dor(d, s.loadD(f64(0x1p52))), f64(0x1p52))
}

// single rounds a vector of float64 to half a vector of float32.
func (s *isa) single(d VecVirtual) VecVirtual {
	v := VecVirtual(XMM())
	if s.wide {
		v = YMM()
		VCVTPD2PS(d, v)
	} else {
		VCVTPD2PSY(d, v)
	}
	return v
}

// uniform is add + scale·w/2^32, but for the last step, which the caller's limit needs in float32.
func (s *isa) uniform(w VecVirtual) VecVirtual {
	t := s.dmul(s.param("scale"), s.dmul(w, f64(0x1p-32)))
	return s.limited(s.dadd(s.param("add"), t))
}

// limited makes the least of the rounded value and limit, in float64: both are float32 values, and are so again when rounded.
func (s *isa) limited(d VecVirtual) VecVirtual {
	v := s.single(d)
	limit := VecVirtual(XMM())
	if s.wide {
		limit = YMM()
	}
	VBROADCASTSS(address("limit"), limit)
	VMINPS(v, limit, v)
	out := s.vec()
	VCVTPS2PD(v, out)
	return out
}

// normal is mean + std · the quantile of the normal distribution at (w+1/2)/2^32.
func (s *isa) normal(w VecVirtual) VecVirtual {
	q := s.dsub(s.dmul(s.dadd(w, f64(0.5)), f64(0x1p-32)), f64(0.5))
	a := s.vec()
	VANDPD(bits64(1<<63-1), q, a)
	r := s.dsub(s.loadD(f64(0.180625)), s.dmul(q, q))
	num := s.dmul(q, s.cubic(r, 3.3871327179e+00, 5.0434271938e+01, 1.5929113202e+02, 5.9109374720e+01))
	den := s.cubic(r, 1, 1.7895169469e+01, 7.8757757664e+01, 6.7187563600e+01)
	far := s.dcmp(gt, a, f64(0.425))
	done := fmt.Sprintf("near%d", labels)
	labels++
	s.jumpIfNone(far, done)
	{
		r := s.dsqrt(s.dlogNeg(s.dsub(s.loadD(f64(0.5)), a)))
		r = s.dsub(r, f64(1.6))
		tail := s.cubic(r, 1.4234372777e+00, 2.7568153900e+00, 1.3067284816e+00, 1.7023821103e-01)
		below := s.cubic(r, 1, 7.3700164250e-01, 1.2021132975e-01)
		sign := s.vec()
		VANDPD(bits64(1<<63), q, sign)
		s.dchooseInto(far, s.dor(tail, sign), num)
		s.dchooseInto(far, below, den)
	}
	Label(done)
	return s.dadd(s.param("mean"), s.dmul(s.ddiv(num, den), s.param("std")))
}

var labels int

// dlogNeg is -log(x) of positive normal numbers.
func (s *isa) dlogNeg(x VecVirtual) VecVirtual {
	e, f := s.vec(), s.vec()
	VPSRLQ(Imm(52), x, e)
	k := s.dsub(s.dor(e, s.loadD(f64(0x1p52))), f64(0x1p52+1022))
	VANDPD(bits64(1<<52-1), x, f)
	f = s.dor(f, s.loadD(f64(0.5)))
	low := s.dcmp(lt, f, f64(math.Sqrt2/2))
	s.dchooseInto(low, s.dsub(k, f64(1)), k)
	s.dchooseInto(low, s.dadd(f, f), f)
	d := s.dsub(f, f64(1))
	q := s.ddiv(d, s.dadd(s.loadD(f64(2)), d))
	z := s.dmul(q, q)
	p := s.loadD(f64(1.0 / 25))
	for i := 10; i >= 0; i-- {
		p = s.dadd(s.dmul(p, z), f64(1/float64(2*i+3)))
	}
	r := s.dmul(s.dadd(z, z), p)
	h := s.dmul(s.dmul(d, f64(0.5)), d)
	t := s.dmul(q, s.dadd(h, r))
	y := s.dsub(s.dsub(h, s.dadd(t, s.dmul(k, f64(1.90821492927058770002e-10)))), d)
	return s.dsub(y, s.dmul(k, f64(6.93147180369123816490e-01))) // the negative of log's last difference: same bits but for the sign
}

// cubic is the polynomial with coefficients cs, lowest first, each step rounded.
func (s *isa) cubic(r VecVirtual, cs ...float64) VecVirtual {
	p := s.loadD(f64(cs[len(cs)-1]))
	for i := len(cs) - 2; i >= 0; i-- {
		p = s.dadd(s.dmul(p, r), f64(cs[i]))
	}
	return p
}

// param is a float64 parameter in every element.
func (s *isa) param(name string) VecVirtual {
	d := s.vec()
	VBROADCASTSD(address(name), d)
	return d
}

// The operations of float64, in the order of their mathematical arguments.

func (s *isa) dadd(a VecVirtual, b Op) VecVirtual { d := s.vec(); VADDPD(b, a, d); return d }
func (s *isa) dsub(a VecVirtual, b Op) VecVirtual { d := s.vec(); VSUBPD(b, a, d); return d }
func (s *isa) dmul(a VecVirtual, b Op) VecVirtual { d := s.vec(); VMULPD(b, a, d); return d }
func (s *isa) ddiv(a VecVirtual, b Op) VecVirtual { d := s.vec(); VDIVPD(b, a, d); return d }
func (s *isa) dsqrt(a Op) VecVirtual              { d := s.vec(); VSQRTPD(a, d); return d }
func (s *isa) dor(a VecVirtual, b Op) VecVirtual  { d := s.vec(); VORPD(b, a, d); return d }
func (s *isa) loadD(m Mem) VecVirtual             { d := s.vec(); VMOVUPD(m, d); return d }

const gt = 0x1e // not raising, false for NaN

func (s *isa) dcmp(pred uint64, a VecVirtual, b Op) mask {
	if s.wide {
		k := K()
		VCMPPD(Imm(pred), b, a, k)
		return mask{k: k}
	}
	d := s.vec()
	VCMPPD(Imm(pred), b, a, d)
	return mask{v: d}
}

// dchooseInto sets to to yes where m holds.
func (s *isa) dchooseInto(m mask, yes, to VecVirtual) {
	if s.wide {
		VBLENDMPD(yes, to, m.k, to)
	} else {
		VBLENDVPD(m.v, yes, to, to)
	}
}

// jumpIfNone jumps where m holds nowhere.
func (s *isa) jumpIfNone(m mask, label string) {
	g := GP32()
	if s.wide {
		KMOVW(m.k, g)
	} else {
		VMOVMSKPD(m.v, g)
	}
	TESTL(g, g)
	JZ(LabelRef(label))
}

var doubles = map[uint64]Mem{}

// bits64 is bits of 64-bit elements.
func bits64(u uint64) Mem {
	m, ok := doubles[u]
	if !ok {
		m = GLOBL(fmt.Sprintf("const_%016x", u), RODATA|NOPTR)
		for i := range 8 {
			DATA(8*i, U64(u))
		}
		doubles[u] = m
	}
	return m
}

func f64(v float64) Mem { return bits64(math.Float64bits(v)) }

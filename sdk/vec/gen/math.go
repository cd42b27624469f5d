package main

import (
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/reg"
)

// The functions below make the operations of package vec's math.go, in the same
// order. Constants are written out again rather than shared, so that this
// program depends on nothing; the tests compare the bits.

const signBit = 1 << 31

func (s *isa) exp(x VecVirtual) VecVirtual {
	x = s.larger(s.load(f32(-104)), x)
	x = s.smaller(s.load(f32(89)), x)
	const magic = 0x1.8p23
	t := s.add(s.mul(x, f32(math.Log2E)), f32(magic))
	n := s.sub(t, f32(magic))
	r := s.subMul(s.subMul(x, n, f32(0.693359375)), n, f32(-2.12194440e-4))
	p := s.poly(r, 1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
	p = s.add(s.mulAdd(p, s.mul(r, r), r), f32(1))
	if s.wide {
		d := s.vec()
		VSCALEFPS(n, p, d)
		return d
	}
	k := s.isub(t, bits(math.Float32bits(magic)))
	h := s.sar(k, 1)
	k = s.isub(k, h)
	p = s.mul(p, s.shl(s.iadd(h, bits(127)), 23))
	return s.mul(p, s.shl(s.iadd(k, bits(127)), 23))
}

func (s *isa) log(x VecVirtual) VecVirtual {
	low := s.cmp(lt, x, f32(0x1p-126))
	bias := s.choose(low, f32(127+23), s.load(f32(127)))
	u := s.choose(low, s.mul(x, f32(0x1p23)), x)
	const sqrtHalf = 0x3f3504f3
	u = s.iadd(u, bits(0x3f800000-sqrtHalf))
	k := s.vec()
	VCVTDQ2PS(s.shr(u, 23), k)
	k = s.sub(k, bias)
	f := s.sub(s.iadd(s.iand(u, bits(0x7fffff)), bits(sqrtHalf)), f32(1))
	y := s.div(f, s.add(f, f32(2)))
	z := s.mul(y, y)
	w := s.mul(z, z)
	t1 := s.mul(w, s.poly(w, 0xf89e26.0p-26, 0xccce13.0p-25))
	t2 := s.mul(z, s.poly(w, 0x91e9ee.0p-25, 0xaaaaaa.0p-24))
	h := s.mul(s.mul(f, f32(0.5)), f)
	y = s.mul(y, s.add(s.add(t1, t2), h))
	y = s.addMul(y, k, f32(9.0580006145e-06))
	y = s.addMul(s.add(s.sub(y, h), f), k, f32(6.9313812256e-01))
	y = s.choose(s.cmp(lt, x, f32(0)), f32(math.NaN()), y)
	y = s.choose(s.cmp(eq, x, f32(0)), f32(math.Inf(-1)), y)
	return s.choose(s.cmp(notLE, x, f32(math.MaxFloat32)), x, y)
}

func (s *isa) abs(x VecVirtual) VecVirtual { return s.and(x, bits(^uint32(signBit))) }

// negAbs is -|x|.
func (s *isa) negAbs(x VecVirtual) VecVirtual { return s.or(x, bits(signBit)) }

func (s *isa) tanh(x VecVirtual) VecVirtual {
	a := s.abs(x)
	z := s.mul(a, a)
	p := s.poly(z, -5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1)
	p = s.mulAdd(s.mul(p, z), a, a)
	e := s.add(s.exp(s.add(a, a)), f32(1))
	y := s.sub(s.load(f32(1)), s.div(s.load(f32(2)), e))
	y = s.choose(s.cmp(lt, a, f32(0.625)), p, y)
	return s.or(y, s.and(x, bits(signBit)))
}

func (s *isa) sigmoid(x VecVirtual) VecVirtual {
	e := s.exp(s.negAbs(x))
	n := s.choose(s.negative(x), e, s.load(f32(1)))
	return s.div(n, s.add(e, f32(1)))
}

// sigmoidParts is the sigmoid of x and its slope.
func (s *isa) sigmoidParts(x VecVirtual) (y, slope VecVirtual) {
	e := s.exp(s.negAbs(x))
	r := s.div(s.load(f32(1)), s.add(e, f32(1)))
	q := s.mul(e, r)
	return s.choose(s.negative(x), q, r), s.mul(r, q)
}

const gateMax = 200

func (s *isa) clampLo(x VecVirtual) VecVirtual { return s.larger(s.load(f32(-gateMax)), x) }

func (s *isa) clampBoth(x VecVirtual) VecVirtual {
	return s.smaller(s.load(f32(gateMax)), s.clampLo(x))
}

func (s *isa) silu(x VecVirtual) VecVirtual {
	x = s.clampLo(x)
	return s.mul(x, s.sigmoid(x))
}

func (s *isa) siluSlope(x VecVirtual) VecVirtual {
	x = s.clampBoth(x)
	y, d := s.sigmoidParts(x)
	return s.addMul(y, x, d)
}

const (
	geluC1 = 1.5957691216057308
	geluC2 = 0.07135481282553185
)

func (s *isa) gelu(x VecVirtual) VecVirtual {
	x = s.clampLo(x)
	v := s.mul(x, s.poly(s.mul(x, x), geluC2, geluC1))
	return s.mul(x, s.sigmoid(v))
}

func (s *isa) geluSlope(x VecVirtual) VecVirtual {
	x = s.clampBoth(x)
	q := s.mul(x, x)
	v := s.mul(x, s.poly(q, geluC2, geluC1))
	y, d := s.sigmoidParts(v)
	return s.addMul(y, s.mul(x, d), s.poly(q, 3*geluC2, geluC1))
}

func (s *isa) normalParts(x VecVirtual) (e, cdf VecVirtual) {
	a := s.smaller(s.load(f32(20)), s.abs(x))
	h := s.mul(a, a)
	d := s.load(f32(0))
	VSUBPS(h, d, d)
	d = s.addMul(d, a, a)
	e = s.exp(s.mul(h, f32(-0.5)))
	e = s.addMul(e, s.mul(e, d), f32(-0.5))
	t := s.div(s.load(f32(1)), s.poly(a, 0.3, 1))
	p := s.poly(t, -0.020962732361678345, 0.11429182063678406, -0.23259967899113465, 0.19764255497183697,
		-0.08428206915058173, 0.0987434513938916, 0.07750862386325537, 0.11041998012557441, 0.11955029574333513,
		0.11968775188825284)
	q := s.mul(e, s.mul(p, t))
	return e, s.choose(s.negative(x), q, s.sub(s.load(f32(1)), q))
}

func (s *isa) geluErf(x VecVirtual) VecVirtual {
	x = s.clampLo(x)
	_, c := s.normalParts(x)
	return s.mul(x, c)
}

func (s *isa) geluErfSlope(x VecVirtual) VecVirtual {
	x = s.clampBoth(x)
	e, c := s.normalParts(x)
	return s.addMul(c, s.mul(x, e), f32(0.3989422804014327))
}

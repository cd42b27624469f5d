package main

import (
	. "github.com/mmcloughlin/avo/reg"
)

// unary writes dst = f(x).
func (s *isa) unary(name string, unroll int, f func(x VecVirtual) VecVirtual) {
	s.each(name, unroll, func(p *pass) { p.out("dst", f(p.in("x"))) })
}

// binary writes dst = f(a, b).
func (s *isa) binary(name string, f func(a, b VecVirtual) VecVirtual) {
	s.each(name, 4, func(p *pass) { p.out("dst", f(p.in("a"), p.in("b"))) })
}

// slope writes dst = dy · f(x).
func (s *isa) slope(name, x string, f func(x VecVirtual) VecVirtual) {
	s.each(name, 1, func(p *pass) { p.out("dst", s.mul(f(p.in(x)), p.in("dy"))) })
}

func (s *isa) elementwise() {
	s.binary("add", func(a, b VecVirtual) VecVirtual { return s.add(a, b) })
	s.binary("sub", func(a, b VecVirtual) VecVirtual { return s.sub(a, b) })
	s.binary("mul", func(a, b VecVirtual) VecVirtual { return s.mul(a, b) })
	s.binary("div", func(a, b VecVirtual) VecVirtual { return s.div(a, b) })
	s.binary("maximum", s.max)
	s.binary("minimum", s.min)
	s.each("mulAddTo", 4, func(p *pass) { p.out("dst", s.addMul(p.in("dst"), p.in("a"), p.in("b"))) })

	s.each("addScalar", 4, func(p *pass) { p.out("dst", s.add(p.in("x"), p.scalar("s"))) })
	s.each("scale", 4, func(p *pass) { p.out("dst", s.mul(p.in("x"), p.scalar("s"))) })
	s.each("axpy", 4, func(p *pass) { p.out("dst", s.add(p.in("dst"), s.mul(p.in("x"), p.scalar("s")))) })

	s.unary("neg", 4, func(x VecVirtual) VecVirtual { return s.xor(x, bits(signBit)) })
	s.unary("abs", 4, s.abs)
	s.unary("sqrt", 2, func(x VecVirtual) VecVirtual { return s.sqrt(x) })
	s.unary("rsqrt", 2, func(x VecVirtual) VecVirtual { return s.div(s.load(f32(1)), s.sqrt(x)) })
	s.unary("exp", 2, s.exp)
	s.unary("log", 1, s.log)
	s.unary("tanh", 1, s.tanh)
	s.unary("sigmoid", 1, s.sigmoid)
	s.unary("relu", 4, func(x VecVirtual) VecVirtual { return s.larger(s.load(f32(0)), x) })
	s.unary("gelu", 1, s.gelu)
	s.unary("geluErf", 1, s.geluErf)
	s.unary("silu", 1, s.silu)

	s.slope("tanhGrad", "y", func(y VecVirtual) VecVirtual { return s.subMul(s.load(f32(1)), y, y) })
	s.slope("sigmoidGrad", "y", func(y VecVirtual) VecVirtual { return s.mul(y, s.sub(s.load(f32(1)), y)) })
	s.each("reluGrad", 2, func(p *pass) {
		p.out("dst", s.choose(s.cmp(le, p.in("x"), f32(0)), f32(0), p.in("dy")))
	})
	s.slope("geluGrad", "x", s.geluSlope)
	s.slope("geluErfGrad", "x", s.geluErfSlope)
	s.slope("siluGrad", "x", s.siluSlope)
}

// xhat is (x-mean)·rstd.
func (p *pass) xhat() VecVirtual {
	return p.mul(p.sub(p.in("x"), p.scalar("mean")), p.scalar("rstd"))
}

func (s *isa) rows() {
	s.total("expSum", func(p *pass) {
		e := s.exp(s.mul(s.sub(p.in("x"), p.scalar("top")), p.scalar("scale")))
		p.out("dst", e)
		p.accumulate("lanes", p.kept(e))
	})
	s.total("expShiftSum", func(p *pass) {
		e := s.exp(s.sub(s.mul(p.in("x"), p.scalar("scale")), p.scalar("top")))
		p.out("dst", e)
		p.accumulate("lanes", p.kept(e))
	})
	s.total("expTotal", func(p *pass) {
		p.accumulate("lanes", p.kept(s.exp(s.sub(p.in("x"), p.scalar("top")))))
	})
	s.each("expScale", 1, func(p *pass) {
		p.out("dst", s.mul(s.exp(s.sub(p.in("x"), p.scalar("lse"))), p.scalar("scale")))
	})
	s.each("softmaxGrad", 2, func(p *pass) {
		p.out("dst", s.mul(s.mul(p.in("y"), p.scalar("scale")), s.sub(p.in("dy"), p.scalar("dot"))))
	})
	s.each("attentionGradRow", 2, func(p *pass) {
		e := s.exp(s.sub(s.mul(p.in("p"), p.scalar("scale")), p.scalar("lse")))
		d := s.mul(s.sub(p.in("ds"), p.scalar("delta")), e)
		p.out("p", e)
		p.out("ds", s.mul(d, p.scalar("scale")))
	})
	s.each("channelNorm", 4, func(p *pass) {
		p.out("dst", s.add(s.mul(s.sub(p.in("x"), p.scalar("mean")), p.scalar("scale")), p.scalar("shift")))
	})
	s.each("channelNormGrad", 2, func(p *pass) {
		slope := s.mul(s.sub(p.in("x"), p.scalar("mean")), p.scalar("slope"))
		p.out("dst", s.mul(s.sub(s.sub(p.in("dy"), p.scalar("shift")), slope), p.scalar("scale")))
	})
	s.each("norm", 2, func(p *pass) { p.out("dst", p.xhat()) })
	s.each("normScale", 2, func(p *pass) { p.out("dst", s.mul(p.xhat(), p.in("w"))) })
	s.each("normAffine", 2, func(p *pass) { p.out("dst", s.mulAdd(p.xhat(), p.in("w"), p.in("b"))) })
	scaled := func(p *pass) VecVirtual { return s.mul(p.in("dy"), p.in("w")) }
	plain := func(p *pass) VecVirtual { return p.in("dy") }
	for _, v := range []struct {
		suffix string
		g      func(p *pass) VecVirtual
	}{{"", plain}, {"Scaled", scaled}} {
		s.fold("normGradSums"+v.suffix, []string{"s", "t"}, 0, s.plus, func(p *pass) {
			d := v.g(p)
			p.accumulate("s", d)
			s.addMul(p.acc("t"), d, p.kept(p.xhat()))
		})
		s.each("normGrad"+v.suffix, 1, func(p *pass) {
			d := s.subMul(s.sub(v.g(p), p.scalar("c1")), p.xhat(), p.scalar("c2"))
			p.out("dst", s.mul(d, p.scalar("rstd")))
		})
	}
	s.each("normGradWeight", 2, func(p *pass) { p.out("dw", s.addMul(p.in("dw"), p.in("dy"), p.xhat())) })
}

func (s *isa) optimizers() {
	const ( // as in package vec's optimizer.go
		gradScale = iota
		lerp1
		beta2
		lerp2
		invC2
		eps
		step
		decay
	)
	s.each("adamW", 1, func(p *pass) {
		h := func(i int) VecVirtual { return p.item("h", i) }
		g := s.mul(p.in("g"), h(gradScale))
		m := p.in("m")
		m = s.addMul(m, s.sub(g, m), h(lerp1))
		p.out("m", m)
		v := s.addMul(s.mul(p.in("v"), h(beta2)), s.mul(g, h(lerp2)), g)
		p.out("v", v)
		d := s.add(s.mul(s.sqrt(v), h(invC2)), h(eps))
		p.out("p", s.subMul(s.mul(p.in("p"), h(decay)), s.div(m, d), h(step)))
	})
	const (
		_ = iota
		wd
		momentum
		in
		lr
	)
	grad := func(p *pass) VecVirtual {
		return s.addMul(s.mul(p.in("g"), p.item("h", gradScale)), p.in("p"), p.item("h", wd))
	}
	s.each("sgd", 2, func(p *pass) { p.out("p", s.subMul(p.in("p"), grad(p), p.item("h", lr))) })
	buffer := func(p *pass, g VecVirtual) VecVirtual {
		b := s.addMul(s.mul(g, p.item("h", in)), p.in("buf"), p.item("h", momentum))
		p.out("buf", b)
		return b
	}
	s.each("sgdMomentum", 2, func(p *pass) {
		b := buffer(p, grad(p))
		p.out("p", s.subMul(p.in("p"), b, p.item("h", lr)))
	})
	s.each("sgdNesterov", 1, func(p *pass) {
		g := grad(p)
		b := buffer(p, g)
		g = s.addMul(g, b, p.item("h", momentum))
		p.out("p", s.subMul(p.in("p"), g, p.item("h", lr)))
	})
}

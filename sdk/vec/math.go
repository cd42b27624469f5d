package vec

import "math"

// The scalar functions below are the definition of the contract: the assembly
// performs the same operations in the same order, several elements at a time.
// Products are converted explicitly, which keeps compilers from fusing them
// with an addition that follows.

const (
	expLo    = -104 // below, exp is zero
	expHi    = 89   // above, exp is infinite
	log2e    = 1.44269504088896341
	expMagic = 0x1.8p23 // adding it rounds to an integer
	expLn2Hi = 0.693359375
	expLn2Lo = -2.12194440e-4
	expP0    = 1.9875691500e-4
	expP1    = 1.3981999507e-3
	expP2    = 8.3334519073e-3
	expP3    = 4.1665795894e-2
	expP4    = 1.6666665459e-1
	expP5    = 5.0000001201e-1
)

// exp32 is e**x to about one unit in the last place: x = n·ln 2 + r with
// |r| ≤ ln 2 / 2, Cephes' polynomial for e**r, and a scaling in two exact halves
// so that subnormal results round once.
func exp32(x float32) float32 {
	if expLo > x {
		x = expLo
	}
	if expHi < x {
		x = expHi
	}
	t := float32(x*log2e) + expMagic
	n := t - expMagic
	r := fma32(-n, expLn2Hi, x)
	r = fma32(-n, expLn2Lo, r)
	p := fma32(expP0, r, expP1)
	p = fma32(p, r, expP2)
	p = fma32(p, r, expP3)
	p = fma32(p, r, expP4)
	p = fma32(p, r, expP5)
	p = fma32(p, float32(r*r), r) + 1
	k := int32(math.Float32bits(t)) - 0x4b400000
	h := k >> 1
	p = float32(p * math.Float32frombits(uint32(h+127)<<23))
	return float32(p * math.Float32frombits(uint32(k-h+127)<<23))
}

const (
	logLn2Hi = 6.9313812256e-01
	logLn2Lo = 9.0580006145e-06
	logP1    = 0xaaaaaa.0p-24
	logP2    = 0xccce13.0p-25
	logP3    = 0x91e9ee.0p-25
	logP4    = 0xf89e26.0p-26
)

// log32 is the natural logarithm to within a unit in the last place, by the
// method of FreeBSD's logf: x = 2**k · (1+f) with 1+f in [√½, √2), and a
// polynomial in f/(2+f).
func log32(x float32) float32 {
	switch {
	case x != x || x > math.MaxFloat32:
		return x
	case x < 0:
		return float32(math.NaN())
	case x == 0:
		return float32(math.Inf(-1))
	}
	bias := int32(127)
	if x < 0x1p-126 {
		x = float32(x * 0x1p23)
		bias += 23
	}
	u := math.Float32bits(x) + (0x3f800000 - 0x3f3504f3)
	k := float32(int32(u>>23) - bias)
	f := math.Float32frombits(u&0x7fffff+0x3f3504f3) - 1
	s := f / (2 + f)
	z := float32(s * s)
	w := float32(z * z)
	t1 := float32(w * fma32(w, logP4, logP2))
	t2 := float32(z * fma32(w, logP3, logP1))
	h := float32(float32(0.5*f) * f)
	r := (t1 + t2) + h
	y := fma32(k, logLn2Lo, float32(s*r))
	return fma32(k, logLn2Hi, (y-h)+f)
}

const (
	tanhSmall = 0.625
	tanhP0    = -5.70498872745e-3
	tanhP1    = 2.06390887954e-2
	tanhP2    = -5.37397155531e-2
	tanhP3    = 1.33314422036e-1
	tanhP4    = -3.33332819422e-1
)

// tanh32 is Cephes' tanhf: an odd polynomial near zero, 1 - 2/(e**2|x| + 1)
// elsewhere.
func tanh32(x float32) float32 {
	a := abs32(x)
	var y float32
	if a < tanhSmall {
		z := float32(a * a)
		p := fma32(tanhP0, z, tanhP1)
		p = fma32(p, z, tanhP2)
		p = fma32(p, z, tanhP3)
		p = fma32(p, z, tanhP4)
		y = fma32(float32(p*z), a, a)
	} else {
		y = 1 - 2/(exp32(a+a)+1)
	}
	return math.Float32frombits(math.Float32bits(y) | math.Float32bits(x)&signBit)
}

const signBit = 1 << 31

func abs32(x float32) float32 { return math.Float32frombits(math.Float32bits(x) &^ signBit) }

func sqrt32(x float32) float32 { return float32(math.Sqrt(float64(x))) }

// sigmoid32 is 1/(1+e**-x), written so that neither tail loses precision.
func sigmoid32(x float32) float32 {
	e := exp32(-abs32(x))
	n := float32(1)
	if x < 0 {
		n = e
	}
	return n / (1 + e)
}

// sigmoidParts returns the sigmoid s of x and s·(1-s).
func sigmoidParts(x float32) (s, slope float32) {
	e := exp32(-abs32(x))
	r := 1 / (1 + e)
	q := float32(e * r)
	slope = float32(r * q)
	if x < 0 {
		return q, slope
	}
	return r, slope
}

// Arguments of the gated units are clamped to ±gateMax where the true value is
// already -0 or x (and the slope 0 or 1), so that infinities do not meet zeros.
const gateMax = 200

func clampLo(x float32) float32 {
	if -gateMax > x {
		return -gateMax
	}
	return x
}

func clampBoth(x float32) float32 {
	x = clampLo(x)
	if gateMax < x {
		return gateMax
	}
	return x
}

func silu32(x float32) float32 {
	x = clampLo(x)
	return float32(x * sigmoid32(x))
}

func siluSlope(x float32) float32 {
	x = clampBoth(x)
	s, d := sigmoidParts(x)
	return fma32(x, d, s)
}

const (
	geluC1 = 1.5957691216057308  // 2·√(2/π)
	geluC2 = 0.07135481282553185 // geluC1 · 0.044715
	geluC3 = 3 * geluC2
)

// gelu32 is x·(1+tanh(√(2/π)(x+0.044715x³)))/2 in the form x·sigmoid(2·…).
func gelu32(x float32) float32 {
	x = clampLo(x)
	v := float32(x * fma32(geluC2, float32(x*x), geluC1))
	return float32(x * sigmoid32(v))
}

func geluSlope(x float32) float32 {
	x = clampBoth(x)
	q := float32(x * x)
	v := float32(x * fma32(geluC2, q, geluC1))
	s, d := sigmoidParts(v)
	return fma32(float32(x*d), fma32(geluC3, q, geluC1), s)
}

const (
	tailMax   = 20 // the normal density and tail vanish in float32 before this
	tailC     = 0.3
	tailP0    = 0.11968775188825284
	tailP1    = 0.11955029574333513
	tailP2    = 0.11041998012557441
	tailP3    = 0.07750862386325537
	tailP4    = 0.0987434513938916
	tailP5    = -0.08428206915058173
	tailP6    = 0.19764255497183697
	tailP7    = -0.23259967899113465
	tailP8    = 0.11429182063678406
	tailP9    = -0.020962732361678345
	invSqrt2P = 0.3989422804014327 // 1/√(2π)
)

// normalParts returns e**(-x²/2) and the normal distribution function Φ(x). The
// upper tail is e**(-a²/2) times a polynomial in t = 1/(1+0.3a), a = |x|, fitted
// to relative error 5e-9; the rounding error of a² is put back to first order.
func normalParts(x float32) (e, cdf float32) {
	a := abs32(x)
	if tailMax < a {
		a = tailMax
	}
	h := float32(a * a)
	d := fma32(a, a, -h)
	e = exp32(-0.5 * h)
	e = fma32(float32(e*d), -0.5, e)
	t := 1 / fma32(tailC, a, 1)
	p := fma32(tailP9, t, tailP8)
	p = fma32(p, t, tailP7)
	p = fma32(p, t, tailP6)
	p = fma32(p, t, tailP5)
	p = fma32(p, t, tailP4)
	p = fma32(p, t, tailP3)
	p = fma32(p, t, tailP2)
	p = fma32(p, t, tailP1)
	p = fma32(p, t, tailP0)
	q := float32(e * float32(p*t))
	if x < 0 {
		return e, q
	}
	return e, 1 - q
}

func geluErf32(x float32) float32 {
	x = clampLo(x)
	_, c := normalParts(x)
	return float32(x * c)
}

func geluErfSlope(x float32) float32 {
	x = clampBoth(x)
	e, c := normalParts(x)
	return fma32(float32(x*e), invSqrt2P, c)
}

// max32 is a if a > b or a is NaN, else b.
func max32(a, b float32) float32 {
	if a > b || a != a {
		return a
	}
	return b
}

// min32 is a if a < b or a is NaN, else b.
func min32(a, b float32) float32 {
	if a < b || a != a {
		return a
	}
	return b
}

package detmath

import "math"

const (
	ln2Hi = 6.93147180369123816490e-01
	ln2Lo = 1.90821492927058770002e-10
	log2e = 1.44269504088896338700e+00

	// π/2 in three pieces, the first two with 33 bits each, so that products with integers up to 2^20 are exact.
	pio2a = 1.57079632673412561417e+00
	pio2b = 6.07710050630396597660e-11
	pio2c = 2.02226624879595063154e-21
)

// poly evaluates c[0] + c[1] x + c[2] x² + … by Horner's rule, each step rounded.
func poly(x float64, c []float64) float64 {
	s := c[len(c)-1]
	for i := len(c) - 2; i >= 0; i-- {
		s = c[i] + float64(s*x)
	}
	return s
}

// reciprocals of factorials, from 1/0! on.
var invFact = func() []float64 {
	c := make([]float64, 20)
	f := 1.0
	for i := range c {
		if i > 0 {
			f *= float64(i)
		}
		c[i] = 1 / f
	}
	return c
}()

// Exp returns e^x; it overflows to +Inf and underflows to 0 as math.Exp does.
func Exp(x float64) float64 {
	switch {
	case math.IsNaN(x):
		return x
	case x > 709.782712893384:
		return math.Inf(1)
	case x < -745.2:
		return 0
	}
	k := math.Floor(float64(x*log2e) + 0.5)
	hi := x - float64(k*ln2Hi)
	lo := float64(k * ln2Lo)
	r := hi - lo
	c := (hi - r) - lo // what the subtraction lost
	// |r| ≤ 0.347: the Taylor series to r^13 errs below 2^-57. The leading 1 + r is added last.
	p := float64(float64(r*r) * poly(r, invFact[2:14]))
	y := 1 + (r + (p + float64(c+float64(c*r))))
	return math.Ldexp(y, int(k))
}

// Log returns the natural logarithm.
func Log(x float64) float64 {
	switch {
	case math.IsNaN(x) || math.IsInf(x, 1):
		return x
	case x < 0:
		return math.NaN()
	case x == 0:
		return math.Inf(-1)
	}
	f, e := math.Frexp(x)
	if f < math.Sqrt2/2 {
		f *= 2
		e--
	}
	// log f = 2 artanh s with s = (f-1)/(f+1), |s| ≤ 0.1716.
	d := f - 1
	s := d / (2 + d)
	z := float64(s * s)
	var c [12]float64 // 1/3, 1/5, …
	for i := range c {
		c[i] = 1 / float64(2*i+3)
	}
	r := float64(float64(2*z) * poly(z, c[:]))
	h := float64(float64(0.5*d) * d)
	k := float64(e)
	// log f = d - (d²/2 - s·(d²/2 + r)), FDLIBM's arrangement, which keeps d's low bits.
	t := float64(s * (h + r))
	return float64(k*ln2Hi) - ((h - (t + float64(k*ln2Lo))) - d)
}

// reduce returns the quadrant of x and the remainder in [-π/4, π/4] as a sum of two numbers.
func reduce(x float64) (q int, hi, lo float64) {
	n := math.Floor(float64(x/(math.Pi/2)) + 0.5)
	r := x - float64(n*pio2a)
	w := float64(n * pio2b)
	y := r - w
	e := (r - y) - w - float64(n*pio2c)
	hi = y + e
	lo = (y - hi) + e
	return int(int64(n) & 3), hi, lo
}

func sinKernel(x, lo float64) float64 {
	z := float64(x * x)
	var c [9]float64 // -1/3!, 1/5!, …
	for i := range c {
		c[i] = invFact[2*i+3]
		if i%2 == 0 {
			c[i] = -c[i]
		}
	}
	v := float64(float64(x*z) * poly(z, c[:8]))
	return x + (v + float64(lo*(1-float64(0.5*z))))
}

func cosKernel(x, lo float64) float64 {
	z := float64(x * x)
	var c [8]float64 // 1/4!, -1/6!, …
	for i := range c {
		c[i] = invFact[2*i+4]
		if i%2 == 1 {
			c[i] = -c[i]
		}
	}
	h := float64(0.5 * z)
	w := 1 - h
	return w + (((1 - w) - h) + (float64(float64(z*z)*poly(z, c[:])) - float64(x*lo)))
}

// Sin returns the sine of x radians, |x| up to about 10^6.
func Sin(x float64) float64 {
	q, r, lo := reduce(x)
	switch q {
	case 0:
		return sinKernel(r, lo)
	case 1:
		return cosKernel(r, lo)
	case 2:
		return -sinKernel(r, lo)
	}
	return -cosKernel(r, lo)
}

// Cos returns the cosine of x radians, |x| up to about 10^6.
func Cos(x float64) float64 {
	q, r, lo := reduce(x)
	switch q {
	case 0:
		return cosKernel(r, lo)
	case 1:
		return -sinKernel(r, lo)
	case 2:
		return -cosKernel(r, lo)
	}
	return sinKernel(r, lo)
}

// Pow returns x^y for x > 0 as e^(y log x), and the exact repeated product for small whole y
// (|y| ≤ 64). The relative error of the general case grows with |y log x|.
func Pow(x, y float64) float64 {
	if n := int(y); float64(n) == y && n >= -64 && n <= 64 {
		return PowInt(x, n)
	}
	return Exp(float64(y * Log(x)))
}

// PowInt returns x^n by binary powering.
func PowInt(x float64, n int) float64 {
	if n < 0 {
		return 1 / PowInt(x, -n)
	}
	r := 1.0
	for ; n > 0; n >>= 1 {
		if n&1 == 1 {
			r = float64(r * x)
		}
		x = float64(x * x)
	}
	return r
}

// Sqrt is the correctly rounded square root, the same everywhere by IEEE 754.
func Sqrt(x float64) float64 { return math.Sqrt(x) }

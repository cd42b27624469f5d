package vec

import "math"

// Uniform sets dst[i] to add + scale·w/2³², computed in float64 with every step
// rounded, rounded to float32 and no larger than limit, where w is word start+i
// of s.
func Uniform(dst []float32, s Stream, start uint64, add, scale float64, limit float32) {
	s.draw(dst, start, drawing{add: add, scale: scale, limit: limit})
}

// Normal sets dst[i] to mean + std·[NormalQuantile] of word start+i of s,
// computed in float64 with every step rounded and rounded to float32.
func Normal(dst []float32, s Stream, start uint64, mean, std float64) {
	s.draw(dst, start, drawing{normal: true, add: mean, scale: std})
}

// drawing says what becomes of a word.
type drawing struct {
	normal     bool
	add, scale float64
	limit      float32 // of uniform numbers
}

func (d *drawing) of(word uint32) float32 {
	if d.normal {
		return float32(d.add + float64(d.scale*NormalQuantile(word)))
	}
	return min(float32(d.add+float64(d.scale*(float64(word)/(1<<32)))), d.limit)
}

// drawGeneric is draw in plain Go.
func (s Stream) drawGeneric(dst []float32, start uint64, d drawing) {
	for i := 0; i < len(dst); {
		at := start + uint64(i)
		words := s.Block(at / 4)
		for w := at % 4; w < 4 && i < len(dst); w++ {
			dst[i] = d.of(words[w])
			i++
		}
	}
}

// NormalQuantile returns the quantile of the standard normal distribution at
// (w + 1/2) / 2³²: algorithm AS 241 (Wichura, 1988), PPND7, accurate to about
// seven digits, so that values lie within 6.4 standard deviations.
func NormalQuantile(w uint32) float64 {
	q := (float64(w)+0.5)/(1<<32) - 0.5
	if math.Abs(q) <= 0.425 {
		r := 0.180625 - float64(q*q)
		num := cubic(r, 3.3871327179e+00, 5.0434271938e+01, 1.5929113202e+02, 5.9109374720e+01)
		return q * num / cubic(r, 1, 1.7895169469e+01, 7.8757757664e+01, 6.7187563600e+01)
	}
	// The smallest tail, 2^-33, has r = 4.8 and needs no third piece.
	r := math.Sqrt(-logDouble(0.5-math.Abs(q))) - 1.6
	num := cubic(r, 1.4234372777e+00, 2.7568153900e+00, 1.3067284816e+00, 1.7023821103e-01)
	return math.Copysign(num/cubic(r, 1, 7.3700164250e-01, 1.2021132975e-01, 0), q)
}

// cubic returns a + b r + c r² + d r³, each step rounded.
func cubic(r, a, b, c, d float64) float64 {
	return a + float64(r*(b+float64(r*(c+float64(r*d)))))
}

// logDouble is the natural logarithm of a positive normal number in operations
// that every architecture rounds alike: log f = 2 artanh s with s = (f-1)/(f+1),
// in FDLIBM's arrangement.
func logDouble(x float64) float64 {
	f, e := math.Frexp(x)
	if f < math.Sqrt2/2 {
		f *= 2
		e--
	}
	d := f - 1
	s := d / (2 + d)
	z := float64(s * s)
	p := logSeries[len(logSeries)-1]
	for i := len(logSeries) - 2; i >= 0; i-- {
		p = logSeries[i] + float64(p*z)
	}
	r := float64(float64(2*z) * p)
	h := float64(float64(0.5*d) * d)
	k := float64(e)
	t := float64(s * (h + r))
	return float64(k*6.93147180369123816490e-01) - ((h - (t + float64(k*1.90821492927058770002e-10))) - d)
}

// logSeries is 1/3, 1/5, … 1/25.
var logSeries = func() (c [12]float64) {
	for i := range c {
		c[i] = 1 / float64(2*i+3)
	}
	return c
}()

package graph

import (
	"math"
	"sync"

	"starling/core/tensor/detmath"
)

// InitValues fills dst with elements offset, offset+1, … of a parameter's initial value. Each element is a function of
// the seed, the parameter's name and the element's index alone: any range of a parameter can be drawn anywhere, in any order,
// with the same bits on every architecture.
//
// Element i comes from word i%4 of Philox4x32-10 under the key seed ^ hash of the name and the counter (i/4, "init").
// Long ranges are cut among the process's threads.
func InitValues(a ParamAttrs, seed uint64, offset int, dst []float32) {
	if a.Init.Kind == InitConstant {
		for i := range dst {
			dst[i] = float32(a.Init.A)
		}
		return
	}
	h := HashName(a.Name) ^ seed
	key := [2]uint32{uint32(h), uint32(h >> 32)}
	const piece = 1 << 17
	if len(dst) <= piece {
		a.Init.fill(key, uint64(offset), dst)
		return
	}
	var wg sync.WaitGroup
	for from := 0; from < len(dst); from += piece {
		wg.Go(func() { a.Init.fill(key, uint64(offset+from), dst[from:min(from+piece, len(dst))]) })
	}
	wg.Wait()
}

// fill draws elements first, first+1, … into dst.
func (in *Init) fill(key [2]uint32, first uint64, dst []float32) {
	const domain = 0x696e6974 // "init": keeps these counters apart from those of dropout, whose last word is a micro-batch
	for i := 0; i < len(dst); {
		e := first + uint64(i)
		words := Philox(key, [4]uint32{uint32(e / 4), uint32(e / 4 >> 32), domain, math.MaxUint32})
		for _, w := range words[e%4:] {
			if i == len(dst) {
				break
			}
			if in.Kind == InitUniform {
				dst[i] = in.uniform(w)
			} else {
				dst[i] = in.normal(w)
			}
			i++
		}
	}
}

// uniform maps a word to [A, B).
func (in *Init) uniform(w uint32) float32 {
	v := float32(in.A + float64((in.B-in.A)*(float64(w)/(1<<32))))
	if v >= float32(in.B) && in.B > in.A {
		return math.Nextafter32(float32(in.B), float32(in.A))
	}
	return v
}

// normal maps a word to the normal distribution through the inverse of its distribution function, so that values
// lie within 6.4 standard deviations of the mean.
func (in *Init) normal(w uint32) float32 {
	return float32(in.A + float64(in.B*normalQuantile(w)))
}

// normalQuantile returns the quantile of the standard normal distribution at (w + 1/2) / 2^32: algorithm AS 241 (Wichura, 1988),
// PPND7, accurate to about seven digits. Every product is rounded before it is added to, so that no
// compiler contracts the two.
func normalQuantile(w uint32) float64 {
	q := (float64(w)+0.5)/(1<<32) - 0.5
	if math.Abs(q) <= 0.425 {
		r := 0.180625 - float64(q*q)
		num := cubic(r, 3.3871327179e+00, 5.0434271938e+01, 1.5929113202e+02, 5.9109374720e+01)
		return q * num / cubic(r, 1, 1.7895169469e+01, 7.8757757664e+01, 6.7187563600e+01)
	}
	// The smallest tail, 2^-33, has r = 4.8 and needs no third piece.
	r := detmath.Sqrt(-detmath.Log(0.5-math.Abs(q))) - 1.6
	num := cubic(r, 1.4234372777e+00, 2.7568153900e+00, 1.3067284816e+00, 1.7023821103e-01)
	return math.Copysign(num/cubic(r, 1, 7.3700164250e-01, 1.2021132975e-01, 0), q)
}

// cubic returns a + b r + c r² + d r³, each step rounded.
func cubic(r, a, b, c, d float64) float64 {
	return a + float64(r*(b+float64(r*(c+float64(r*d)))))
}

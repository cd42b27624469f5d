package vec

// Lanes is the number of accumulators of a reduction; part of the contract.
const Lanes = 32

// Sum is the sum of x.
func Sum(x []float32) float32 { return sum(x) }

// Dot is the sum of a[i]·b[i], by fused multiply-adds.
func Dot(a, b []float32) float32 {
	same("Dot", len(a), len(b))
	return dot(a, b)
}

// SumSq64 is the sum of squares of x, in float64.
func SumSq64(x []float32) float64 {
	var lanes [Lanes]float64
	sumSq64(&lanes, x)
	for h := Lanes / 2; h > 0; h /= 2 {
		for l := range h {
			lanes[l] += lanes[l+h]
		}
	}
	return lanes[0]
}

// MaxOf is the largest element of x: NaN if any is, -Inf if there is none.
func MaxOf(x []float32) float32 { return maxOf(x) }

// AllFinite reports whether x holds neither infinities nor NaN.
func AllFinite(x []float32) bool { return allFinite(x) }

// SumRowsTo adds to dst the sums of columns: dst[j] += x[r·ld+j] for r = 0,
// 1, …, rows-1 in that order, with plain additions.
func SumRowsTo(dst, x []float32, rows, ld int) {
	for r := range rows {
		add(dst, dst, x[r*ld:r*ld+len(dst)])
	}
}

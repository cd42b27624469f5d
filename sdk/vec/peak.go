package vec

import "time"

// Peak measures the most multiply-adds one thread can make with the active
// kernel set, in GFLOP/s (two operations each): the bound that products are
// compared with. It takes a few milliseconds.
func Peak() float64 {
	var best float64
	for range 10 {
		start := time.Now()
		n := fmaRound()
		best = max(best, 2*float64(n)/float64(time.Since(start).Nanoseconds()))
	}
	return best
}

// PeakOver is Peak on average over at least d: threads that measure at the same
// time learn what they have together.
func PeakOver(d time.Duration) float64 { return peakOver(d, fmaRound) }

// PeakBF16Over is PeakOver of what products of bfloat16 are made of. For tiles that is not known: it is 0.
func PeakBF16Over(d time.Duration) float64 {
	switch arith() {
	case arithPairs:
		return peakOver(d, pairRound)
	case arithFMA:
		return PeakOver(d)
	}
	return 0
}

func peakOver(d time.Duration, round func() int) float64 {
	round() // the processor may have to wake its wide units
	var n int
	start := time.Now()
	for time.Since(start) < d {
		n += round()
	}
	return 2 * float64(n) / float64(time.Since(start).Nanoseconds())
}

func fmaRoundGeneric() int {
	const n = 20000
	var acc [4]float32
	for i := range n {
		for j := range acc {
			acc[j] = fma32(float32(i), 0.5, acc[j])
		}
	}
	if acc[0] < 0 {
		panic("vec: a sum of positive terms is negative")
	}
	return n * len(acc)
}

package vec

import "math/bits"

// Philox is the counter-based generator Philox4x32-10 of Salmon, Moraes, Dror and
// Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3" (SC 2011): four random
// words for each key and counter.
func Philox(key [2]uint32, ctr [4]uint32) [4]uint32 {
	const m0, m1 = 0xd2511f53, 0xcd9e8d57
	k0, k1 := key[0], key[1]
	a, b, c, d := ctr[0], ctr[1], ctr[2], ctr[3]
	for range 10 {
		h0, l0 := bits.Mul32(m0, a)
		h1, l1 := bits.Mul32(m1, c)
		a, b, c, d = h1^b^k0, l1, h0^d^k1, l0
		k0 += philoxW0
		k1 += philoxW1
	}
	return [4]uint32{a, b, c, d}
}

// What Philox adds to the halves of its key after each round.
const philoxW0, philoxW1 = 0x9e3779b9, 0xbb67ae85

// Stream names a sequence of random words: word i is word i%4 of Philox for Key
// and the counter {low half of i/4, high half of i/4, Prefix[0], Prefix[1]}.
type Stream struct {
	Key    [2]uint32
	Prefix [2]uint32
}

// Block returns words 4·i to 4·i+3.
func (s Stream) Block(i uint64) [4]uint32 {
	return Philox(s.Key, [4]uint32{uint32(i), uint32(i >> 32), s.Prefix[0], s.Prefix[1]})
}

// DropoutThreshold is the word from which an element is kept when each is
// dropped with probability p in [0, 1): p·2³², rounded to nearest.
func DropoutThreshold(p float64) uint32 {
	t := float64(p*(1<<32)) + 0.5
	switch {
	case !(t >= 1):
		return 0
	case t >= 1<<32:
		return 1<<32 - 1
	}
	return uint32(t)
}

// Dropout sets dst[i] to x[i]·(1/(1-p)) where word start+i of s is at least
// DropoutThreshold(p), else to 0. start is the logical index of the first
// element, so that parts of a tensor may be computed apart. The gradient is the
// same function of dy.
func Dropout(dst, x []float32, p float64, s Stream, start uint64) {
	same("Dropout", len(dst), len(x))
	dropout(dst, x, s, start, DropoutThreshold(p), float32(1/(1-p)))
}

// dropoutGeneric is Dropout in plain Go.
func dropoutGeneric(dst, x []float32, s Stream, start uint64, threshold uint32, scale float32) {
	for i := 0; i < len(dst); {
		at := start + uint64(i)
		words := s.Block(at / 4)
		for w := at % 4; w < 4 && i < len(dst); w++ {
			v := float32(0)
			if words[w] >= threshold {
				v = x[i] * scale
			}
			dst[i] = v
			i++
		}
	}
}

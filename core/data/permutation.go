package data

import "math/bits"

// permutation is a keyed pseudo-random bijection of 0 … n-1, evaluated one
// element at a time without storing the order.
//
// It is a balanced Feistel network over the smallest even number of bits that
// holds n, walked until the value falls inside the range (cycle walking: Black and
// Rogaway, "Ciphers with Arbitrary Finite Domains", 2002). The domain is less than
// 4n, so that a value takes fewer than four rounds of walking on average.
type permutation struct {
	n    uint64
	half uint   // bits in each half
	mask uint64 // of one half
	keys [feistelRounds]uint64
}

// Four rounds make a pseudo-random permutation of a large domain (Luby and
// Rackoff); small domains, such as the 32 values that hold 22 samples, want more.
const feistelRounds = 8

func newPermutation(n, seed, epoch uint64) permutation {
	half := uint(bits.Len64(n-1)+1) / 2
	if half == 0 {
		half = 1
	}
	p := permutation{n: n, half: half, mask: 1<<half - 1}
	state := mix64(seed + mix64(epoch+goldenGamma))
	for r := range p.keys {
		state += goldenGamma
		p.keys[r] = mix64(state)
	}
	return p
}

func (p *permutation) at(i uint64) uint64 {
	for {
		left, right := i>>p.half, i&p.mask
		for _, k := range p.keys {
			left, right = right, left^(mix64(right^k)&p.mask)
		}
		i = left<<p.half | right
		if i < p.n {
			return i
		}
	}
}

const goldenGamma = 0x9e3779b97f4a7c15

// mix64 is the finalizer of SplitMix64 (Steele, Lea and Flood, 2014): a bijection
// of 64 bits in which every input bit moves about half of the output's.
func mix64(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

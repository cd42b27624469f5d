package vec

import (
	"math"
	"math/rand/v2"
	"testing"
)

// TestDrawsAreThePlainOnes compares every set with plain Go, whole and in parts, across the overflow of a counter's low half.
func TestDrawsAreThePlainOnes(t *testing.T) {
	s := Stream{Key: [2]uint32{7, 8}, Prefix: [2]uint32{9, 10}}
	limit := math.Nextafter32(0.25, 0)
	for _, d := range []drawing{
		{normal: true, add: 0, scale: 0.02}, {normal: true, add: -3, scale: 1.7},
		{add: -0.25, scale: 0.5, limit: limit}, {add: 0.25, scale: 0x1p-40, limit: limit}, {add: 2, scale: 0, limit: float32(math.Inf(1))},
	} {
		for _, start := range []uint64{0, 4, 1, 3, 1<<34 - 500, 1<<34 - 128, 1<<34 - 3, 1 << 40} {
			want := make([]float32, 20011)
			s.drawGeneric(want, start, d)
			eachSet(t, func(t *testing.T) {
				whole, parts := make([]float32, len(want)), make([]float32, len(want))
				s.draw(whole, start, d)
				r := rand.New(rand.NewPCG(start, 1))
				for i := 0; i < len(want); {
					j := min(len(want), i+r.IntN(2000))
					s.draw(parts[i:j], start+uint64(i), d)
					i = j
				}
				for i, v := range want {
					if !sameBits(whole[i], v) || !sameBits(parts[i], v) {
						t.Fatalf("%+v from %d, element %d: %v whole and %v in parts, want %v", d, start, i, whole[i], parts[i], v)
					}
				}
			})
		}
	}
}

// The longest way through the assembly's two branches: a million words in a row, tails included.
func TestNormalDrawsOfManyWords(t *testing.T) {
	s, d := Stream{Key: [2]uint32{1, 2}}, drawing{normal: true, scale: 1}
	n := 1 << 20
	if testing.Short() {
		n = 1 << 17
	}
	want, got := make([]float32, n), make([]float32, n)
	s.drawGeneric(want, 0, d)
	eachSet(t, func(t *testing.T) {
		Normal(got, s, 0, 0, 1)
		for i, v := range want {
			if !sameBits(got[i], v) {
				t.Fatalf("element %d: %v, want %v", i, got[i], v)
			}
		}
	})
}

func BenchmarkNormal(b *testing.B) {
	x := make([]float32, 1<<14)
	b.SetBytes(int64(4 * len(x)))
	for range b.N {
		Normal(x, Stream{}, 0, 0, 1)
	}
}

func BenchmarkUniform(b *testing.B) {
	x := make([]float32, 1<<14)
	b.SetBytes(int64(4 * len(x)))
	for range b.N {
		Uniform(x, Stream{}, 0, 0, 1, 1)
	}
}

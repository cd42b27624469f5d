package vec

import (
	"math"
	"math/rand/v2"
	"testing"
)

// Known answers of Random123 1.14's kat_vectors for philox4x32 with 10 rounds.
func TestPhiloxKnownAnswers(t *testing.T) {
	for _, c := range []struct {
		ctr  [4]uint32
		key  [2]uint32
		want [4]uint32
	}{
		{[4]uint32{}, [2]uint32{}, [4]uint32{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
		{[4]uint32{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, [2]uint32{0xffffffff, 0xffffffff}, [4]uint32{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
		{[4]uint32{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, [2]uint32{0xa4093822, 0x299f31d0}, [4]uint32{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
	} {
		if got := Philox(c.key, c.ctr); got != c.want {
			t.Errorf("Philox(%x, %x) = %x, want %x", c.key, c.ctr, got, c.want)
		}
	}
}

func TestDropoutKeepsWhatItsWordsSay(t *testing.T) {
	s := Stream{Key: [2]uint32{7, 8}, Prefix: [2]uint32{9, 10}}
	for _, p := range []float64{0, 0.1, 0.25, 0.9} {
		threshold, scale := DropoutThreshold(p), float32(1/(1-p))
		for _, start := range []uint64{0, 4, 1, 2, 3, 1<<34 - 500, 1<<34 - 128, 1<<34 - 3, 1 << 40} { // block indices cross 2**32
			eachSet(t, func(t *testing.T) {
				const n = 1003
				r := rand.New(rand.NewPCG(start, 1))
				x, whole, parts := normals(r, n), make([]float32, n), make([]float32, n)
				Dropout(whole, x, p, s, start)
				for i := 0; i < n; {
					j := min(n, i+r.IntN(200))
					Dropout(parts[i:j], x[i:j], p, s, start+uint64(i))
					i = j
				}
				kept := 0.0
				for i := range whole {
					want := float32(0)
					if at := start + uint64(i); s.Block(at / 4)[at%4] >= threshold {
						want = x[i] * scale
						kept++
					}
					if !sameBits(whole[i], want) || !sameBits(parts[i], want) {
						t.Fatalf("start %d, element %d: %v whole and %v in parts, want %v", start, i, whole[i], parts[i], want)
					}
				}
				if math.Abs(kept/n-(1-p)) > 0.05 {
					t.Errorf("kept %v of %d elements at p = %v", kept, n, p)
				}
			})
		}
	}
}

func TestDropoutThreshold(t *testing.T) {
	for p, want := range map[float64]uint32{0: 0, 0.5: 1 << 31, 0.1: 429496730, 1: math.MaxUint32, -1: 0, math.NaN(): 0} {
		if got := DropoutThreshold(p); got != want {
			t.Errorf("DropoutThreshold(%v) = %d, want %d", p, got, want)
		}
	}
}

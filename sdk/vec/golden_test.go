package vec

import (
	"flag"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite testdata/bits.txt")

// TestBitsAreTheContracts compares a hash of every function's results with the
// recorded one, which is the same for all kernel sets and architectures. A
// difference means that weights trained before cannot be trained again: change
// the record only on purpose.
func TestBitsAreTheContracts(t *testing.T) {
	const file = "testdata/bits.txt"
	record, err := os.ReadFile(file)
	if err != nil && !*update {
		t.Fatal(err)
	}
	eachSet(t, func(t *testing.T) {
		var lines strings.Builder
		for _, c := range kernelCases {
			fmt.Fprintf(&lines, "%s: %016x\n", c.name, hashOf(c))
		}
		fmt.Fprintf(&lines, "Gemm: %016x\n", hashOfGemm())
		if *update {
			if err := os.WriteFile(file, []byte(lines.String()), 0o644); err != nil {
				t.Fatal(err)
			}
			return
		}
		want := strings.Split(string(record), "\n")
		for i, line := range strings.Split(lines.String(), "\n") {
			if i >= len(want) || line != want[i] {
				t.Errorf("bits changed: %s (recorded line %d)", line, i+1)
			}
		}
	})
}

// exactInput fills x without floating-point arithmetic, which differs between
// architectures: magnitudes from 2**-12 to 2**4, and special values if asked.
func exactInput(r *rand.Rand, x []float32, special bool) {
	for i := range x {
		u := r.Uint32()
		x[i] = math.Float32frombits(u&(signBit|0x7fffff) | (115+r.Uint32()%17)<<23)
		if special && u>>23&15 == 0 {
			x[i] = specials[r.IntN(len(specials))]
		}
	}
}

type bitHash interface{ Write([]byte) (int, error) }

func writeBits(h bitHash, x []float32) {
	for _, v := range x {
		u := math.Float32bits(v)
		if v != v {
			u = 0x7fc00000 // any NaN is as good as another
		}
		fmt.Fprintf(h, "%08x", u)
	}
}

func hashOf(c kernelCase) uint64 {
	r := rand.New(rand.NewPCG(31, 32))
	h := fnv.New64a()
	for _, n := range []int{1, 31, 77, 1000} {
		in, out := make([][]float32, c.ins), make([][]float32, c.out)
		for _, s := range [][][]float32{in, out} {
			for i := range s {
				s[i] = make([]float32, n)
				exactInput(r, s[i], n == 77) // which turn reductions to NaN
			}
		}
		writeBits(h, c.run(in, out))
		for _, x := range out {
			writeBits(h, x)
		}
	}
	return h.Sum64()
}

func hashOfGemm() uint64 {
	r := rand.New(rand.NewPCG(33, 34))
	h := fnv.New64a()
	g := GemmArgs{M: 23, N: 37, K: 413, LDA: 413, LDB: 413, LDC: 37, TransB: true}
	g.A, g.B, g.C = make([]float32, g.M*g.LDA), make([]float32, g.N*g.LDB), make([]float32, g.M*g.LDC)
	exactInput(r, g.A, false)
	exactInput(r, g.B, false)
	Gemm(&g, 0, g.M, 0, g.N, make([]float32, GemmScratch(&g)))
	writeBits(h, g.C)
	return h.Sum64()
}

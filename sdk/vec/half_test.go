package vec

import (
	"math"
	"math/rand/v2"
	"testing"
)

// halfFunctions are the functions on bfloat16 slices beside those on float32 that they stand for.
var halfFunctions = map[string]struct {
	two  func(dst, a, b []uint16)
	one  func(dst, x []uint16)
	wide func(dst, a, b []float32)
}{
	"AddBF16": {two: AddBF16, wide: Add}, "SubBF16": {two: SubBF16, wide: Sub}, "MulBF16": {two: MulBF16, wide: Mul},
	"ReluBF16": {one: ReluBF16, wide: ignore(Relu)}, "ReluGradBF16": {two: ReluGradBF16, wide: ReluGrad},
	"GeluBF16": {one: GeluBF16, wide: ignore(Gelu)}, "GeluGradBF16": {two: GeluGradBF16, wide: GeluGrad},
	"GeluErfBF16": {one: GeluErfBF16, wide: ignore(GeluErf)}, "GeluErfGradBF16": {two: GeluErfGradBF16, wide: GeluErfGrad},
	"SiluBF16": {one: SiluBF16, wide: ignore(Silu)}, "SiluGradBF16": {two: SiluGradBF16, wide: SiluGrad},
}

func ignore(f func(dst, x []float32)) func(dst, a, b []float32) {
	return func(dst, a, _ []float32) { f(dst, a) }
}

func rounded(x []float32) []uint16 {
	h := make([]uint16, len(x))
	F32ToBF16(h, x)
	return h
}

func widened(h []uint16) []float32 {
	x := make([]float32, len(h))
	BF16ToF32(x, h)
	return x
}

// halfCase runs one of halfFunctions on operands that are rounded first; its result is widened.
func halfCase(name string) kernelCase {
	return kernelCase{name, 2, 1, func(in, out [][]float32) []float32 {
		f := halfFunctions[name]
		y := make([]uint16, len(out[0]))
		if f.one != nil {
			f.one(y, rounded(in[0]))
		} else {
			f.two(y, rounded(in[0]), rounded(in[1]))
		}
		BF16ToF32(out[0], y)
		return nil
	}}
}

// TestHalfFunctionsRoundOnce compares with widening, computing and rounding, for every value that there is.
func TestHalfFunctionsRoundOnce(t *testing.T) {
	r := rand.New(rand.NewPCG(61, 62))
	a, b := make([]uint16, 1<<16+21), make([]uint16, 1<<16+21)
	for i := range a {
		a[i], b[i] = uint16(i), uint16(r.Uint32())
	}
	sums := normals(r, len(a))
	eachSet(t, func(t *testing.T) {
		for name, f := range halfFunctions {
			wide := make([]float32, len(a))
			f.wide(wide, widened(a), widened(b))
			want, got := rounded(wide), make([]uint16, len(a))
			if f.one != nil {
				f.one(got, a)
			} else {
				f.two(got, a, b)
			}
			for i := range got {
				if !sameBits(widenBF16(got[i]), widenBF16(want[i])) {
					t.Fatalf("%s(%#04x, %#04x) = %#04x, want %#04x", name, a[i], b[i], got[i], want[i])
				}
			}
		}
		wide := append([]float32(nil), sums...)
		AddWide(wide, a)
		got := make([]uint16, len(a))
		AddRound(got, sums, widened(a))
		for i := range got {
			want := sums[i] + widenBF16(a[i])
			if !sameBits(wide[i], want) || !sameBits(widenBF16(got[i]), widenBF16(roundBF16(want))) {
				t.Fatalf("%v + %#04x: %v, and %#04x where it is rounded; want %v", sums[i], a[i], wide[i], got[i], want)
			}
		}
	})
}

func TestGemmBF16Rounded(t *testing.T) {
	r := rand.New(rand.NewPCG(63, 64))
	type form struct {
		m, n, k        int
		transA, transB bool
	}
	var forms []form
	sizes := []int{1, 2, 3, 15, 16, 17, 31, 32, 33, 47, 63, 64, 65, 100, 129}
	pick := func() int { return sizes[r.IntN(len(sizes))] }
	for i := range 80 {
		forms = append(forms, form{pick(), pick(), pick(), i&1 != 0, i&2 != 0})
	}
	for i := range 4 { // several blocks of k and of columns, or none
		forms = append(forms, form{33 + i, 5 + 30*i, 2*bf16KC + 1 + 63*i, i&1 != 0, i&2 != 0}, form{35, roundedCols + 1 + 16*i, 70, i&1 != 0, i&2 != 0},
			form{3, 2*gemmNR + 1 + i, roundedB/(2*gemmNR) - 1 + i, i&1 != 0, i&2 != 0}, form{2, 40 + i, 0, i&1 != 0, i&2 != 0})
	}
	eachSet(t, func(t *testing.T) {
		for i, f := range forms {
			p := newHalfProduct(r, f.m, f.n, f.k, f.transA, f.transB, false)
			g := p.GemmBF16Args
			if i%5 == 0 && len(g.A) > 0 {
				g.A[r.IntN(len(g.A))] = 0x7f80 // an infinity
			}
			GemmBF16Pack(&g, 0, g.K, 0, g.N)
			GemmBF16(&g, 0, g.M, 0, g.N, make([]float32, GemmBF16Scratch(&g)))
			var bias []float32
			if i%3 > 0 {
				bias = normals(r, g.N)
			}
			q := g
			q.C, q.LDO, q.Bias = nil, g.N+r.IntN(3), bias
			const untouched = 0x1234
			q.Out = make([]uint16, g.M*q.LDO)
			for i := range q.Out {
				q.Out[i] = untouched
			}
			scratch := make([]float32, GemmBF16Scratch(&q))
			Fill(scratch, float32(math.NaN()))
			split := gemmNR * r.IntN(2)
			if split >= g.N {
				split = 0
			}
			rows := r.IntN(g.M + 1)
			for _, b := range [][4]int{{rows, g.M, split, g.N}, {0, rows, 0, split}, {0, rows, split, g.N}, {rows, g.M, 0, split}} {
				GemmBF16(&q, b[0], b[1], b[2], b[3], scratch)
			}
			for i := range g.M {
				for j := range q.LDO {
					want := uint16(untouched)
					if j < g.N {
						v := g.C[i*g.LDC+j]
						if bias != nil {
							v += bias[j]
						}
						want = roundBF16(v)
					}
					if got := q.Out[i*q.LDO+j]; !sameBits(widenBF16(got), widenBF16(want)) {
						t.Fatalf("%+v: element %d, %d is %#04x, want %#04x", f, i, j, got, want)
					}
				}
			}
		}
	})
}

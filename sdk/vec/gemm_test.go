package vec

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// eachSet runs f once under every kernel set of this machine.
func eachSet(t *testing.T, f func(t *testing.T)) {
	for _, name := range Sets() {
		t.Run(name, func(t *testing.T) {
			restore, err := Use(name)
			if err != nil {
				t.Fatal(err)
			}
			defer restore()
			f(t)
		})
	}
}

// sameBits reports whether a and b are equal to the bit, any two NaN being equal.
func sameBits(a, b float32) bool {
	return math.Float32bits(a) == math.Float32bits(b) || a != a && b != b
}

func normals(r *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	return x
}

// product is a product of random operands, with its result by the definition.
type product struct {
	GemmArgs
	want []float32
}

func newProduct(r *rand.Rand, m, n, k int, transA, transB, accumulate bool) *product {
	rows := func(r, c int, trans bool) (int, int) {
		if trans {
			return c, r
		}
		return r, c
	}
	ar, ac := rows(m, k, transA)
	br, bc := rows(k, n, transB)
	p := &product{GemmArgs: GemmArgs{
		M: m, N: n, K: k, TransA: transA, TransB: transB, Accumulate: accumulate,
		LDA: ac + r.IntN(4), LDB: bc + r.IntN(4), LDC: n + r.IntN(4),
	}}
	p.A, p.B, p.C = make([]float32, ar*p.LDA), make([]float32, br*p.LDB), make([]float32, m*p.LDC)
	kind := []string{"normal", "normal", "tiny", "few special"}[r.IntN(4)]
	for _, x := range [][]float32{p.A, p.B, p.C} {
		fillWith(r, kind, x)
	}
	if r.IntN(2) == 0 {
		p.Bias = make([]float32, n)
		fillWith(r, kind, p.Bias)
	}
	p.want = append([]float32(nil), p.C...)
	for i := range m {
		for j := range n {
			s := float32(0)
			if accumulate {
				s = p.C[i*p.LDC+j]
			}
			for l := range k {
				s = fma32(p.a(i, l), p.b(l, j), s)
			}
			if p.Bias != nil {
				s += p.Bias[j]
			}
			p.want[i*p.LDC+j] = s
		}
	}
	return p
}

// check compares C, including what lies between its rows, with want.
func (p *product) check(t *testing.T, c []float32) {
	t.Helper()
	for i := range c {
		if !sameBits(c[i], p.want[i]) {
			t.Fatalf("C[%d, %d] = %x, want %x", i/p.LDC, i%p.LDC, c[i], p.want[i])
		}
	}
}

func TestGemmIsOneChainPerElement(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	var products []*product
	sizes := []int{1, 2, 3, 5, 6, 7, 8, 13, 14, 15, 16, 17, 29, 31, 32, 33, 47, 64, 65}
	pick := func() int { return sizes[r.IntN(len(sizes))] }
	for i := range 240 {
		products = append(products, newProduct(r, pick(), pick(), pick(), i&1 != 0, i&2 != 0, i&4 != 0))
	}
	for i := range 8 { // many panels of rows, wide enough that a transposed A is copied
		products = append(products, newProduct(r, 150+i, 270+16*i, 20+gemmKC*(i&1), true, i&2 != 0, i&4 != 0))
	}
	for i := range 8 { // several blocks of k and strips of columns
		products = append(products, newProduct(r, 3+i, 5+i, gemmKC+1, i&1 != 0, i&2 != 0, i&4 != 0))
		products = append(products, newProduct(r, 2, gemmNC+1+16*i, 3, i&1 != 0, i&2 != 0, i&4 != 0))
	}
	products = append(products, newProduct(r, 3, 4, 0, false, true, false), newProduct(r, 3, 4, 0, false, true, true),
		newProduct(r, 31, 33, 2*gemmKC+5, false, true, false))
	eachSet(t, func(t *testing.T) {
		for _, p := range products {
			t.Run(fmt.Sprintf("%dx%dx%d", p.M, p.N, p.K), func(t *testing.T) {
				g := p.GemmArgs
				g.C = append([]float32(nil), p.C...)
				scratch := make([]float32, GemmScratch(&g))
				Fill(scratch, float32(math.NaN()))
				Gemm(&g, 0, g.M, 0, g.N, scratch)
				p.check(t, g.C)

				// Blocks of any shape in any order.
				g.C = append(g.C[:0], p.C...)
				mb, nb := 1+r.IntN(g.M), 1+r.IntN(g.N)
				for i := (g.M - 1) / mb * mb; i >= 0; i -= mb {
					for j := 0; j < g.N; j += nb {
						Gemm(&g, i, min(i+mb, g.M), j, min(j+nb, g.N), scratch)
					}
				}
				p.check(t, g.C)

				// B packed beforehand, last pieces first.
				g.C = append(g.C[:0], p.C...)
				g.Packed = make([]float32, GemmPacked(&g))
				Fill(g.Packed, float32(math.NaN()))
				steps, width := GemmPackSteps(&g), gemmNR*(1+r.IntN(3))
				for k := (g.K - 1) / steps * steps; k >= 0; k -= steps {
					for j := (g.N - 1) / width * width; j >= 0; j -= width {
						GemmPack(&g, k, min(k+steps, g.K), j, min(j+width, g.N))
					}
				}
				scratch = make([]float32, GemmScratch(&g))
				Fill(scratch, float32(math.NaN()))
				for i := (g.M - 1) / mb * mb; i >= 0; i -= mb {
					for j := 0; j < g.N; j += width {
						Gemm(&g, i, min(i+mb, g.M), j, min(j+width, g.N), scratch)
					}
				}
				p.check(t, g.C)
			})
		}
	})
}

func TestGemmTasksCoverC(t *testing.T) {
	r := rand.New(rand.NewPCG(29, 30))
	for range 2000 {
		m, n, k := 1+r.IntN(5000), 1+r.IntN(5000), 1+r.IntN(3000)
		mb, nb := GemmTasks(m, n, k)
		if mb < 1 || nb < 1 || mb > m || nb > max(n, gemmNR) {
			t.Fatalf("GemmTasks(%d, %d, %d) = %d, %d", m, n, k, mb, nb)
		}
	}
	for _, s := range [][3]int{{0, 5, 5}, {5, 0, 5}, {5, 5, 0}} {
		if mb, nb := GemmTasks(s[0], s[1], s[2]); mb < 1 || nb < 1 {
			t.Errorf("GemmTasks(%v) = %d, %d; a caller's loop would not end", s, mb, nb)
		}
	}
}

func TestGemmRefusesWhatDoesNotFit(t *testing.T) {
	ok := GemmArgs{M: 2, N: 3, K: 4, A: make([]float32, 8), B: make([]float32, 12), C: make([]float32, 6), LDA: 4, LDB: 3, LDC: 3}
	for _, c := range []struct {
		want   string
		change func(g *GemmArgs) (i1, scratch int)
	}{
		{"vec.Gemm: A has 7 elements and stride 4, too few for 2 rows of 4", func(g *GemmArgs) (int, int) { g.A = g.A[:7]; return 2, -1 }},
		{"vec.Gemm: B has 12 elements and stride 2, too few for 4 rows of 3", func(g *GemmArgs) (int, int) { g.LDB = 2; return 2, -1 }},
		{"vec.Gemm: C has 5 elements and stride 3, too few for 2 rows of 3", func(g *GemmArgs) (int, int) { g.C = g.C[:5]; return 2, -1 }},
		{"vec.Gemm: block [0, 3) by [0, 3) outside C of 2 by 3", func(*GemmArgs) (int, int) { return 3, -1 }},
		{fmt.Sprintf("vec.Gemm: scratch of 1 elements, need %d", GemmScratch(&ok)), func(*GemmArgs) (int, int) { return 2, 1 }},
	} {
		func() {
			defer func() {
				if msg := recover(); msg != c.want {
					t.Errorf("panic %q, want %q", msg, c.want)
				}
			}()
			g := ok
			i1, scratch := c.change(&g)
			if scratch < 0 {
				scratch = GemmScratch(&g)
			}
			Gemm(&g, 0, i1, 0, g.N, make([]float32, scratch))
		}()
	}
	for want, f := range map[string]func(g *GemmArgs){
		"vec.Gemm: packed B of 511 elements, need 512":                                func(g *GemmArgs) { GemmPack(g, 0, 4, 0, 3) },
		"vec.GemmPack: steps [1, 4) and columns [0, 3) of 4 by 3 are no whole panels": func(g *GemmArgs) { g.Packed = make([]float32, 512); GemmPack(g, 1, 4, 0, 3) },
		"vec.Gemm: with a packed B, blocks begin at multiples of 32 columns, not at 1": func(g *GemmArgs) {
			g.Packed = make([]float32, 512)
			Gemm(g, 0, 2, 1, 3, make([]float32, GemmScratch(g)))
		},
	} {
		func() {
			defer func() {
				if msg := recover(); msg != want {
					t.Errorf("panic %q, want %q", msg, want)
				}
			}()
			g := ok
			g.Packed = make([]float32, 511)
			f(&g)
		}()
	}
}

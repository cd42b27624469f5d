package vec

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
)

// halfProduct is a product of random bfloat16 operands, with its result in float64 and a bound of the error.
type halfProduct struct {
	GemmBF16Args
	want, bound []float64
}

func newHalfProduct(r *rand.Rand, m, n, k int, transA, transB, accumulate bool) *halfProduct {
	ar, ac, br, bc := m, k, k, n
	if transA {
		ar, ac = ac, ar
	}
	if transB {
		br, bc = bc, br
	}
	p := &halfProduct{GemmBF16Args: GemmBF16Args{
		M: m, N: n, K: k, TransA: transA, TransB: transB, Accumulate: accumulate,
		LDA: ac + r.IntN(4), LDB: bc + r.IntN(4), LDC: n + r.IntN(4),
	}}
	half := func(n int) []uint16 {
		x := make([]uint16, n)
		F32ToBF16(x, normals(r, n))
		return x
	}
	p.A, p.B, p.C = half(ar*p.LDA), half(br*p.LDB), normals(r, m*p.LDC)
	p.Packed = make([]float32, GemmBF16Packed(&p.GemmBF16Args))
	at := func(x []uint16, ld, i, j int, trans bool) float64 {
		if trans {
			i, j = j, i
		}
		return float64(math.Float32frombits(uint32(x[i*ld+j]) << 16))
	}
	p.want, p.bound = make([]float64, len(p.C)), make([]float64, len(p.C))
	for i := range p.C {
		p.want[i] = float64(p.C[i])
	}
	for i := range m {
		for j := range n {
			s, size := 0.0, 0.0
			if accumulate {
				s = float64(p.C[i*p.LDC+j])
				size = math.Abs(s)
			}
			for l := range k {
				v := at(p.A, p.LDA, i, l, transA) * at(p.B, p.LDB, l, j, transB)
				s += v
				size += math.Abs(v)
			}
			p.want[i*p.LDC+j] = s
			p.bound[i*p.LDC+j] = size * float64(k+4) * 0x1p-24
		}
	}
	return p
}

func (p *halfProduct) check(t *testing.T, c []float32) {
	t.Helper()
	for i := range c {
		if d := math.Abs(float64(c[i]) - p.want[i]); !(d <= p.bound[i]) {
			t.Fatalf("C[%d, %d] = %v, want %v within %v", i/p.LDC, i%p.LDC, c[i], p.want[i], p.bound[i])
		}
	}
}

// eachClass runs a test with every kernel set and every class of bfloat16 products that it has.
func eachClass(t *testing.T, f func(t *testing.T)) {
	eachSet(t, func(t *testing.T) {
		for _, c := range BF16Classes() {
			t.Run(c, func(t *testing.T) {
				back, err := UseBF16(c)
				if err != nil {
					t.Fatal(err)
				}
				defer back()
				f(t)
			})
		}
	})
}

func TestGemmBF16(t *testing.T) {
	r := rand.New(rand.NewPCG(41, 42))
	var products []*halfProduct
	sizes := []int{1, 2, 3, 15, 16, 17, 29, 31, 32, 33, 47, 63, 64, 65, 96, 100, 129}
	pick := func() int { return sizes[r.IntN(len(sizes))] }
	for i := range 160 {
		products = append(products, newHalfProduct(r, pick(), pick(), pick(), i&1 != 0, i&2 != 0, i&4 != 0))
	}
	for i := range 8 { // several blocks of k and strips of columns
		products = append(products, newHalfProduct(r, 3+i, 5+i, bf16KC+1+63*i, i&1 != 0, i&2 != 0, i&4 != 0))
		products = append(products, newHalfProduct(r, 2, gemmNC+1+16*i, 3, i&1 != 0, i&2 != 0, i&4 != 0))
	}
	products = append(products, newHalfProduct(r, 3, 4, 0, false, true, false), newHalfProduct(r, 3, 4, 0, false, true, true))
	eachClass(t, func(t *testing.T) {
		for _, p := range products {
			t.Run(fmt.Sprintf("%dx%dx%d", p.M, p.N, p.K), func(t *testing.T) {
				g := p.GemmBF16Args
				g.C = append([]float32(nil), p.C...)
				Fill(g.Packed, float32(math.NaN()))
				GemmBF16Pack(&g, 0, g.K, 0, g.N)
				scratch := make([]float32, GemmBF16Scratch(&g))
				Fill(scratch, float32(math.NaN()))
				GemmBF16(&g, 0, g.M, 0, g.N, scratch)
				p.check(t, g.C)
				whole := append([]float32(nil), g.C...)

				// In pieces, last first: the same bits.
				g.C = append(g.C[:0], p.C...)
				Fill(g.Packed, float32(math.NaN()))
				steps, width := GemmBF16PackSteps(&g), gemmNR*(1+r.IntN(3))
				for k := (max(g.K, 1) - 1) / steps * steps; k >= 0; k -= steps {
					for j := (g.N - 1) / width * width; j >= 0; j -= width {
						GemmBF16Pack(&g, k, min(k+steps, g.K), j, min(j+width, g.N))
					}
				}
				mb := 1 + r.IntN(g.M)
				for i := (g.M - 1) / mb * mb; i >= 0; i -= mb {
					for j := 0; j < g.N; j += width {
						GemmBF16(&g, i, min(i+mb, g.M), j, min(j+width, g.N), scratch)
					}
				}
				for i, v := range g.C {
					if !sameBits(v, whole[i]) {
						t.Fatalf("C[%d, %d] = %v in pieces, %v at once", i/g.LDC, i%g.LDC, v, whole[i])
					}
				}
			})
		}
	})
}

func TestGemmBF16IsExactOnIntegers(t *testing.T) {
	eachClass(t, func(t *testing.T) {
		const m, n, k = 37, 41, 130
		g := GemmBF16Args{M: m, N: n, K: k, LDA: k, LDB: k, LDC: n, TransB: true}
		a, b := make([]float32, m*k), make([]float32, n*k)
		for i := range a {
			a[i] = float32(i%17 - 8)
		}
		for i := range b {
			b[i] = float32(i%13 - 6)
		}
		g.A, g.B, g.C = make([]uint16, m*k), make([]uint16, n*k), make([]float32, m*n)
		F32ToBF16(g.A, a)
		F32ToBF16(g.B, b)
		g.Packed = make([]float32, GemmBF16Packed(&g))
		GemmBF16Pack(&g, 0, k, 0, n)
		GemmBF16(&g, 0, m, 0, n, make([]float32, GemmBF16Scratch(&g)))
		for i := range m {
			for j := range n {
				want := float32(0)
				for l := range k {
					want += float32(a[i*k+l] * b[j*k+l])
				}
				if g.C[i*n+j] != want {
					t.Fatalf("C[%d, %d] = %v, want %v", i, j, g.C[i*n+j], want)
				}
			}
		}
	})
}

func TestBF16Class(t *testing.T) {
	eachSet(t, func(t *testing.T) {
		classes := BF16Classes()
		if Active() != "avx512" && len(classes) != 1 || classes[0] != BF16FMA {
			t.Errorf("classes %q", classes)
		}
		if got, want := BF16Class(), classes[len(classes)-1]; got != want {
			t.Errorf("class %q, want %q", got, want)
		}
		for _, c := range classes {
			back, err := UseBF16(c)
			if err != nil {
				t.Fatal(err)
			}
			if got := BF16Class(); got != c {
				t.Errorf("class %q, want %q", got, c)
			}
			back()
		}
		if _, err := UseBF16("int8"); err == nil || !strings.Contains(err.Error(), `unknown class of bfloat16 products "int8"`) {
			t.Errorf("no class: %v", err)
		}
		if Active() == "generic" {
			if _, err := UseBF16(BF16Tiles); err == nil || !strings.Contains(err.Error(), "it has fma") {
				t.Errorf("a class that plain Go lacks: %v", err)
			}
		}
	})
}

func BenchmarkGemmBF16(b *testing.B) {
	for _, class := range BF16Classes() {
		for _, s := range []struct {
			m, n, k        int
			transA, transB bool
		}{{3072, 1152, 384, false, true}, {3072, 1536, 384, false, true}, {3072, 384, 1536, false, true}, {3072, 384, 1536, false, false}, {1536, 384, 3072, true, false}, {1024, 1024, 1024, false, false}} {
			b.Run(fmt.Sprintf("%s %dx%dx%d %v %v", class, s.m, s.n, s.k, s.transA, s.transB), func(b *testing.B) {
				back, err := UseBF16(class)
				if err != nil {
					b.Fatal(err)
				}
				defer back()
				p := GemmBF16Args{M: s.m, N: s.n, K: s.k, TransA: s.transA, TransB: s.transB, LDA: s.k, LDB: s.n, LDC: s.n}
				if s.transA {
					p.LDA = s.m
				}
				if s.transB {
					p.LDB = s.k
				}
				p.A, p.B, p.C = make([]uint16, s.m*s.k), make([]uint16, s.n*s.k), make([]float32, s.m*s.n)
				p.Packed = make([]float32, GemmBF16Packed(&p))
				scratch := make([]float32, GemmBF16Scratch(&p))
				for b.Loop() {
					GemmBF16Pack(&p, 0, s.k, 0, s.n)
					GemmBF16(&p, 0, s.m, 0, s.n, scratch)
				}
				b.ReportMetric(2*float64(s.m)*float64(s.n)*float64(s.k)*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
			})
		}
	}
}

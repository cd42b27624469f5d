package vec

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// dotPair is what VDPBF16PS makes of one element and the pairs a0, a1 and b0, b1.
func dotPair(c float32, a0, a1, b0, b1 uint16) float32 {
	return flushedFMA(a0, b0, flushedFMA(a1, b1, c))
}

// flushedFMA is a·b + c, where numbers that are subnormal count as zero and a sum is one if it lies below the least normal number when
// rounded to 24 bits with an exponent that has no end.
func flushedFMA(a, b uint16, c float32) float32 {
	x, y := asZero(math.Float32frombits(uint32(a)<<16)), asZero(math.Float32frombits(uint32(b)<<16))
	c = asZero(c)
	s := float64(x)*float64(y) + float64(c)
	if s != 0 && math.Abs(s) < 0x1p-120 { // exact but for the last bits, which decide: c and the product may be far apart
		s = oddSum(float64(x)*float64(y), float64(c))
		if math.Abs(s) < 0x1p-126-0x1p-151 {
			return float32(math.Copysign(0, s))
		}
		if math.Abs(s) < 0x1p-126 {
			return float32(math.Copysign(0x1p-126, s))
		}
	}
	return fma32(x, y, c)
}

func asZero(x float32) float32 {
	if u := math.Float32bits(x); u&0x7f800000 == 0 {
		return math.Float32frombits(u & 0x80000000)
	}
	return x
}

// oddSum is p + q rounded to odd.
func oddSum(p, q float64) float64 {
	s := p + q
	t := s - p
	if e := (p - (s - t)) + (q - t); e != 0 && math.Float64bits(s)&1 == 0 {
		if (e > 0) == (s > 0) {
			return math.Float64frombits(math.Float64bits(s) + 1)
		}
		return math.Float64frombits(math.Float64bits(s) - 1)
	}
	return s
}

// chain is an element of the product in class BF16Pairs.
func (p *halfProduct) chain(i, j int) float32 {
	at := func(x []uint16, ld, i, j int, trans bool) uint16 {
		if trans {
			i, j = j, i
		}
		return x[i*ld+j]
	}
	c := float32(0)
	if p.Accumulate {
		c = p.C[i*p.LDC+j]
	}
	for k := 0; k < p.K; k += 2 {
		a, b := [2]uint16{at(p.A, p.LDA, i, k, p.TransA)}, [2]uint16{at(p.B, p.LDB, k, j, p.TransB)}
		if k+1 < p.K {
			a[1], b[1] = at(p.A, p.LDA, i, k+1, p.TransA), at(p.B, p.LDB, k+1, j, p.TransB)
		}
		c = dotPair(c, a[0], a[1], b[0], b[1])
	}
	return c
}

// usePairs makes a test one of class BF16Pairs.
func usePairs(t *testing.T) {
	t.Helper()
	back, err := UseBF16(BF16Pairs)
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(back)
}

// Every element has the bits that the class promises, whatever the shape, the tails and the blocks.
func TestPairsAreTheirChains(t *testing.T) {
	usePairs(t)
	r := rand.New(rand.NewPCG(51, 52))
	sizes := []int{1, 2, 3, 7, 13, 14, 15, 28, 29, 31, 32, 33, 57, 64, 65, 130}
	pick := func() int { return sizes[r.IntN(len(sizes))] }
	for i := range 120 {
		m, n, k := pick(), pick(), pick()
		switch i {
		case 100, 101, 102, 103: // several blocks of k, of rows and of columns
			m, n, k = 3, 5, bf16KC+1+63*(i-100)
		case 104, 105, 106, 107:
			m, n, k = pairsMC+15, 3, 5
		case 108, 109, 110, 111:
			m, n, k = 2, gemmNC+17, 6
		case 116, 117, 118, 119:
			m, n, k = 30, 100, 2100 // panels of a rounded result together
		case 112, 113, 114, 115:
			m, n, k = 17, 133, 2048 // rows a page apart
		}
		p := newHalfProduct(r, m, n, k, i&1 != 0, i&2 != 0, i&4 != 0)
		if !p.TransA && p.K == 2048 {
			a := make([]uint16, m*k)
			for row := range m {
				copy(a[row*k:], p.A[row*p.LDA:][:k])
			}
			p.A, p.LDA = a, k
		}
		t.Run(fmt.Sprintf("%d: %dx%dx%d", i, m, n, k), func(t *testing.T) {
			bias := make([]float32, n)
			for range 2 {
				g := p.GemmBF16Args
				g.C = append([]float32(nil), p.C...)
				if r.IntN(2) == 0 {
					for j := range bias {
						bias[j] = float32(r.NormFloat64())
					}
					g.Bias = bias
				}
				Fill(g.Packed, float32(math.NaN()))
				GemmBF16Pack(&g, 0, k, 0, n)
				scratch := make([]float32, GemmBF16Scratch(&g))
				Fill(scratch, float32(math.NaN()))
				GemmBF16(&g, 0, m, 0, n, scratch)
				for i := range g.C {
					want := p.C[i]
					if i%g.LDC < n {
						want = p.chain(i/g.LDC, i%g.LDC)
					}
					if !sameBits(g.C[i], want) {
						t.Fatalf("C[%d, %d] = %x, want %x", i/g.LDC, i%g.LDC, g.C[i], want)
					}
				}
				if g.Accumulate {
					return
				}
				g.LDO, g.Out = n+3, make([]uint16, m*(n+3))
				scratch = make([]float32, GemmBF16Scratch(&g))
				Fill(scratch, float32(math.NaN()))
				GemmBF16(&g, 0, m, 0, n, scratch)
				var want [1]uint16
				for i := range g.Out {
					want[0] = 0
					if row, j := i/g.LDO, i%g.LDO; j < n {
						v := p.chain(row, j)
						if g.Bias != nil {
							v += bias[j]
						}
						F32ToBF16(want[:], []float32{v})
					}
					if g.Out[i] != want[0] {
						t.Fatalf("Out[%d, %d] = %x, want %x", i/g.LDO, i%g.LDO, g.Out[i], want[0])
					}
				}
			}
		})
	}
}

// Single links, on numbers of every kind: this is the processor's arithmetic beside what the package says of it.
func TestPairsOfAllNumbers(t *testing.T) {
	usePairs(t)
	r := rand.New(rand.NewPCG(53, 54))
	special := []uint16{0, 0x8000, 0x7f80, 0xff80, 0x7fc0, 1, 0x8001, 0x7f, 0x80, 0x3f80, 0xbf80, 0x7f7f, 0xff7f, 0x7f81}
	number := func(low, spread int) uint16 {
		return uint16(r.UintN(2)<<15) | uint16(low+r.IntN(spread))<<7 | uint16(r.UintN(128))
	}
	wide := func(x uint16) float32 { return math.Float32frombits(uint32(x) << 16) }
	draw := []func(a, b []uint16) float32{
		func(a, b []uint16) float32 { // any bits
			a[0], a[1], b[0], b[1] = uint16(r.Uint32()), uint16(r.Uint32()), uint16(r.Uint32()), uint16(r.Uint32())
			return math.Float32frombits(r.Uint32())
		},
		func(a, b []uint16) float32 { // of one size
			a[0], a[1], b[0], b[1] = number(125, 4), number(125, 4), number(125, 4), number(125, 4)
			return float32(r.NormFloat64())
		},
		func(a, b []uint16) float32 { // sums that nearly cancel
			a[0], a[1], b[0], b[1] = number(117, 20), number(117, 20), number(117, 20), number(117, 20)
			c := -(wide(a[0])*wide(b[0]) + wide(a[1])*wide(b[1]))
			return math.Float32frombits(math.Float32bits(c) + r.Uint32N(5) - 2)
		},
		func(a, b []uint16) float32 { // around the least normal number
			a[0], a[1], b[0], b[1] = number(30, 40), number(30, 40), number(30, 40), number(30, 40)
			return math.Float32frombits(r.Uint32()&0x80000000 | r.Uint32()&0x027fffff)
		},
		func(a, b []uint16) float32 { // just below it
			a[0], b[0] = uint16(r.UintN(2)<<15)|uint16(52+r.IntN(6))<<7|uint16(r.UintN(128)), uint16(47)<<7
			a[1], b[1] = uint16(r.UintN(2)<<15)|uint16(52+r.IntN(6))<<7, uint16(47)<<7
			return math.Float32frombits(r.Uint32()&0x80000000 | 0x800000 + r.Uint32N(2))
		},
		func(a, b []uint16) float32 { // around the largest
			a[0], a[1], b[0], b[1] = number(180, 20), number(180, 20), number(180, 20), number(180, 20)
			return math.Float32frombits(r.Uint32()&0x80000000 | 0x7e000000 + r.Uint32N(0x2000000))
		},
		func(a, b []uint16) float32 { // zeros, infinities, NaN
			for i := range 2 {
				a[i], b[i] = special[r.IntN(len(special))], special[r.IntN(len(special))]
			}
			return wide(special[r.IntN(len(special))])
		},
	}
	for kind, f := range draw {
		for range 4000 {
			const m, n = 3, 5 // A is constant along rows of C, B along columns: each element has numbers of its own in C alone
			a, b, c := make([]uint16, 2*m), make([]uint16, 2*n), make([]float32, m*n)
			for i := range c {
				c[i] = f(a[2*(i%m):], b[2*(i%n):])
			}
			g := GemmBF16Args{M: m, N: n, K: 2, A: a, LDA: 2, B: b, LDB: 2, TransB: true, C: append([]float32(nil), c...), LDC: n, Accumulate: true}
			g.Packed = make([]float32, GemmBF16Packed(&g))
			GemmBF16Pack(&g, 0, 2, 0, n)
			GemmBF16(&g, 0, m, 0, n, make([]float32, GemmBF16Scratch(&g)))
			for i, got := range g.C {
				x, y := a[2*(i/n):], b[2*(i%n):]
				if want := dotPair(c[i], x[0], x[1], y[0], y[1]); !sameBits(got, want) {
					t.Fatalf("kind %d: %x + %04x·%04x, %04x·%04x = %x, want %x", kind, c[i], x[1], y[1], x[0], y[0], got, want)
				}
			}
		}
	}
}

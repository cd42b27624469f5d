package vec

import "fmt"

// GemmBF16Args describes C = op(A)·op(B), or C += op(A)·op(B), as [GemmArgs] does,
// with A and B in bfloat16 and C in float32.
type GemmBF16Args struct {
	M, N, K int

	A      []uint16
	LDA    int
	TransA bool // A is stored as [K, M]

	B      []uint16
	LDB    int
	TransB bool // B is stored as [N, K]

	C          []float32
	LDC        int
	Accumulate bool

	// Out, where it is set, takes the result instead of C: rounded to bfloat16 once, after Bias, where that is set, was added to
	// each row in float32. Accumulate has no meaning then.
	Out  []uint16
	LDO  int
	Bias []float32

	// Packed has GemmBF16Packed(g) elements that GemmBF16Pack has filled.
	Packed []float32
}

const (
	bf16KC = 512 // elements of k per block: panels of A and B stay in the first-level cache, or near it
	bf16MC = 416 // rows of a transposed A that are copied at a time, in whole panels
	bf16MR = 32  // rows of two tiles
)

// bf16Steps is the elements of a block of k, in whole pairs of steps.
func bf16Steps(k int) int {
	k = max(k, 1)
	blocks := (k + bf16KC - 1) / bf16KC
	return roundUp((k+blocks-1)/blocks, 64)
}

func (g *GemmBF16Args) check() {
	f := GemmArgs{M: g.M, N: g.N, K: g.K}
	if f.M < 0 || f.N < 0 || f.K < 0 {
		f.check()
	}
	matrix := func(name string, rows, cols, ld, n int, trans bool) {
		if trans {
			rows, cols = cols, rows
		}
		if rows > 0 && cols > 0 && (ld < cols || (rows-1)*ld+cols > n) {
			panic(fmt.Sprintf("vec.GemmBF16: %s has %d elements and stride %d, too few for %d rows of %d", name, n, ld, rows, cols))
		}
	}
	matrix("A", g.M, g.K, g.LDA, len(g.A), g.TransA)
	matrix("B", g.K, g.N, g.LDB, len(g.B), g.TransB)
	if g.Out == nil {
		matrix("C", g.M, g.N, g.LDC, len(g.C), false)
	} else {
		matrix("Out", g.M, g.N, g.LDO, len(g.Out), false)
	}
	if g.Bias != nil && len(g.Bias) != g.N {
		panic(fmt.Sprintf("vec.GemmBF16: Bias has %d elements for %d columns", len(g.Bias), g.N))
	}
	if need := GemmBF16Packed(g); len(g.Packed) < need {
		panic(fmt.Sprintf("vec.GemmBF16: packed B of %d elements, need %d", len(g.Packed), need))
	}
}

// GemmBF16Packed is the number of float32 elements that op(B) takes when packed.
func GemmBF16Packed(g *GemmBF16Args) int { return roundUp(g.K, 64) / 2 * roundUp(g.N, gemmNR) }

// GemmBF16PackSteps is the unit in which GemmBF16Pack cuts k.
func GemmBF16PackSteps(g *GemmBF16Args) int { return bf16Steps(g.K) }

// GemmBF16Pack fills g.Packed with steps k0 to k1 and columns j0 to j1 of op(B), under the
// rules of GemmPack.
func GemmBF16Pack(g *GemmBF16Args, k0, k1, j0, j1 int) {
	g.check()
	kc := bf16Steps(g.K)
	if k0 < 0 || k0 > k1 || k1 > g.K || k0%kc != 0 || k1%kc != 0 && k1 != g.K ||
		j0 < 0 || j0 > j1 || j1 > g.N || j0%gemmNR != 0 || j1%gemmNR != 0 && j1 != g.N {
		panic(fmt.Sprintf("vec.GemmBF16Pack: steps [%d, %d) and columns [%d, %d) of %d by %d are no whole panels", k0, k1, j0, j1, g.K, g.N))
	}
	if arith() != arithFMA {
		packTiles(g, k0, k1, j0, j1)
	}
}

// Where BF16FMA is used, blocks of A and B are widened in pieces.
const (
	wideRows = 128
	wideK    = gemmKC
	wideCols = gemmNC
)

// GemmBF16Scratch is the number of scratch elements that any block of g needs.
func GemmBF16Scratch(g *GemmBF16Args) int {
	k := min(g.K, wideK)
	f := GemmArgs{M: wideRows, N: min(g.N, wideCols), K: k}
	wide := wideRows*k + k*f.N + GemmScratch(&f)
	rows := bf16MR
	if g.TransA {
		rows = roundUp(min(g.M, bf16MC), bf16MR) + bf16MR
	}
	tiles := bf16MR*gemmNR + rows*(bf16KC+64)/2 // a tail of C; copied rows of A, and one panel of them in pairs
	if g.Out != nil {                           // what is not rounded yet
		wide += wideRows * f.N
		tiles += bf16MR * min(roundUp(g.N, gemmNR), roundedCols)
	}
	return max(wide, tiles, pairsScratch(g))
}

// Of a result that is rounded, panels of bf16MR rows and at most roundedCols columns are made whole before the next, so that sums
// are rounded where the first-level cache has them; fewer columns where their part of B, over all k, would be more
// than roundedB elements, which the second-level cache keeps.
const (
	roundedCols = 512
	roundedB    = 1 << 19
)

const (
	// pairsMC is the rows of a transposed A that are copied at a time, in pairs of panels.
	pairsMC = 28 * gemmMR
	// pairsB is like roundedB, for smaller second-level caches.
	pairsB = 1 << 18
	// roundedPanels are made together where their part of B is larger.
	roundedPanels = 8
)

// pairsScratch is what pairsBlock and pairsRounded need at most.
func pairsScratch(g *GemmBF16Args) int {
	need := gemmMR * bf16KC / 2 // a panel of A
	if g.TransA {
		panels := (min(g.M, pairsMC) + gemmMR - 1) / gemmMR
		need = (panels + 1) / 2 * gemmNR * bf16KC / 2
	}
	if g.Out != nil {
		need += roundedPanels * gemmMR * min(roundUp(g.N, gemmNR), roundedCols)
	}
	return need
}

// round stores rows of sums, ld apart, as rows i and columns j on of the result.
func (g *GemmBF16Args) round(sums []float32, ld, i, rows, j, cols int) {
	for r := range rows {
		to, from := g.Out[(i+r)*g.LDO+j:][:cols], sums[r*ld:][:cols]
		if g.Bias == nil {
			f32ToBF16(to, from)
		} else {
			addRound(to, from, g.Bias[j:j+cols])
		}
	}
}

// GemmBF16 computes rows i0 to i1 (exclusive) and columns j0 to j1 of C; j0 is a multiple of 32. scratch
// holds at least GemmBF16Scratch(g) elements and nothing of value.
func GemmBF16(g *GemmBF16Args, i0, i1, j0, j1 int, scratch []float32) {
	g.check()
	if i0 < 0 || i1 > g.M || i0 > i1 || j0 < 0 || j1 > g.N || j0 > j1 || j0%gemmNR != 0 {
		panic(fmt.Sprintf("vec.GemmBF16: block [%d, %d) by [%d, %d) outside C of %d by %d, or its columns begin at no multiple of %d", i0, i1, j0, j1, g.M, g.N, gemmNR))
	}
	if need := GemmBF16Scratch(g); len(scratch) < need {
		panic(fmt.Sprintf("vec.GemmBF16: scratch of %d elements, need %d", len(scratch), need))
	}
	switch {
	case i0 == i1 || j0 == j1:
	case g.Out != nil && arith() == arithTiles && g.K > 0:
		tilesRounded(g, i0, i1, j0, j1, scratch)
	case g.Out != nil && arith() == arithPairs && g.K > 0:
		pairsRounded(g, i0, i1, j0, j1, scratch)
	case g.Out != nil:
		wideRounded(g, i0, i1, j0, j1, scratch)
	case g.K == 0:
		if !g.Accumulate {
			for i := i0; i < i1; i++ {
				clear(g.C[i*g.LDC+j0 : i*g.LDC+j1])
			}
		}
	case arith() == arithTiles:
		tilesBlock(g, i0, i1, j0, j1, scratch)
	case arith() == arithPairs:
		pairsBlock(g, i0, i1, j0, j1, scratch)
	default:
		wideBlock(g, i0, i1, j0, j1, scratch)
	}
}

// wideBlock widens pieces of A and B and multiplies those.
func wideBlock(g *GemmBF16Args, i0, i1, j0, j1 int, scratch []float32) {
	wideInto(g, g.C[i0*g.LDC+j0:], g.LDC, i0, i1, j0, j1, scratch)
}

// wideInto computes a block of the result to c, whose rows lie ldc apart.
func wideInto(g *GemmBF16Args, c []float32, ldc, i0, i1, j0, j1 int, scratch []float32) {
	for j := j0; j < j1; j += wideCols {
		n := min(wideCols, j1-j)
		for k := 0; k < g.K; k += wideK {
			steps := min(wideK, g.K-k)
			b, rest := scratch[:steps*n], scratch[steps*n:]
			ldb := widen(b, g.B, g.LDB, g.TransB, k, steps, j, n)
			for i := i0; i < i1; i += wideRows {
				m := min(wideRows, i1-i)
				a, free := rest[:m*steps], rest[m*steps:]
				lda := widen(a, g.A, g.LDA, g.TransA, i, m, k, steps)
				f := GemmArgs{
					M: m, N: n, K: steps, A: a, LDA: lda, TransA: g.TransA, B: b, LDB: ldb, TransB: g.TransB,
					C: c[(i-i0)*ldc+j-j0:], LDC: ldc, Accumulate: g.Accumulate || k > 0,
				}
				Gemm(&f, 0, m, 0, n, free)
			}
		}
	}
}

// wideRounded is wideBlock for a result that is rounded.
func wideRounded(g *GemmBF16Args, i0, i1, j0, j1 int, scratch []float32) {
	q := *g
	q.Out, q.Bias, q.Accumulate = nil, nil, false
	for j := j0; j < j1; j += wideCols {
		n := min(wideCols, j1-j)
		sums, rest := scratch[:wideRows*n], scratch[wideRows*n:]
		for i := i0; i < i1; i += wideRows {
			m := min(wideRows, i1-i)
			if g.K == 0 {
				clear(sums)
			} else {
				wideInto(&q, sums, n, i, i+m, j, j+n, rest)
			}
			g.round(sums, n, i, m, j, n)
		}
	}
}

// widen copies rows and columns of a matrix, which trans says are stored the other way round, and returns the copy's stride.
func widen(dst []float32, x []uint16, ld int, trans bool, r, rows, c, cols int) int {
	if trans {
		r, rows, c, cols = c, cols, r, rows
	}
	for i := range rows {
		bf16ToF32(dst[i*cols:(i+1)*cols], x[(r+i)*ld+c:][:cols])
	}
	return cols
}

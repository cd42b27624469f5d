package vec

import "unsafe"

// hasPairs says that the processor has AVX512_BF16, dot products of pairs of bfloat16 in vectors of float32, and computes them as
// BF16Class promises.
var hasPairs = cpuHasPairs() && pairsKeepPromise()

func cpuHasPairs() bool {
	if sets := supportedSets(); sets[len(sets)-1] != setAVX512 {
		return false
	}
	const bf16 = 1 << 5 // leaf 7.1, EAX
	sub, _, _, _ := cpuid(7, 0)
	if sub < 1 {
		return false
	}
	a, _, _, _ := cpuid(7, 1)
	return a&bf16 != 0
}

// pairCase is one link of a chain.
type pairCase struct {
	c    float32
	a, b [2]uint16
	want float32
}

// pairCases tell the arithmetic of BF16Pairs from others that a processor could have: each fails if the pair is added in another order, in one
// rounding, or with subnormal numbers kept or judged before they are rounded.
var pairCases = []pairCase{
	{1, [2]uint16{0xb380, 0x3380}, [2]uint16{0x3f80, 0x3f80}, 1 - 0x1p-24},     // 1 + 2⁻²⁴ is rounded to even before 2⁻²⁴ is taken off
	{1, [2]uint16{0xbf80, 0x3380}, [2]uint16{0x3f80, 0x3f00}, 0},               // 2⁻²⁵ is lost beside 1, which cancels then
	{0x1p-127, [2]uint16{0, 0x3f80}, [2]uint16{0, 0x0100}, 0x1p-125},           // a subnormal number to begin with
	{1, [2]uint16{0x0040, 0}, [2]uint16{0x7f00, 0}, 1},                         // a subnormal operand, whose product would count
	{0x1p-126, [2]uint16{0, 0x8080}, [2]uint16{0, 0x3300}, 0x1p-126},           // less 2⁻¹⁵¹: half of what the 24th bit means there
	{0x1p-126, [2]uint16{0, 0x8081}, [2]uint16{0, 0x3300}, 0},                  // less a little more: subnormal
	{0x1p-126, [2]uint16{0x0100, 0x8080}, [2]uint16{0x3f80, 0x3f00}, 0x1p-125}, // 2⁻¹²⁷ is zero before 2⁻¹²⁵ is added
}

func pairsKeepPromise() bool {
	for _, p := range pairCases {
		a := uint32(p.a[0]) | uint32(p.a[1])<<16
		var b [gemmNR]uint32
		b[0] = uint32(p.b[0]) | uint32(p.b[1])<<16
		c := p.c
		pairTileRows1AVX512(1, (*float32)(unsafe.Pointer(&a)), 4, (*float32)(unsafe.Pointer(&b[0])), 128, 128, &c, 4, 1, 1, (*float32)(unsafe.Pointer(&a)), 0, nil)
		if c != p.want {
			return false
		}
	}
	return true
}

// Tiles of pairs are those of float32 with a pair, neighbours in k, in the place of an element of A and of B.
var (
	pairRows = [...]tileFunc{
		nil, pairTileRows1AVX512, pairTileRows2AVX512, pairTileRows3AVX512, pairTileRows4AVX512, pairTileRows5AVX512,
		pairTileRows6AVX512, pairTileRows7AVX512, pairTileRows8AVX512, pairTileRows9AVX512, pairTileRows10AVX512,
		pairTileRows11AVX512, pairTileRows12AVX512, pairTileRows13AVX512, pairTileRows14AVX512,
	}
	pairSteps = [...]tileFunc{
		nil, pairTileSteps1AVX512, pairTileSteps2AVX512, pairTileSteps3AVX512, pairTileSteps4AVX512, pairTileSteps5AVX512,
		pairTileSteps6AVX512, pairTileSteps7AVX512, pairTileSteps8AVX512, pairTileSteps9AVX512, pairTileSteps10AVX512,
		pairTileSteps11AVX512, pairTileSteps12AVX512, pairTileSteps13AVX512, pairTileSteps14AVX512,
	}
)

// rowSplit spreads rows i0 to i1 evenly over panels, so that none is thin.
type rowSplit struct{ i0, rows, panels int }

func splitRows(i0, i1 int) rowSplit {
	return rowSplit{i0, i1 - i0, (i1 - i0 + gemmMR - 1) / gemmMR}
}

// at is the first row of panel p.
func (s rowSplit) at(p int) int { return s.i0 + s.rows*p/s.panels }

// pairsBlock multiplies panels of 14 rows by panels of 32 columns. A transposed A is copied for all columns of the block.
func pairsBlock(g *GemmBF16Args, i0, i1, j0, j1 int, scratch []float32) {
	kc := bf16Steps(g.K)
	for i := i0; i < i1; i += pairsMC {
		end := min(i+pairsMC, i1)
		for k := 0; k < g.K; k += kc {
			steps := min(kc, g.K-k)
			rows := splitRows(i, end)
			if g.TransA {
				copyPairs(g, rows, k, steps, scratch)
			}
			for j := j0; j < j1; j += gemmNC {
				pairsPanels(g, rows, k, steps, j, min(gemmNC, j1-j), g.C[i*g.LDC+j:], g.LDC, g.Accumulate || k > 0, scratch)
			}
		}
	}
}

// pairsPanels multiplies one block of k for some rows and n columns from j on into c, whose rows lie ldc apart.
func pairsPanels(g *GemmBF16Args, rows rowSplit, k, steps, j, n int, c []float32, ldc int, load bool, copied []float32) {
	b := g.panelB(k, steps, j)
	for p := range rows.panels {
		i := rows.at(p)
		a := g.pairsA(rows, p, k, steps, n, copied)
		a.multiply(&c[(i-rows.i0)*ldc], ldc, rows.at(p+1)-i, n, b, steps, load)
	}
}

// pairsRounded makes panels of a result that is rounded, each over all k: one at a time where the second-level cache keeps their part of B over
// all k, else several, which share a block of it.
func pairsRounded(g *GemmBF16Args, i0, i1, j0, j1 int, scratch []float32) {
	kc := bf16Steps(g.K)
	together, width := 1, min(roundedCols, pairsB/g.K&^(gemmNR-1))
	if width < min(4*gemmNR, roundUp(j1-j0, gemmNR)) {
		together, width = roundedPanels, roundedCols
	}
	ld := min(roundUp(g.N, gemmNR), roundedCols)
	sums, copied := scratch[:roundedPanels*gemmMR*ld], scratch[roundedPanels*gemmMR*ld:]
	all := splitRows(i0, i1)
	for j := j0; j < j1; j += width {
		n := min(width, j1-j)
		for first := 0; first < all.panels; first += together {
			i, end := all.at(first), all.at(min(first+together, all.panels))
			rows := splitRows(i, end)
			for k := 0; k < g.K; k += kc {
				steps := min(kc, g.K-k)
				if g.TransA {
					copyPairs(g, rows, k, steps, copied)
				}
				pairsPanels(g, rows, k, steps, j, n, sums, ld, k > 0, copied)
			}
			g.round(sums, ld, i, end-i, j, n)
		}
	}
}

// pairsOperand says where a panel of op(A) lies, its strides in bytes, and what is fetched meanwhile.
type pairsOperand struct {
	start, next *float32
	ld          int
	byStep      bool
}

// copyPairs copies rows of a transposed A as pairs of steps: two panels side by side in rows of 32. A few steps are read at a time, each along all
// panels: rows of A as it is stored may lie pages apart.
func copyPairs(g *GemmBF16Args, rows rowSplit, k, steps int, dst []float32) {
	high := (steps + 1) / 2
	for y := 0; y < steps; y += packRows {
		for p := 0; p < rows.panels; p += 2 {
			i := rows.at(p)
			packTileColumns(g.A, g.LDA, k+y, min(packRows, steps-y), i, rows.at(min(p+2, rows.panels))-i, dst[(p/2*high+y/2)*gemmNR:])
		}
	}
}

// pairsA is panel p of some rows of op(A), one block of k; those of a transposed A have been copied.
func (g *GemmBF16Args) pairsA(rows rowSplit, p, k, steps, n int, copied []float32) pairsOperand {
	i := rows.at(p)
	if g.TransA {
		from := &copied[p/2*((steps+1)/2)*gemmNR+i-rows.at(p&^1)]
		return pairsOperand{start: from, next: from, ld: 4 * gemmNR, byStep: true}
	}
	// A last step without a partner is copied, and rows whose distance would put them all into a few sets of the first-level cache.
	if m := rows.at(p+1) - i; steps%2 != 0 || g.LDA%2048 == 0 && n >= 4*gemmNR && m > 2 {
		high := (steps + 1) / 2
		words := unsafe.Slice((*uint16)(unsafe.Pointer(&copied[0])), 2*m*high)
		for r := range m {
			to := words[2*high*r:][:2*high]
			to[2*high-1] = 0
			copy(to, g.A[(i+r)*g.LDA+k:][:steps])
		}
		return pairsOperand{start: &copied[0], next: &copied[0], ld: 4 * high}
	}
	a := pairsOperand{start: g.pairAt(i, k), ld: 2 * g.LDA}
	switch kc := bf16Steps(g.K); {
	case p+1 < rows.panels:
		a.next = g.pairAt(rows.at(p+1), k)
	case k+kc < g.K:
		a.next = g.pairAt(rows.at(0), k+kc)
	default:
		a.next = a.start
	}
	return a
}

func (g *GemmBF16Args) pairAt(i, k int) *float32 {
	return (*float32)(unsafe.Pointer(&g.A[i*g.LDA+k]))
}

// multiply computes m rows and n columns of C, whose rows lie ldc apart, over one block of k.
func (a pairsOperand) multiply(c *float32, ldc, m, n int, b []float32, steps int, load bool) {
	flag, tile := 0, pairRows[m]
	if load {
		flag = 1
	}
	if a.byStep {
		tile = pairSteps[m]
	}
	tile((steps+1)/2, a.start, a.ld, &b[0], 4*gemmNR, 4*gemmNR*roundUp(steps, 64)/2, c, 4*ldc, n, flag, a.next, 0, nil)
}

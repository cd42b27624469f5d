package vec

import "unsafe"

// tileFunc multiplies some rows of A by n columns of packed or unpacked B;
// strides are in bytes. Meanwhile it fetches what is needed next: two rows of A
// from pf on for each panel of B (byRow), or lines pfstep bytes apart (byStep).
type tileFunc func(k int, a *float32, lda int, b *float32, ldb, bpanel int, c *float32, ldc, n, load int, pf *float32, pfstep int, bias *float32)

// tiling is a kernel set's tile: how high, how wide, and its functions by
// height.
type tiling struct {
	rows, cols     int
	byRow, byStep  [gemmMR + 1]tileFunc                                   // A stored by rows; by steps of k
	packColumns    func(k int, src *float32, ld int, dst *float32, n int) // to rows of cols elements
	packSteps      func(k int, src *float32, ld int, dst *float32, n int) // to rows of stepWidth elements
	packTransposed func(k int, src *float32, ld int, dst *float32)
	square         int  // rows that packTransposed takes at once
	stepWidth      int  // a step of a packed panel of A
	masksB         bool // reads no column of B past n
}

var tiles512 = tiling{
	rows: 14, cols: 32,
	byRow: [...]tileFunc{
		nil, gemmTileRows1AVX512, gemmTileRows2AVX512, gemmTileRows3AVX512, gemmTileRows4AVX512,
		gemmTileRows5AVX512, gemmTileRows6AVX512, gemmTileRows7AVX512, gemmTileRows8AVX512,
		gemmTileRows9AVX512, gemmTileRows10AVX512, gemmTileRows11AVX512, gemmTileRows12AVX512,
		gemmTileRows13AVX512, gemmTileRows14AVX512,
	},
	byStep: [...]tileFunc{
		nil, gemmTileSteps1AVX512, gemmTileSteps2AVX512, gemmTileSteps3AVX512, gemmTileSteps4AVX512,
		gemmTileSteps5AVX512, gemmTileSteps6AVX512, gemmTileSteps7AVX512, gemmTileSteps8AVX512,
		gemmTileSteps9AVX512, gemmTileSteps10AVX512, gemmTileSteps11AVX512, gemmTileSteps12AVX512,
		gemmTileSteps13AVX512, gemmTileSteps14AVX512,
	},
	packColumns:    packColumnsAVX512,
	packSteps:      packStepsAVX512,
	stepWidth:      16,
	packTransposed: packTransposedAVX512,
	square:         16,
	masksB:         true,
}

var tiles256 = tiling{
	rows: 6, cols: 16,
	byRow: [gemmMR + 1]tileFunc{
		nil, gemmTileRows1AVX2, gemmTileRows2AVX2, gemmTileRows3AVX2, gemmTileRows4AVX2, gemmTileRows5AVX2, gemmTileRows6AVX2,
	},
	byStep: [gemmMR + 1]tileFunc{
		nil, gemmTileSteps1AVX2, gemmTileSteps2AVX2, gemmTileSteps3AVX2, gemmTileSteps4AVX2, gemmTileSteps5AVX2, gemmTileSteps6AVX2,
	},
	packColumns:    packColumnsAVX2,
	packSteps:      packStepsAVX2,
	stepWidth:      8,
	packTransposed: packTransposedAVX2,
	square:         8,
}

func gemmBlock(g *GemmArgs, i0, i1, j0, j1 int, scratch []float32) {
	switch active {
	case setAVX512:
		tiles512.block(g, i0, i1, j0, j1, scratch)
	case setAVX2:
		tiles256.block(g, i0, i1, j0, j1, scratch)
	default:
		gemmGeneric(g, i0, i1, j0, j1)
	}
}

// block walks C in strips of gemmNC columns and k in blocks of at most gemmKC,
// packs that part of B unless it is packed already, and runs the tiles over panels
// of rows.
func (t *tiling) block(g *GemmArgs, i0, i1, j0, j1 int, scratch []float32) {
	kc := blockSteps(g.K)
	for j := j0; j < j1; j += gemmNC {
		n := min(gemmNC, j1-j)
		for k := 0; k < g.K; k += kc {
			steps := min(kc, g.K-k)
			rest := scratch
			var b operandB
			if g.Packed != nil {
				b = t.packed(g, k, steps, j)
			} else {
				b = t.packB(g, i1-i0, k, steps, j, n, scratch)
				rest = scratch[roundUp(steps, packSquare)*roundUp(n, t.cols):]
			}
			load := 0
			if g.Accumulate || k > 0 {
				load = 1
			}
			var bias []float32
			if g.Bias != nil && k+kc >= g.K {
				bias = g.Bias[j:]
			}
			t.panels(g, i0, i1, k, steps, b, j, n, load, bias, rest)
		}
	}
}

// packed is where block k of a packed B has column j, which begins a panel.
func (t *tiling) packed(g *GemmArgs, k, steps, j int) operandB {
	high := roundUp(steps, packSquare)
	return operandB{&g.Packed[k*roundUp(g.N, gemmNR)+j*high], 4 * t.cols, 4 * t.cols * high}
}

func gemmPack(g *GemmArgs, k0, k1, j0, j1 int) {
	var t *tiling
	switch active {
	case setAVX512:
		t = &tiles512
	case setAVX2:
		t = &tiles256
	default:
		return
	}
	kc := blockSteps(g.K)
	for k := k0; k < k1; k += kc {
		steps := min(kc, g.K-k)
		for j := j0; j < j1; j += gemmNC {
			t.copyB(g, k, steps, j, min(gemmNC, j1-j), g.Packed[k*roundUp(g.N, gemmNR)+j*roundUp(steps, packSquare):])
		}
	}
}

// operandB says where a block of op(B) lies: panel p's step k begins p·panel +
// k·ld bytes after the start.
type operandB struct {
	start     *float32
	ld, panel int
}

// directB is the elements of a B that is read where it lies even by a few more panels of A: it stays
// in the first-level cache or near it.
const directB = 16 << 10

// packRows rows are copied at a time, so that a pass over the columns stays
// in few pages.
const packRows = 32

// packB copies kc steps and n columns of op(B), from (k, j), into panels of
// t.cols columns, unless so few rows of C use them that copying would not pay.
func (t *tiling) packB(g *GemmArgs, rows, k, kc, j, n int, scratch []float32) operandB {
	few := rows <= 2*t.rows || rows <= 10*t.rows && kc*n <= directB
	if !g.TransB && few && (t.masksB || n%t.cols == 0) {
		return operandB{&g.B[k*g.LDB+j], 4 * g.LDB, 4 * t.cols}
	}
	t.copyB(g, k, kc, j, n, scratch)
	return operandB{&scratch[0], 4 * t.cols, 4 * t.cols * roundUp(kc, packSquare)}
}

// copyB copies kc steps and n columns of op(B) into panels, which lie a whole
// number of squares apart.
func (t *tiling) copyB(g *GemmArgs, k, kc, j, n int, dst []float32) {
	if g.TransB {
		t.copyBTransposed(g, k, kc, j, n, dst)
		return
	}
	high := roundUp(kc, packSquare)
	for y := 0; y < kc; y += packRows {
		for c := 0; c < n; c += t.cols {
			t.packColumns(min(packRows, kc-y), &g.B[(k+y)*g.LDB+j+c], 4*g.LDB, &dst[c*high+y*t.cols], min(t.cols, n-c))
		}
	}
}

func (t *tiling) copyBTransposed(g *GemmArgs, k, kc, j, n int, to []float32) {
	high := roundUp(kc, packSquare)
	for c := 0; c < n; c += t.cols {
		dst := to[c*high:]
		x, w := 0, min(t.cols, n-c)
		for ; x+t.square <= w; x += t.square {
			t.packTransposed(kc, &g.B[(j+c+x)*g.LDB+k], 4*g.LDB, &dst[x])
		}
		for ; x < w; x++ {
			for y, v := range g.B[(j+c+x)*g.LDB+k:][:kc] {
				dst[y*t.cols+x] = v
			}
		}
	}
}

// panels multiplies rows i0 to i1 of op(A) by a packed block of B. A is read
// where it lies if it can be: copied first are a transposed A that enough
// columns use, since a step of it lies a row apart from the next, and rows or steps whose
// distance would put them all into a few sets of the first-level cache.
func (t *tiling) panels(g *GemmArgs, i0, i1, k, kc int, b operandB, j, n, load int, bias, scratch []float32) {
	sums := unsafe.SliceData(bias)
	panels := (i1 - i0 + t.rows - 1) / t.rows
	at := func(p int) int { return i0 + (i1-i0)*p/panels } // rows spread evenly, so that no panel is thin
	copies := n >= 4*t.cols && (g.TransA || g.LDA%1024 == 0) || n >= 2*t.cols && g.TransA && g.LDA%256 == 0
	for p := range panels {
		i := at(p)
		m := at(p+1) - i
		c := &g.C[i*g.LDC+j]
		switch {
		case g.TransA && copies:
			group := p % gemmGroup
			if group == 0 {
				t.packA(g, at, p, min(p+gemmGroup, panels), k, kc, scratch)
			}
			t.stepsAhead(g, at, p, panels, k, kc, m, &scratch[group*kc*t.stepWidth], b, c, n, load, bias)
		case g.TransA:
			a := &g.A[k*g.LDA+i]
			t.byStep[m](kc, a, 4*g.LDA, b.start, b.ld, b.panel, c, 4*g.LDC, n, load, a, 0, sums)
		case copies:
			ld := kc + 16
			for r := range m {
				copy(scratch[r*ld:], g.A[(i+r)*g.LDA+k:][:kc])
			}
			t.byRow[m](kc, &scratch[0], 4*ld, b.start, b.ld, b.panel, c, 4*g.LDC, n, load, &scratch[0], 0, sums)
		default:
			next := &g.A[i*g.LDA+k]
			if p+1 < panels {
				next = &g.A[(i+m)*g.LDA+k]
			} else if k+kc < g.K {
				next = &g.A[i0*g.LDA+k+kc]
			}
			t.byRow[m](kc, &g.A[i*g.LDA+k], 4*g.LDA, b.start, b.ld, b.panel, c, 4*g.LDC, n, load, next, 0, sums)
		}
	}
}

// fetchTiles is how many tiles fetch the next group's panel of a transposed A, a row in four
// steps each.
const fetchTiles = 4

// stepsAhead multiplies a copied panel and meanwhile fetches the rows from
// which the panel one group later will be copied.
func (t *tiling) stepsAhead(g *GemmArgs, at func(p int) int, p, panels, k, kc, m int, a *float32, b operandB, c *float32, n, load int, bias []float32) {
	q, y := p+gemmGroup, k
	if q >= panels { // the group after the last is the first of the next block of k
		q, y = p%gemmGroup, k+kc
	}
	first := fetchTiles * t.cols
	if y >= g.K || n < 2*first {
		t.byStep[m](kc, a, 4*t.stepWidth, b.start, b.ld, b.panel, c, 4*g.LDC, n, load, a, 0, unsafe.SliceData(bias))
		return
	}
	next := &g.A[y*g.LDA+at(q)]
	t.byStep[m](kc, a, 4*t.stepWidth, b.start, b.ld, b.panel, c, 4*g.LDC, first, load, next, 4*g.LDA, unsafe.SliceData(bias))
	rest := operandB{(*float32)(unsafe.Add(unsafe.Pointer(b.start), fetchTiles*b.panel)), b.ld, b.panel}
	c = (*float32)(unsafe.Add(unsafe.Pointer(c), 4*first))
	if bias != nil {
		bias = bias[first:]
	}
	t.byStep[m](kc, a, 4*t.stepWidth, rest.start, b.ld, b.panel, c, 4*g.LDC, n-first, load, a, 0, unsafe.SliceData(bias))
}

// packA copies panels p to end of a transposed A.
func (t *tiling) packA(g *GemmArgs, at func(p int) int, p, end, k, kc int, scratch []float32) {
	for y := 0; y < kc; y += packRows {
		for q := p; q < end; q++ {
			i := at(q)
			t.packSteps(min(packRows, kc-y), &g.A[(k+y)*g.LDA+i], 4*g.LDA, &scratch[((q-p)*kc+y)*t.stepWidth], at(q+1)-i)
		}
	}
}

package vec

// tileFunc multiplies some rows of A by n columns of packed or unpacked B;
// strides are in bytes.
type tileFunc func(k int, a *float32, lda int, b *float32, ldb, bpanel int, c *float32, ldc, n, load int)

// tiling is a kernel set's tile: how high, how wide, and its functions by
// height.
type tiling struct {
	rows, cols     int
	byRow, byStep  [gemmMR + 1]tileFunc // A stored by rows; by steps of k
	packColumns    func(k int, src *float32, ld int, dst *float32, n int)
	packTransposed func(k int, src *float32, ld int, dst *float32)
	square         int  // rows that packTransposed takes at once
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
// packs that part of B, and runs the tiles over panels of rows.
func (t *tiling) block(g *GemmArgs, i0, i1, j0, j1 int, scratch []float32) {
	blocks := (g.K + gemmKC - 1) / gemmKC
	kc := (g.K + blocks - 1) / blocks
	panels := (i1 - i0 + t.rows - 1) / t.rows
	for j := j0; j < j1; j += gemmNC {
		n := min(gemmNC, j1-j)
		for k := 0; k < g.K; k += kc {
			b := t.packB(g, i1-i0, k, min(kc, g.K-k), j, n, scratch)
			load := 0
			if g.Accumulate || k > 0 {
				load = 1
			}
			for p := range panels { // rows spread evenly, so that no panel is thin
				lo, hi := i0+(i1-i0)*p/panels, i0+(i1-i0)*(p+1)/panels
				t.panel(g, lo, hi-lo, k, min(kc, g.K-k), b, j, n, load, scratch)
			}
		}
	}
}

// operandB says where a block of op(B) lies: panel p's step k begins p·panel +
// k·ld bytes after the start.
type operandB struct {
	start     *float32
	ld, panel int
}

// packB copies kc steps and n columns of op(B), from (k, j), into panels of
// t.cols columns, unless so few rows of C use them that copying would not pay.
func (t *tiling) packB(g *GemmArgs, rows, k, kc, j, n int, scratch []float32) operandB {
	if !g.TransB && rows <= 2*t.rows && (t.masksB || n%t.cols == 0) {
		return operandB{&g.B[k*g.LDB+j], 4 * g.LDB, 4 * t.cols}
	}
	for c := 0; c < n; c += t.cols {
		dst := scratch[c*kc:]
		w := min(t.cols, n-c)
		if !g.TransB {
			t.packColumns(kc, &g.B[k*g.LDB+j+c], 4*g.LDB, &dst[0], w)
			continue
		}
		x := 0
		for ; x+t.square <= w; x += t.square {
			t.packTransposed(kc, &g.B[(j+c+x)*g.LDB+k], 4*g.LDB, &dst[x])
		}
		for ; x < w; x++ {
			for y, v := range g.B[(j+c+x)*g.LDB+k:][:kc] {
				dst[y*t.cols+x] = v
			}
		}
	}
	return operandB{&scratch[0], 4 * t.cols, 4 * t.cols * kc}
}

// panel multiplies rows i to i+m of op(A) by a packed block of B.
func (t *tiling) panel(g *GemmArgs, i, m, k, kc int, b operandB, j, n, load int, scratch []float32) {
	c := &g.C[i*g.LDC+j]
	if g.TransA {
		t.byStep[m](kc, &g.A[k*g.LDA+i], 4*g.LDA, b.start, b.ld, b.panel, c, 4*g.LDC, n, load)
		return
	}
	t.byRow[m](kc, &g.A[i*g.LDA+k], 4*g.LDA, b.start, b.ld, b.panel, c, 4*g.LDC, n, load)
}

package vec

import "unsafe"

// hasTiles says that the processor multiplies tiles of bfloat16 and that the system lets
// this process use them.
var hasTiles = cpuHasTiles() && askForTiles()

func cpuHasTiles() bool {
	top, _, _, _ := cpuid(0, 0)
	if top < 7 {
		return false
	}
	_, _, c1, _ := cpuid(1, 0)
	_, _, _, d7 := cpuid(7, 0)
	const (
		osxsave   = 1 << 27
		bf16      = 1 << 22 // leaf 7, EDX
		tile      = 1 << 24
		tileState = 3 << 17 // XCR0: configuration and data
	)
	return c1&osxsave != 0 && d7&bf16 != 0 && d7&tile != 0 && xgetbv()&tileState == tileState
}

// tileConfig is the operand of LDTILECFG: the shape of every tile.
type tileConfig struct {
	palette, start byte
	_              [14]byte
	bytes          [16]uint16 // of a row
	rows           [16]byte
}

// configs are the shapes of a panel of so many rows: tiles 0 to 3 of C, 4 and 5 of A, 6 and 7 of B.
var configs = func() (c [bf16MR + 1]tileConfig) {
	for m := 1; m <= bf16MR; m++ {
		upper, lower := min(m, 16), max(m-16, 0)
		t := &c[m]
		t.palette = 1
		for i, rows := range []int{upper, upper, lower, lower, upper, lower, 16, 16} {
			if rows > 0 {
				t.bytes[i], t.rows[i] = 64, byte(rows)
			}
		}
	}
	return c
}()

// packTiles makes panels of 32 columns: row p holds pairs (2p, 2p+1) of k, whole steps of 32
// with zeros behind the last element.
func packTiles(g *GemmBF16Args, k0, k1, j0, j1 int) {
	kc := bf16Steps(g.K)
	for k := k0; k < k1; k += kc {
		steps := min(kc, g.K-k)
		high := roundUp(steps, 64) / 2
		panel := func(j int) []float32 { return g.Packed[k/2*roundUp(g.N, gemmNR)+j*high:][:high*gemmNR] }
		if g.TransB {
			for j := j0; j < j1; j += gemmNR {
				packTileRows(g, k, steps, j, min(gemmNR, j1-j), panel(j))
			}
			continue
		}
		// A few rows at a time, so that they are read along.
		for y := 0; y < steps; y += packRows {
			for j := j0; j < j1; j += gemmNR {
				packTileColumns(g.B, g.LDB, k+y, min(packRows, steps-y), j, min(gemmNR, j1-j), panel(j)[y/2*gemmNR:])
			}
		}
		for j := j0; j < j1; j += gemmNR {
			clear(panel(j)[(steps+1)/2*gemmNR:])
		}
	}
}

// packTileColumns packs columns c to c+n, 32 at most, of rows k to k+steps of x.
func packTileColumns(x []uint16, ld, k, steps, c, n int, dst []float32) {
	pairs := steps / 2
	if pairs > 0 {
		packPairs(pairs, &x[k*ld+c], &x[(k+1)*ld+c], 4*ld, &dst[0], n)
	}
	if steps%2 != 0 {
		var none [gemmNR]uint16
		packPairs(1, &x[(k+steps-1)*ld+c], &none[0], 0, &dst[pairs*gemmNR], n)
	}
}

// packTileRows packs rows j to j+n of B, whose elements of k are pairs already where they lie.
func packTileRows(g *GemmBF16Args, k, steps, j, n int, dst []float32) {
	pairs := steps / 2
	whole := roundUp(pairs, 16)
	x := 0
	if pairs > 0 {
		for ; x+16 <= n; x += 16 {
			packTransposedAVX512(pairs, (*float32)(unsafe.Pointer(&g.B[(j+x)*g.LDB+k])), 2*g.LDB, &dst[x])
		}
	}
	for y := whole * gemmNR; y < len(dst); y += gemmNR {
		clear(dst[y : y+x])
	}
	words := unsafe.Slice((*uint16)(unsafe.Pointer(&dst[0])), 2*len(dst))
	if steps%2 != 0 { // the last element has no partner
		for c := range x {
			dst[pairs*gemmNR+c] = 0
			words[2*(pairs*gemmNR+c)] = g.B[(j+c)*g.LDB+k+steps-1]
		}
	}
	for ; x < gemmNR; x++ {
		for y := range len(dst) / gemmNR {
			dst[y*gemmNR+x] = 0
		}
		if x < n {
			for y, v := range g.B[(j+x)*g.LDB+k:][:steps] {
				words[2*(y/2*gemmNR+x)+y%2] = v
			}
		}
	}
}

// tilesBlock multiplies panels of 32 rows by panels of 32 columns. A transposed A is copied for all columns of the block.
func tilesBlock(g *GemmBF16Args, i0, i1, j0, j1 int, scratch []float32) {
	kc := bf16Steps(g.K)
	tail, copied := scratch[:bf16MR*gemmNR], scratch[bf16MR*gemmNR:]
	if !g.TransA {
		for j := j0; j < j1; j += gemmNC {
			for k := 0; k < g.K; k += kc {
				tilesPanels(g, i0, i1, k, min(kc, g.K-k), j, min(gemmNC, j1-j), copied, tail)
			}
		}
		return
	}
	for i := i0; i < i1; i += bf16MC {
		end := min(i+bf16MC, i1)
		for k := 0; k < g.K; k += kc {
			steps := min(kc, g.K-k)
			copyTransposedA(g, i, end, k, steps, copied)
			for j := j0; j < j1; j += gemmNC {
				tilesPanels(g, i, end, k, steps, j, min(gemmNC, j1-j), copied, tail)
			}
		}
	}
}

// tilesRounded makes panels of a result that is rounded, each over all k. A transposed A is copied for each of them.
func tilesRounded(g *GemmBF16Args, i0, i1, j0, j1 int, scratch []float32) {
	kc := bf16Steps(g.K)
	width := min(roundedCols, max(roundedB/g.K&^(gemmNR-1), 2*gemmNR))
	ld := min(roundUp(g.N, gemmNR), roundedCols)
	sums, rest := scratch[:bf16MR*ld], scratch[bf16MR*ld:]
	tail, copied := rest[:bf16MR*gemmNR], rest[bf16MR*gemmNR:]
	for j := j0; j < j1; j += width {
		n := min(width, j1-j)
		for i := i0; i < i1; i += bf16MR {
			m := min(bf16MR, i1-i)
			for k := 0; k < g.K; k += kc {
				steps := min(kc, g.K-k)
				if g.TransA {
					copyTransposedA(g, i, i+m, k, steps, copied)
				}
				g.panelA(i, i, m, k, steps, copied).multiply(sums, ld, m, n, g.panelB(k, steps, j), steps, tail, k > 0)
			}
			g.round(sums, ld, i, m, j, n)
		}
	}
}

// tilesPanels multiplies one block of k for rows i0 to i1 and n columns from j on.
func tilesPanels(g *GemmBF16Args, i0, i1, k, steps, j, n int, copied, tail []float32) {
	for i := i0; i < i1; i += bf16MR {
		m := min(bf16MR, i1-i)
		g.panelA(i, i0, m, k, steps, copied).multiply(g.C[i*g.LDC+j:], g.LDC, m, n, g.panelB(k, steps, j), steps, tail, g.Accumulate || k > 0)
	}
}

// panelB is where a block of k of columns j on lies.
func (g *GemmBF16Args) panelB(k, steps, j int) []float32 {
	return g.Packed[k/2*roundUp(g.N, gemmNR)+j*roundUp(steps, 64)/2:]
}

// panelA says where m rows of op(A) from i on lie, one block of k; those of a transposed A have been copied from row i0 on.
func (g *GemmBF16Args) panelA(i, i0, m, k, steps int, copied []float32) operandA {
	switch {
	case g.TransA:
		return operandA{(*uint16)(unsafe.Pointer(&copied[(i-i0)*roundUp(steps, 64)/2])), 4 * tileRow, 4 * bf16MR * tileRow}
	case steps%64 == 0:
		return operandA{&g.A[i*g.LDA+k], 2 * g.LDA, 128}
	}
	return paddedA(g, i, m, k, steps, copied)
}

// tileRow is a row of a copied panel of A: 64 elements of k, as float32 elements.
const tileRow = 32

// operandA says where a panel of op(A) lies, in bytes.
type operandA struct {
	start     *uint16
	ld, astep int
}

// copyTransposedA copies rows i0 to i1 of op(A) to panels of 32 rows: 64 elements of k of every row, then the next 64. A few rows
// of A as it is stored are read at a time, each along all panels: what a panel alone needs of one is a line, and the rows may
// lie pages apart.
func copyTransposedA(g *GemmBF16Args, i0, i1, k, steps int, dst []float32) {
	groups := roundUp(steps, 64) / 64
	panels := (i1 - i0 + bf16MR - 1) / bf16MR
	pairs := dst[panels*groups*bf16MR*tileRow:][:tileRow*gemmNR]
	for q := range groups {
		y := min(64, steps-64*q)
		for p := range panels {
			i := i0 + p*bf16MR
			packTileColumns(g.A, g.LDA, k+64*q, y, i, min(bf16MR, i1-i), pairs)
			clear(pairs[(y+1)/2*gemmNR:])
			to := dst[(p*groups+q)*bf16MR*tileRow:]
			for half := range 2 {
				packTransposedAVX512(bf16MR, &pairs[16*half*gemmNR], 4*gemmNR, &to[16*half])
			}
		}
	}
}

// paddedA copies a panel of A whose steps are not whole, with zeros behind the last element.
func paddedA(g *GemmBF16Args, i, m, k, steps int, panel []float32) operandA {
	to := panel[:roundUp(steps, 64)/64*bf16MR*tileRow]
	words := unsafe.Slice((*uint16)(unsafe.Pointer(&to[0])), 2*len(to))
	clear(to)
	for r := range m {
		src := g.A[(i+r)*g.LDA+k:][:steps]
		for q := 0; q < steps; q += 64 {
			copy(words[2*tileRow*(q/64*bf16MR+r):], src[q:min(q+64, steps)])
		}
	}
	return operandA{(*uint16)(unsafe.Pointer(&to[0])), 4 * tileRow, 4 * bf16MR * tileRow}
}

// multiply computes m rows and n columns of C, whose rows lie ldc apart, over one block of k; a last panel of fewer than 32 columns
// goes through tail.
func (a operandA) multiply(c []float32, ldc, m, n int, b []float32, k int, tail []float32, load bool) {
	tiles, config, steps := amxTiles2, (*byte)(unsafe.Pointer(&configs[m])), roundUp(k, 64)/32
	if m <= 16 {
		tiles = amxTiles1
	}
	flag := 0
	if load {
		flag = 1
	}
	if whole := n / gemmNR; whole > 0 {
		tiles(config, whole, steps, a.start, a.ld, a.astep, &b[0], &c[0], 4*ldc, flag)
	}
	rest := n % gemmNR
	if rest == 0 {
		return
	}
	j := n - rest
	if load {
		for r := range m {
			copy(tail[r*gemmNR:][:rest], c[r*ldc+j:])
		}
	}
	tiles(config, 1, steps, a.start, a.ld, a.astep, &b[j*16*steps], &tail[0], 4*gemmNR, flag)
	for r := range m {
		copy(c[r*ldc+j:][:rest], tail[r*gemmNR:])
	}
}

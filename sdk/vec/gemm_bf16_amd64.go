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

func tilesActive() bool { return hasTiles && active == setAVX512 }

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
		for j := j0; j < j1; j += gemmNR {
			n := min(gemmNR, j1-j)
			dst := g.Packed[k/2*roundUp(g.N, gemmNR)+j*high:][:high*gemmNR]
			if g.TransB {
				packTileRows(g, k, steps, j, n, dst)
			} else {
				packTileColumns(g.B, g.LDB, k, steps, j, n, dst)
			}
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
		pairs++
	}
	clear(dst[pairs*gemmNR:])
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

// tilesBlock multiplies panels of 32 rows by panels of 32 columns.
func tilesBlock(g *GemmBF16Args, i0, i1, j0, j1 int, scratch []float32) {
	kc := bf16Steps(g.K)
	tail, panel := scratch[:bf16MR*gemmNR], scratch[bf16MR*gemmNR:]
	for j := j0; j < j1; j += gemmNC {
		n := min(gemmNC, j1-j)
		for k := 0; k < g.K; k += kc {
			steps := min(kc, g.K-k)
			high := roundUp(steps, 64) / 2
			b := g.Packed[k/2*roundUp(g.N, gemmNR)+j*high:]
			count := (i1 - i0 + bf16MR - 1) / bf16MR
			for p := range count {
				i := i0 + (i1-i0)*p/count
				m := i0 + (i1-i0)*(p+1)/count - i
				a := packedA(g, i, m, k, steps, panel)
				a.multiply(g, i, m, j, n, high/16, b, tail, g.Accumulate || k > 0)
			}
		}
	}
}

// operandA says where a panel of op(A) lies, in bytes.
type operandA struct {
	start     *uint16
	ld, astep int
}

// packedA reads A where it lies if it has whole steps; otherwise it is copied, transposed or with zeros behind the last
// element.
func packedA(g *GemmBF16Args, i, m, k, steps int, panel []float32) operandA {
	if !g.TransA && steps%64 == 0 {
		return operandA{&g.A[i*g.LDA+k], 2 * g.LDA, 128}
	}
	const row = 32 // float32 elements: 64 of k
	groups := roundUp(steps, 64) / 64
	to := panel[:groups*bf16MR*row]
	if g.TransA {
		pairs := panel[len(to):][:groups*32*gemmNR]
		packTileColumns(g.A, g.LDA, k, steps, i, m, pairs)
		for q := range groups {
			for half := range 2 {
				packTransposedAVX512(bf16MR, &pairs[(q*32+16*half)*gemmNR], 4*gemmNR, &to[q*bf16MR*row+16*half])
			}
		}
		return operandA{(*uint16)(unsafe.Pointer(&to[0])), 4 * row, 4 * bf16MR * row}
	}
	words := unsafe.Slice((*uint16)(unsafe.Pointer(&to[0])), 2*len(to))
	clear(to)
	for r := range m {
		src := g.A[(i+r)*g.LDA+k:][:steps]
		for q := 0; q < steps; q += 64 {
			copy(words[2*row*(q/64*bf16MR+r):], src[q:min(q+64, steps)])
		}
	}
	return operandA{(*uint16)(unsafe.Pointer(&to[0])), 4 * row, 4 * bf16MR * row}
}

// multiply computes m rows and n columns of C over one block of k; a last panel of fewer than 32 columns goes through tail.
func (a operandA) multiply(g *GemmBF16Args, i, m, j, n, steps int, b, tail []float32, load bool) {
	tiles, config := amxTiles2, (*byte)(unsafe.Pointer(&configs[m]))
	if m <= 16 {
		tiles = amxTiles1
	}
	flag := 0
	if load {
		flag = 1
	}
	if whole := n / gemmNR; whole > 0 {
		tiles(config, whole, steps, a.start, a.ld, a.astep, &b[0], &g.C[i*g.LDC+j], 4*g.LDC, flag)
	}
	rest := n % gemmNR
	if rest == 0 {
		return
	}
	j += n - rest
	if load {
		for r := range m {
			copy(tail[r*gemmNR:][:rest], g.C[(i+r)*g.LDC+j:])
		}
	}
	tiles(config, 1, steps, a.start, a.ld, a.astep, &b[(n-rest)*16*steps], &tail[0], 4*gemmNR, flag)
	for r := range m {
		copy(g.C[(i+r)*g.LDC+j:][:rest], tail[r*gemmNR:])
	}
}

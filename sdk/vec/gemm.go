package vec

import "fmt"

// GemmArgs describes C = op(A)·op(B), or C += op(A)·op(B), with op(A) of shape
// [M, K], op(B) [K, N] and C [M, N], all stored by rows with the given strides
// (in elements) from one row to the next.
type GemmArgs struct {
	M, N, K int

	A      []float32
	LDA    int
	TransA bool // A is stored as [K, M]

	B      []float32
	LDB    int
	TransB bool // B is stored as [N, K], as linear layers store their weights

	C          []float32
	LDC        int
	Accumulate bool // add to C; otherwise C is overwritten and may hold anything

	Bias []float32 // nil, or N elements that are added to each row once its chains are done

	// Packed is nil, or GemmPacked(g) elements that GemmPack has filled: op(B) in
	// the order in which tiles read it, for callers that compute C in several blocks.
	// GemmPackPiece fills it with windows, and B is nil.
	Packed []float32
}

// check panics if a slice is too short for its shape and stride.
func (g *GemmArgs) check() {
	if g.M < 0 || g.N < 0 || g.K < 0 {
		panic(fmt.Sprintf("vec.Gemm: negative size M=%d N=%d K=%d", g.M, g.N, g.K))
	}
	matrix := func(name string, rows, cols, ld, n int, trans bool) {
		if trans {
			rows, cols = cols, rows
		}
		if rows == 0 || cols == 0 {
			return
		}
		if ld < cols || (rows-1)*ld+cols > n {
			panic(fmt.Sprintf("vec.Gemm: %s has %d elements and stride %d, too few for %d rows of %d", name, n, ld, rows, cols))
		}
	}
	matrix("A", g.M, g.K, g.LDA, len(g.A), g.TransA)
	if g.B != nil || g.Packed == nil {
		matrix("B", g.K, g.N, g.LDB, len(g.B), g.TransB)
	}
	matrix("C", g.M, g.N, g.LDC, len(g.C), false)
	if g.Bias != nil && len(g.Bias) < g.N {
		panic(fmt.Sprintf("vec.Gemm: a bias of %d elements for %d columns", len(g.Bias), g.N))
	}
}

// Gemm computes rows i0 to i1 (exclusive) and columns j0 to j1 of C. Each element is one
// chain of fused multiply-adds over ascending k, beginning at +0 or at the
// element of C added to, and ends with the addition of the bias, if there is one, so bits do not depend on how C is cut into blocks.
// scratch holds at least GemmScratch(g) elements and nothing of value; C overlaps
// neither input.
func Gemm(g *GemmArgs, i0, i1, j0, j1 int, scratch []float32) {
	g.check()
	if i0 < 0 || i1 > g.M || i0 > i1 || j0 < 0 || j1 > g.N || j0 > j1 {
		panic(fmt.Sprintf("vec.Gemm: block [%d, %d) by [%d, %d) outside C of %d by %d", i0, i1, j0, j1, g.M, g.N))
	}
	if i0 == i1 || j0 == j1 {
		return
	}
	if need := GemmScratch(g); len(scratch) < need {
		panic(fmt.Sprintf("vec.Gemm: scratch of %d elements, need %d", len(scratch), need))
	}
	if g.Packed != nil {
		g.checkPacked()
		if j0%gemmNR != 0 {
			panic(fmt.Sprintf("vec.Gemm: with a packed B, blocks begin at multiples of %d columns, not at %d", gemmNR, j0))
		}
	}
	if g.K == 0 {
		if !g.Accumulate {
			for i := i0; i < i1; i++ {
				clear(g.C[i*g.LDC+j0 : i*g.LDC+j1])
			}
		}
		g.addBias(i0, i1, j0, j1)
		return
	}
	gemmBlock(g, i0, i1, j0, j1, scratch)
}

// addBias adds the bias to a block whose chains are done.
func (g *GemmArgs) addBias(i0, i1, j0, j1 int) {
	if g.Bias == nil {
		return
	}
	for i := i0; i < i1; i++ {
		AddTo(g.C[i*g.LDC+j0:i*g.LDC+j1], g.Bias[j0:j1])
	}
}

const (
	gemmKC = 512 // k steps per packed block: fewer passes over C; a panel of A still stays in the first-level cache for the most part
	gemmNC = 512 // columns per packed block: with gemmKC, 1 MiB in the second-level cache
	gemmMR = 14  // rows of the largest tile
	gemmNR = 32  // columns of the widest tile
)

// packSquare is the steps that packing writes at once at most: panels of a packed block
// lie a multiple of it apart, so that whole squares may be written.
const packSquare = 16

// blockSteps is the steps of a block of k: equal blocks rather than a short last
// one, of whole squares.
func blockSteps(k int) int {
	k = max(k, 1)
	blocks := (k + gemmKC - 1) / gemmKC
	return roundUp((k+blocks-1)/blocks, packSquare)
}

func roundUp(n, to int) int { return (n + to - 1) / to * to }

// GemmScratch is the number of scratch elements any block of g needs; it does
// not depend on the kernel set.
func GemmScratch(g *GemmArgs) int {
	kc := roundUp(min(g.K, gemmKC), packSquare)
	need := gemmGroup * 16 * (kc + 16)
	if g.Packed == nil {
		need += kc * roundUp(min(g.N, gemmNC), gemmNR)
	}
	return need
}

// GemmPacked is the number of elements that op(B) takes when packed; it does not
// depend on the kernel set.
func GemmPacked(g *GemmArgs) int { return roundUp(g.K, packSquare) * roundUp(g.N, gemmNR) }

// GemmPack fills g.Packed with steps k0 to k1 (exclusive) and columns j0 to j1 of op(B). Calls
// may run at the same time: k0 is a multiple of GemmPackSteps(g), j0 of 32, k1 and
// j1 are too or lie at the end.
func GemmPack(g *GemmArgs, k0, k1, j0, j1 int) {
	g.check()
	g.checkPacked()
	kc := blockSteps(g.K)
	if k0 < 0 || k0 > k1 || k1 > g.K || k0%kc != 0 || k1%kc != 0 && k1 != g.K ||
		j0 < 0 || j0 > j1 || j1 > g.N || j0%gemmNR != 0 || j1%gemmNR != 0 && j1 != g.N {
		panic(fmt.Sprintf("vec.GemmPack: steps [%d, %d) and columns [%d, %d) of %d by %d are no whole panels", k0, k1, j0, j1, g.K, g.N))
	}
	gemmPack(g, k0, k1, j0, j1)
}

// GemmPackSteps is the unit in which GemmPack cuts k.
func GemmPackSteps(g *GemmArgs) int { return blockSteps(g.K) }

func (g *GemmArgs) checkPacked() {
	if need := GemmPacked(g); len(g.Packed) < need {
		panic(fmt.Sprintf("vec.Gemm: packed B of %d elements, need %d", len(g.Packed), need))
	}
}

// gemmGroup is how many panels of a transposed A are copied at a time.
const gemmGroup = 8

// GemmTasks suggests rows and columns per block for a product of this shape: big
// enough to hide packing, small enough to spread over threads. It depends on
// the shape alone.
func GemmTasks(m, n, k int) (mb, nb int) {
	nb = min(n, gemmNC)
	if n > nb { // equal widths rather than a narrow rest
		parts := (n + gemmNC - 1) / gemmNC
		nb = ((n+parts-1)/parts + gemmNR - 1) / gemmNR * gemmNR
	}
	// Packing a block of B pays once many rows use it: at least seven of the
	// largest tiles' rows, more if that leaves sixteen blocks, or if blocks would
	// be too short to be worth handing out.
	const blocks, work = 16, 2 << 20
	mb = max(m*((n+nb-1)/max(1, nb))/blocks, work/max(1, nb*k))
	mb = max(7*gemmMR, min(mb, 40*gemmMR)) / gemmMR * gemmMR
	if m > mb {
		parts := (m + mb - 1) / mb
		mb = ((m+parts-1)/parts + gemmMR - 1) / gemmMR * gemmMR
	}
	return max(1, min(mb, m)), max(1, nb)
}

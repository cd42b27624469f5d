package vec

import "fmt"

// PieceWidth is the columns of a piece.
const PieceWidth = 16

// A Piece is up to 16 neighbouring columns of a matrix of windows, whose sources lie side by side: row (plane, place) shows of column
// l the element shifts[place]+l of that plane, where bit l of masks[place] is set, and nothing elsewhere. With pieces a product reads
// windows that lie nowhere in memory as a whole.
type Piece struct {
	shifts []int // in bytes
	masks  []uint32
	lo, hi int // the first and the last element that is shown, from the piece's start
}

// NewPiece makes a piece of the places of a window.
func NewPiece(shifts []int, masks []uint32) Piece {
	if len(shifts) == 0 || len(shifts) != len(masks) {
		panic(fmt.Sprintf("vec.NewPiece: %d shifts and %d masks", len(shifts), len(masks)))
	}
	p := Piece{shifts: make([]int, len(shifts)), masks: masks, hi: -1}
	for i, s := range shifts {
		p.shifts[i] = 4 * s
		for l := range 32 {
			if masks[i]>>l&1 == 0 {
				continue
			}
			if l >= PieceWidth {
				panic(fmt.Sprintf("vec.NewPiece: column %d of %d", l, PieceWidth))
			}
			if p.hi < p.lo {
				p.lo, p.hi = s+l, s+l
			}
			p.lo, p.hi = min(p.lo, s+l), max(p.hi, s+l)
		}
	}
	return p
}

// Source is planes of elements that pieces show: a plane begins Plane elements after the one before, and a piece's own start is At
// elements, which may be negative, from the first plane's.
type Source struct {
	Data      []float32
	At, Plane int
}

// PackPiece writes rows r0 to r1 (exclusive) of a piece, 16 columns wide, to dst, ld elements apart: what it does not show becomes
// zero, or with over stays as another piece of the same columns left it.
func PackPiece(dst []float32, ld int, p *Piece, from Source, r0, r1 int, over bool) {
	places := len(p.shifts)
	if r0 < 0 || r0 > r1 || ld < PieceWidth || r0 < r1 && len(dst) < (r1-r0-1)*ld+PieceWidth {
		panic(fmt.Sprintf("vec.PackPiece: rows [%d, %d), stride %d, to %d elements", r0, r1, ld, len(dst)))
	}
	if r0 == r1 {
		return
	}
	if first, last := from.At+r0/places*from.Plane+p.lo, from.At+(r1-1)/places*from.Plane+p.hi; p.lo <= p.hi && (first < 0 || last >= len(from.Data)) {
		panic(fmt.Sprintf("vec.PackPiece: rows [%d, %d) show elements %d to %d of %d", r0, r1, first, last, len(from.Data)))
	}
	for r0 < r1 {
		plane, place := r0/places, r0%places
		planes, n := 1, min(places-place, r1-r0)
		if n == places {
			planes = (r1 - r0) / places
		}
		packPiece(dst, ld, p, from.Data, from.At+plane*from.Plane, from.Plane, planes, place, n, over)
		r0 += planes * n
		dst = dst[min(planes*n*ld, len(dst)):]
	}
}

// GemmPackPiece is PackPiece to columns 16·unit … of a product's packed B, from step k0 on. The product's K is at most GemmBlock,
// and its B may be nil.
func GemmPackPiece(g *GemmArgs, unit, k0 int, p *Piece, from Source, r0, r1 int, over bool) {
	g.checkPacked()
	if g.K > GemmBlock || k0 < 0 || k0+r1-r0 > g.K || unit < 0 || unit*PieceWidth >= g.N {
		panic(fmt.Sprintf("vec.GemmPackPiece: unit %d, steps from %d, rows [%d, %d) of a product of %d by %d", unit, k0, r0, r1, g.K, g.N))
	}
	first, ld := g.packedUnit(unit)
	PackPiece(g.Packed[first+k0*ld:], ld, p, from, r0, r1, over)
}

// GemmBlock is the most steps of a product whose B is packed in pieces.
const GemmBlock = gemmKC

// packedUnit is where 16 columns of a B of one block begin when packed, and how far apart its steps lie.
func (g *GemmArgs) packedUnit(unit int) (first, ld int) {
	cols := panelCols()
	if cols == 0 {
		return unit * PieceWidth, roundUp(g.N, gemmNR)
	}
	at := unit * PieceWidth
	return at/cols*cols*roundUp(g.K, packSquare) + at%cols, cols
}

// packPieceGeneric is n places of a piece from one on, in so many planes.
func packPieceGeneric(dst []float32, ld int, p *Piece, src []float32, at, plane, planes, place, n int, over bool) {
	for range planes {
		for t := place; t < place+n; t++ {
			for l := range PieceWidth {
				switch {
				case p.masks[t]>>l&1 != 0:
					dst[l] = src[at+p.shifts[t]/4+l]
				case !over:
					dst[l] = 0
				}
			}
			dst = dst[min(ld, len(dst)):]
		}
		at += plane
	}
}

//go:build !amd64

package vec

func packPiece(dst []float32, ld int, p *Piece, src []float32, at, plane, planes, place, n int, over bool) {
	packPieceGeneric(dst, ld, p, src, at, plane, planes, place, n, over)
}

// panelCols is 0: plain Go packs B by rows.
func panelCols() int { return 0 }

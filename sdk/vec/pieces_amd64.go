package vec

import "unsafe"

func packPiece(dst []float32, ld int, p *Piece, src []float32, at, plane, planes, place, n int, over bool) {
	if active == setGeneric {
		packPieceGeneric(dst, ld, p, src, at, plane, planes, place, n, over)
		return
	}
	pack := packPieceAVX2
	switch {
	case active == setAVX512 && over:
		pack = packPieceOverAVX512
	case active == setAVX512:
		pack = packPieceAVX512
	case over:
		pack = packPieceOverAVX2
	}
	pack(planes, n, unsafe.SliceData(src), 4*at, 4*plane, &p.shifts[place], &p.masks[place], &dst[0], 4*ld)
}

// panelCols is the columns of a panel of a packed B, or 0 where B is packed by rows.
func panelCols() int {
	switch active {
	case setAVX512:
		return tiles512.cols
	case setAVX2:
		return tiles256.cols
	}
	return 0
}

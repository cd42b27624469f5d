package vec

func copyEach(dst, src [][]float32) {
	n := len(dst[0]) &^ 31
	if active == setGeneric {
		n = 0
	}
	piece := max(32, chunk/len(dst)&^31)
	for i := 0; i < n; i += piece {
		if active == setAVX512 {
			copyEachAVX512(dst, src, i, min(piece, n-i))
		} else {
			copyEachAVX2(dst, src, i, min(piece, n-i))
		}
	}
	copyEachGeneric(dst, src, n)
}

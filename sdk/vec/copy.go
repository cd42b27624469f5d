package vec

// CopyEach copies every src[i] to dst[i]; all have one length. It reads a few elements of each in turn, as a kernel that computes with all of
// them does: memory delivers several streams side by side much faster than one after the other.
func CopyEach(dst, src [][]float32) {
	if len(dst) != len(src) {
		panic("vec: CopyEach: as many slices are needed on either side")
	}
	if len(dst) == 0 {
		return
	}
	for i := range dst {
		same("CopyEach", len(dst[0]), len(dst[i]), len(src[i]))
	}
	copyEach(dst, src)
}

// copyEachGeneric copies the elements from the given one on.
func copyEachGeneric(dst, src [][]float32, from int) {
	const stripe = 256
	for n := len(dst[0]); from < n; from += stripe {
		for i := range dst {
			copy(dst[i][from:min(n, from+stripe)], src[i][from:])
		}
	}
}

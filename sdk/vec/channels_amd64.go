package vec

import "unsafe"

// channelsLast transposes 32 pixels at a time as pairs of channels, where AVX-512 is in use.
func channelsLast(dst, src []uint16, ld, channels, pixels int) bool {
	if active != setAVX512 {
		return false
	}
	var pairs [tileRow * gemmNR]float32
	p := 0
	for ; p+gemmNR <= pixels; p += gemmNR {
		packTileColumns(src, ld, 0, channels, p, gemmNR, pairs[:])
		for half := range 2 {
			packTransposedAVX512(gemmNR, &pairs[16*half*gemmNR], 4*gemmNR, (*float32)(unsafe.Pointer(&dst[p*ChannelUnit+2*16*half])))
		}
	}
	if p < pixels {
		channelsLastGeneric(dst, src, ld, channels, p, pixels)
	}
	return true
}

func transposePanel(dst, src []float32, ld, cols int) bool {
	if active != setAVX512 {
		return false
	}
	for half := range 2 {
		packTransposedAVX512(cols, &src[16*half*ld], 4*ld, &dst[16*half])
	}
	return true
}

func gatherUnits(dst, src []uint16, rows, n int, at []int32, step int) bool {
	switch active {
	case setAVX512:
		gatherUnitsAVX512(rows, n, &dst[0], unsafe.SliceData(src), &at[0], step)
	case setAVX2:
		gatherUnitsAVX2(rows, n, &dst[0], unsafe.SliceData(src), &at[0], step)
	default:
		return false
	}
	return true
}

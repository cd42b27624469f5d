package vec

// dropout hands the assembly pieces of whole blocks of 32 elements whose
// counters do not overflow their low half; plain Go does the edges.
func dropout(dst, x []float32, s Stream, start uint64, threshold uint32, scale float32) {
	if active == setGeneric {
		dropoutGeneric(dst, x, s, start, threshold, scale)
		return
	}
	var keys [20]uint32
	k0, k1 := s.Key[0], s.Key[1]
	for i := 0; i < len(keys); i += 2 {
		keys[i], keys[i+1] = k0, k1
		k0 += philoxW0
		k1 += philoxW1
	}
	for len(dst) > 0 {
		block := start / 4
		whole := min(len(dst), chunk) &^ 31
		if room := 1<<32 - uint64(uint32(block)); uint64(whole/4) > room {
			whole = int(4*room) &^ 31
		}
		n := whole
		if start%4 != 0 || whole == 0 { // up to the next whole block, or the few elements left
			n = min(len(dst), int(4-start%4))
			dropoutGeneric(dst[:n], x[:n], s, start, threshold, scale)
		} else {
			ctr := [4]uint32{uint32(block), uint32(block >> 32), s.Prefix[0], s.Prefix[1]}
			if active == setAVX512 {
				dropoutAVX512(dst[:n], x[:n], &ctr, &keys, threshold, scale)
			} else {
				dropoutAVX2(dst[:n], x[:n], &ctr, &keys, threshold, scale)
			}
		}
		dst, x, start = dst[n:], x[n:], start+uint64(n)
	}
}

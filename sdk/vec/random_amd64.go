package vec

// dropout hands the assembly pieces of whole blocks of 32 elements whose
// counters do not overflow their low half; plain Go does the edges.
func dropout(dst, x []float32, s Stream, start uint64, threshold uint32, scale float32) {
	if active == setGeneric {
		dropoutGeneric(dst, x, s, start, threshold, scale)
		return
	}
	keys := s.keys()
	for len(dst) > 0 {
		n, ctr, whole := s.piece(len(dst), start, chunk)
		switch {
		case !whole:
			dropoutGeneric(dst[:n], x[:n], s, start, threshold, scale)
		case active == setAVX512:
			dropoutAVX512(dst[:n], x[:n], &ctr, &keys, threshold, scale)
		default:
			dropoutAVX2(dst[:n], x[:n], &ctr, &keys, threshold, scale)
		}
		dst, x, start = dst[n:], x[n:], start+uint64(n)
	}
}

// draw is dropout for random numbers.
func (s Stream) draw(dst []float32, start uint64, d drawing) {
	if active == setGeneric {
		s.drawGeneric(dst, start, d)
		return
	}
	keys := s.keys()
	for len(dst) > 0 {
		n, ctr, whole := s.piece(len(dst), start, chunk/4) // a normal number takes some nanoseconds
		switch wide := active == setAVX512; {
		case !whole:
			s.drawGeneric(dst[:n], start, d)
		case d.normal && wide:
			drawNormalAVX512(dst[:n], &ctr, &keys, d.add, d.scale)
		case d.normal:
			drawNormalAVX2(dst[:n], &ctr, &keys, d.add, d.scale)
		case wide:
			drawUniformAVX512(dst[:n], &ctr, &keys, d.add, d.scale, d.limit)
		default:
			drawUniformAVX2(dst[:n], &ctr, &keys, d.add, d.scale, d.limit)
		}
		dst, start = dst[n:], start+uint64(n)
	}
}

// keys are the key's halves in each round.
func (s Stream) keys() (keys [20]uint32) {
	k0, k1 := s.Key[0], s.Key[1]
	for i := 0; i < len(keys); i += 2 {
		keys[i], keys[i+1] = k0, k1
		k0 += philoxW0
		k1 += philoxW1
	}
	return keys
}

// piece cuts elements from start on off left: n of them, at most most, which are
// whole blocks of 32 that begin at counter ctr, or few for plain Go.
func (s Stream) piece(left int, start uint64, most int) (n int, ctr [4]uint32, whole bool) {
	block := start / 4
	n = min(left, most) &^ 31
	if room := 1<<32 - uint64(uint32(block)); uint64(n/4) > room {
		n = int(4*room) &^ 31
	}
	if start%4 != 0 || n == 0 { // up to the next whole block, or the few elements left
		return min(left, int(4-start%4)), ctr, false
	}
	return n, [4]uint32{uint32(block), uint32(block >> 32), s.Prefix[0], s.Prefix[1]}, true
}

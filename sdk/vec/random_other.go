//go:build !amd64

package vec

func dropout(dst, x []float32, s Stream, start uint64, threshold uint32, scale float32) {
	dropoutGeneric(dst, x, s, start, threshold, scale)
}

func (s Stream) draw(dst []float32, start uint64, d drawing) { s.drawGeneric(dst, start, d) }

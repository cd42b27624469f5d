package compress

import (
	"fmt"

	"starling/sdk/vec"
)

// External is a method that this package does not know.
type External interface {
	// String is the canonical form.
	String() string
	// Size is the number of bytes of n elements.
	Size(n int) int
}

// Coder carries an External method out. It keeps nothing from one call to the next.
type Coder interface {
	// Encode writes the encoding of x, all of which is finite, to dst, which has its Size, and leaves in x what dst lacks of it, finite
	// as well.
	Encode(dst []byte, x []float32) error
	// Decode writes what src encodes, which is finite, to dst. An error means that src is no encoding, for which its sender is blamed; a failure of
	// the coder itself is a comm.OwnError.
	Decode(dst []float32, src []byte) error
}

// A foreign encoding travels behind a byte that says whether the vector was finite: what is not must not be lost, and is
// nothing that a foreign method has to know.
const (
	foreignFinite  = 1
	foreignInvalid = 2
)

func foreignSize(e External, n int) int {
	if n == 0 {
		return 0
	}
	return 1 + e.Size(n)
}

// foreignCodec encodes by a Coder.
type foreignCodec struct {
	external External
	coder    Coder
}

// NewForeign is NewStream with an External method, which coder carries out. gaps are the ranges of the n elements that belong to nothing,
// and stay zeros; the owned chunk begins at element at.
func NewForeign(cfg Config, coder Coder, n, owned, at int, gaps [][2]int) *Stream {
	s := NewStream(cfg, n, owned)
	s.codec = &foreignCodec{external: cfg.External, coder: coder}
	s.gaps = gaps
	for _, g := range gaps {
		if lo, hi := max(g[0]-at, 0), min(g[1]-at, owned); lo < hi {
			s.ownedGaps = append(s.ownedGaps, [2]int{lo, hi})
		}
	}
	return s
}

func (c *foreignCodec) encode(dst []byte, x []float32) error {
	if len(x) == 0 {
		return nil
	}
	if !vec.AllFinite(x) {
		clear(dst)
		dst[0] = foreignInvalid
		return nil
	}
	dst[0] = foreignFinite
	return c.coder.Encode(dst[1:], x)
}

func (c *foreignCodec) decode(dst []float32, src []byte) error {
	if want := foreignSize(c.external, len(dst)); len(src) != want {
		return sizeError(len(src), want)
	}
	if len(dst) == 0 {
		return nil
	}
	switch src[0] {
	case foreignInvalid:
		for i := range dst {
			dst[i] = nan
		}
		return nil
	case foreignFinite:
		return c.coder.Decode(dst, src[1:])
	}
	return fmt.Errorf("compressed gradient: it begins with %d where 1 or 2 was expected", src[0])
}

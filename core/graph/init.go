package graph

import (
	"math"
	"sync"

	"starling/sdk/vec"
)

// InitValues fills dst with elements offset, offset+1, … of a parameter's initial value. Each element is a function of
// the seed, the parameter's name and the element's index alone: any range of a parameter can be drawn anywhere, in any order,
// with the same bits on every architecture.
//
// Element i comes from word i%4 of Philox4x32-10 under the key seed ^ hash of the name and the counter (i/4, "init").
// Long ranges are cut among the process's threads.
func InitValues(a ParamAttrs, seed uint64, offset int, dst []float32) {
	if a.Init.Kind == InitConstant {
		for i := range dst {
			dst[i] = float32(a.Init.A)
		}
		return
	}
	h := HashName(a.Name) ^ seed
	key := [2]uint32{uint32(h), uint32(h >> 32)}
	const piece = 1 << 17
	if len(dst) <= piece {
		a.Init.fill(key, uint64(offset), dst)
		return
	}
	var wg sync.WaitGroup
	for from := 0; from < len(dst); from += piece {
		wg.Go(func() { a.Init.fill(key, uint64(offset+from), dst[from:min(from+piece, len(dst))]) })
	}
	wg.Wait()
}

// fill draws elements first, first+1, … into dst.
func (in *Init) fill(key [2]uint32, first uint64, dst []float32) {
	const domain = 0x696e6974 // "init": keeps these counters apart from those of dropout, whose last word is a micro-batch
	s := vec.Stream{Key: key, Prefix: [2]uint32{domain, math.MaxUint32}}
	if in.Kind == InitNormal {
		vec.Normal(dst, s, first, in.A, in.B) // by the inverse of the distribution function: within 6.4 standard deviations
		return
	}
	limit := float32(math.Inf(1))
	if in.B > in.A { // [A, B): rounding must not reach B
		limit = math.Nextafter32(float32(in.B), float32(in.A))
	}
	vec.Uniform(dst, s, first, in.A, in.B-in.A, limit)
}

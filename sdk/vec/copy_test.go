package vec

import (
	"math/rand/v2"
	"slices"
	"testing"
)

func TestCopyEach(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	eachSet(t, func(t *testing.T) {
		for _, streams := range []int{0, 1, 2, 5} {
			for _, n := range []int{0, 1, 31, 32, 100, chunkOf(streams) + 45} {
				var dst, src [][]float32
				for range streams {
					src, dst = append(src, normals(r, n)), append(dst, normals(r, n))
				}
				CopyEach(dst, src)
				for i := range dst {
					if !slices.Equal(dst[i], src[i]) {
						t.Fatalf("slice %d of %d, of %d elements, is not its source", i, streams, n)
					}
				}
			}
		}
	})
}

// chunkOf is beyond what one call of the assembly copies.
func chunkOf(streams int) int { return 1 << 14 / max(1, streams) }

func TestCopyEachWantsEqualSlices(t *testing.T) {
	a, b := make([]float32, 3), make([]float32, 4)
	for _, c := range [][2][][]float32{{{a}, {a, a}}, {{a}, {b}}, {{a, b}, {a, b}}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%d slices from %d were copied", len(c[0]), len(c[1]))
				}
			}()
			CopyEach(c[0], c[1])
		}()
	}
}

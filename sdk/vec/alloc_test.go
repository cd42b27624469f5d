package vec

import (
	"math/rand/v2"
	"testing"
)

func TestNothingAllocates(t *testing.T) {
	r := rand.New(rand.NewPCG(13, 14))
	var products []*product
	for i := range 4 {
		products = append(products, newProduct(r, 50, 130, 40, i&1 != 0, i&2 != 0, false))
	}
	x, y := normals(r, 100), normals(r, 100)
	from, to := [][]float32{x, x}, [][]float32{y, normals(r, 100)}
	scratch := make([]float32, GemmScratch(&products[0].GemmArgs))
	eachSet(t, func(t *testing.T) {
		n := testing.AllocsPerRun(10, func() {
			for _, p := range products {
				Gemm(&p.GemmArgs, 0, p.M, 0, p.N, scratch)
			}
			CopyEach(to, from)
			Sum(x)
			Dot(x, y)
			SumSq64(x)
			Softmax(y, x, 1)
			LogSumExp(x)
			LayerNorm(y, x, x, x, 1e-5)
			LayerNormGrad(y, x, x, x, 0, 1)
			AdamW(x, y, y, x, AdamWParams{C1: 1, C2: 1})
			SGD(x, y, y, SGDParams{Momentum: 0.9})
			Dropout(y, x, 0.1, Stream{}, 0)
		})
		if n != 0 {
			t.Errorf("%v allocations a run, want none", n)
		}
	})
}

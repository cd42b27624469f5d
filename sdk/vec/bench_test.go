package vec

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// eachSetB runs f once under every kernel set of this machine.
func eachSetB(b *testing.B, f func(b *testing.B)) {
	for _, name := range Sets() {
		b.Run(name, func(b *testing.B) {
			restore, err := Use(name)
			if err != nil {
				b.Fatal(err)
			}
			defer restore()
			f(b)
		})
	}
}

// BenchmarkGemm multiplies block by block as the CPU device does, on one
// thread, and prints the rate and the fraction of Peak.
func BenchmarkGemm(b *testing.B) {
	r := rand.New(rand.NewPCG(7, 8))
	eachSetB(b, func(b *testing.B) {
		for _, s := range [][3]int{
			{64, 64, 24}, {64, 24, 64}, {512, 384, 96}, {512, 96, 384}, {512, 96, 96}, {512, 256, 96},
			{3072, 1536, 384}, {512, 512, 512}, {1024, 1024, 1024},
		} {
			m, n, k := s[0], s[1], s[2]
			if Active() == "generic" && m*n*k > 1<<27 {
				continue
			}
			for _, form := range []string{"NN", "NT", "TN"} {
				b.Run(fmt.Sprintf("%dx%dx%d/%s", m, n, k, form), func(b *testing.B) {
					g := GemmArgs{M: m, N: n, K: k, A: normals(r, m*k), B: normals(r, k*n), C: make([]float32, m*n), LDA: k, LDB: n, LDC: n}
					switch form {
					case "NT":
						g.TransB, g.LDB = true, k
					case "TN":
						g.TransA, g.LDA = true, m
					}
					scratch := make([]float32, GemmScratch(&g))
					mb, nb := GemmTasks(m, n, k)
					for b.Loop() {
						for i := 0; i < m; i += mb {
							for j := 0; j < n; j += nb {
								Gemm(&g, i, min(i+mb, m), j, min(j+nb, n), scratch)
							}
						}
					}
					rate := 2 * float64(m) * float64(n) * float64(k) * float64(b.N) / float64(b.Elapsed().Nanoseconds())
					b.ReportMetric(rate, "GFLOP/s")
					b.ReportMetric(100*rate/Peak(), "%peak")
				})
			}
		}
	})
}

// BenchmarkKernels runs functions on slices that stay in the first-level cache
// and on slices that do not fit any, and prints bytes moved.
func BenchmarkKernels(b *testing.B) {
	r := rand.New(rand.NewPCG(11, 12))
	eachSetB(b, func(b *testing.B) {
		for _, name := range []string{
			"Add", "Exp", "Log", "Tanh", "Gelu", "GeluGrad", "GeluErf", "GeluErfGrad", "Silu", "Sum", "Dot", "SumSq64", "MaxOf", "AllFinite",
			"Softmax", "SoftmaxGrad", "LogSumExp", "LayerNorm", "LayerNormGrad", "Dropout", "AdamW", "SGD momentum",
		} {
			for _, n := range []int{96, 2048, 1 << 22} {
				if Active() == "generic" && n > 1<<20 {
					continue
				}
				for _, c := range kernelCases {
					if c.name != name {
						continue
					}
					b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
						in, out := make([][]float32, c.ins), make([][]float32, c.out)
						for i := range in {
							in[i] = normals(r, n)
						}
						for i := range out {
							out[i] = normals(r, n)
						}
						for b.Loop() {
							c.run(in, out)
						}
						b.SetBytes(int64(4 * n * (c.ins + c.out)))
						b.ReportMetric(float64(n)*float64(b.N)/float64(b.Elapsed().Nanoseconds()), "Gelem/s")
					})
				}
			}
		}
	})
}

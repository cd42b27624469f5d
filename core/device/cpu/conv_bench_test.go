package cpu

import (
	"fmt"
	"testing"

	"starling/core/graph"
)

// BenchmarkConvolution runs the convolutions of a ResNet-18 on CIFAR images, forward and by both gradients.
func BenchmarkConvolution(b *testing.B) {
	const N = 32
	for _, z := range []struct{ c, h, o, kernel, stride int }{
		{3, 32, 64, 3, 1},
		{64, 32, 64, 3, 1}, {64, 32, 128, 3, 2}, {64, 32, 128, 1, 2},
		{128, 16, 128, 3, 1}, {128, 16, 256, 3, 2},
		{256, 8, 256, 3, 1}, {256, 8, 512, 3, 2},
		{512, 4, 512, 3, 1},
	} {
		a := graph.ConvAttrs{StrideH: z.stride, StrideW: z.stride, PadH: z.kernel / 2, PadW: z.kernel / 2, DilationH: 1, DilationW: 1, Groups: 1}
		out := z.h / z.stride
		x, w, y := fs(N, z.c, z.h, z.h), fs(z.o, z.c, z.kernel, z.kernel), fs(N, z.o, out, out)
		at := a
		at.H, at.W = z.h, z.h
		atW := a
		atW.H, atW.W = z.kernel, z.kernel
		for _, s := range []sample{
			{op: "conv2d", attrs: a, in: []operand{x, w}},
			{op: "conv2d_grad_x", attrs: at, in: []operand{y, w}},
			{op: "conv2d_grad_w", attrs: atW, in: []operand{y, x}},
		} {
			b.Run(fmt.Sprintf("%s/%dx%d_%d_k%d_s%d", s.op, z.c, z.h, z.o, z.kernel, z.stride), func(b *testing.B) {
				d := open(b, Config{Threads: 1})
				l := s.lay(b, d)
				run, err := d.Bind(l.call)
				if err != nil {
					b.Fatal(err)
				}
				for b.Loop() {
					run()
				}
				flops := 2 * float64(N*z.o*out*out*z.c*z.kernel*z.kernel)
				b.ReportMetric(flops*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
			})
		}
	}
}

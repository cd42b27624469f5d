package cpu

import (
	"fmt"
	"testing"

	"starling/core/graph"
	"starling/core/tensor"
)

// BenchmarkKernels runs single kernels on the quickstart's shapes (8 rows of 64 tokens) and some larger ones. Products report GFLOP/s,
// everything else the memory traffic of its operands.
func BenchmarkKernels(b *testing.B) {
	const B, T, C, H, V = 8, 64, 96, 4, 256
	q, kv := fs(B, T, H, C/H), fs(B, T, H, C/H)
	lse := fs(B, H, T)
	att := graph.AttentionAttrs{Causal: true, Scale: 0.2}
	hyper := numbers(1e-3, 0.9, 0.95, 1e-8, 0.1, 0.271, 0.142625, 1)
	attFLOPs := 4.0 * B * H * T * T * C / H / 2 // half of the scores are seen
	for _, c := range []struct {
		s     sample
		flops float64
	}{
		{sample{op: "linear", in: []operand{fs(B, T, C), fs(C, C), fs(C)}}, 2 * B * T * C * C},
		{sample{op: "linear", in: []operand{fs(B, T, C), fs(3*C, C), fs(3 * C)}}, 2 * B * T * 3 * C * C},
		{sample{op: "linear", in: []operand{fs(B, T, C), fs(4*C, C), fs(4 * C)}}, 2 * B * T * 4 * C * C},
		{sample{op: "linear", in: []operand{fs(B, T, 4*C), fs(C, 4*C), fs(C)}}, 2 * B * T * 4 * C * C},
		{sample{op: "linear_grad_x", in: []operand{fs(B, T, 4*C), fs(4*C, C)}}, 2 * B * T * 4 * C * C},
		{sample{op: "linear_grad_x", in: []operand{fs(B, T, C), fs(C, 4*C)}}, 2 * B * T * 4 * C * C},
		{sample{op: "linear_grad_w", in: []operand{fs(B, T, 4*C), fs(B, T, C)}}, 2 * B * T * 4 * C * C},
		{sample{op: "linear_grad_w", in: []operand{fs(B, T, C), fs(B, T, 4*C)}}, 2 * B * T * 4 * C * C},
		{sample{op: "matmul", attrs: graph.MatmulAttrs{}, in: []operand{fs(1024, 1024), fs(1024, 1024)}}, 2 << 30},
		{sample{op: "attention", attrs: att, in: []operand{q, kv, kv}}, attFLOPs},
		{sample{op: "attention_grad", attrs: att, in: []operand{q, q, kv, kv, q, lse}}, 2.5 * attFLOPs},
		{sample{op: "attention", attrs: att, in: []operand{fs(1, 1024, 4, 64), fs(1, 1024, 4, 64), fs(1, 1024, 4, 64)}}, 4.0 * 4 * 1024 * 1024 * 64 / 2},
		{sample{op: "conv2d", attrs: graph.ConvAttrs{StrideH: 1, StrideW: 1, PadH: 1, PadW: 1, DilationH: 1, DilationW: 1, Groups: 1},
			in: []operand{fs(16, 32, 28, 28), fs(64, 32, 3, 3), fs(64)}}, 2 * 16 * 64 * 28 * 28 * 32 * 9},
		{sample{op: "layer_norm", attrs: graph.NormAttrs{Eps: 1e-5}, in: []operand{fs(B, T, C), fs(C), fs(C)}}, 0},
		{sample{op: "layer_norm_grad", in: []operand{fs(B, T, C), fs(B, T, C), fs(C), fs(B*T, 2)}}, 0},
		{sample{op: "cross_entropy", attrs: graph.CrossEntropyAttrs{Ignore: -1}, in: []operand{fs(B*T, V), ids(V, B*T)}}, 0},
		{sample{op: "cross_entropy_grad", attrs: graph.CrossEntropyAttrs{Ignore: -1}, in: []operand{fs(), fs(B*T, V), ids(V, B*T), fs(B * T)}}, 0},
		{sample{op: "gelu", in: []operand{fs(B, T, 4*C)}}, 0},
		{sample{op: "gelu_grad", in: []operand{fs(B, T, 4*C), fs(B, T, 4*C)}}, 0},
		{sample{op: "add", in: []operand{fs(B, T, C), fs(B, T, C)}}, 0},
		{sample{op: "add", in: []operand{fs(B, T, C), fs(T, C)}}, 0},
		{sample{op: "dropout", attrs: graph.DropoutAttrs{P: 0.1}, in: []operand{fs(B, T, C), {tensor.U32, tensor.Shape{4}, below(9)}}}, 0},
		{sample{op: "embedding", in: []operand{fs(V, C), ids(V, B, T)}}, 0},
		{sample{op: "embedding_grad", attrs: graph.EmbeddingGradAttrs{Rows: V}, in: []operand{fs(B, T, C), ids(V, B, T)}}, 0},
		{sample{op: "adamw", attrs: graph.AdamWAttrs{}, inputs: []int{0, 2, 3},
			in: []operand{fs(360000), fs(360000), fs(360000), pos(360000), hyper}}, 0},
		{sample{op: "sum_squares", in: []operand{fs(360000)}}, 0},
	} {
		for _, threads := range []int{1, 2} {
			b.Run(fmt.Sprintf("%s/threads=%d", c.s.name(), threads), func(b *testing.B) {
				d := open(b, Config{Threads: threads})
				l := c.s.lay(b, d)
				run, err := d.Bind(l.call)
				if err != nil {
					b.Fatal(err)
				}
				if c.flops == 0 {
					var bytes int64
					for _, x := range l.call.In {
						bytes += x.Type.Bytes()
					}
					for _, x := range l.call.Out {
						bytes += x.Type.Bytes()
					}
					b.SetBytes(bytes)
				}
				for b.Loop() {
					run()
				}
				if c.flops > 0 {
					b.ReportMetric(c.flops*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
				}
			})
		}
	}
}

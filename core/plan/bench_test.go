package plan

import "testing"

// Planning GPT-2's 124M takes a fraction of a second; the graph has no memory of its own.
func BenchmarkBuildGPT2(b *testing.B) {
	g := gpt(b, gptSize{B: 4, T: 64, C: 768, V: 50257, Layers: 12, Heads: 12}, true)
	s := settings(2, 0)
	s.BucketBytes, s.FirstBucketBytes = 0, 0
	for b.Loop() {
		if _, err := Build(g, s); err != nil {
			b.Fatal(err)
		}
	}
}

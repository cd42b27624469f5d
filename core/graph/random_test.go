package graph_test

import (
	"math"
	"slices"
	"testing"

	"starling/core/graph"
	"starling/core/tensor"
)

// A draw depends on its key, the seed, the step and the micro-batch, and on nothing else; it keeps the share that it should and scales it.
func TestDropout(t *testing.T) {
	const n = 40_000
	x := graph.NewArray(graph.Type{DType: tensor.F32, Shape: tensor.Shape{n}})
	for i := range x.Data {
		x.Data[i] = 1
	}
	draw := func(p float64, key uint64, rng ...float64) []float64 {
		r := &graph.Array{Type: graph.Type{DType: tensor.U32, Shape: tensor.Shape{4}}, Data: rng}
		return compute(t, graph.OpDropout, graph.DropoutAttrs{P: p, Key: key}, x, r)[0].Data
	}
	for _, p := range []float64{0, 0.1, 0.5, 0.9} {
		kept := 0
		for _, v := range draw(p, 1, 2, 3, 4, 5) {
			switch v {
			case float64(float32(1 / (1 - p))):
				kept++
			case 0:
			default:
				t.Fatalf("an element of 1 became %v", v)
			}
		}
		if share := float64(kept) / n; math.Abs(share-(1-p)) > 4*math.Sqrt(p*(1-p)/n) {
			t.Errorf("with probability %v a share of %v is kept", p, share)
		}
	}
	first := draw(0.5, 1, 2, 3, 4, 5)
	if !slices.Equal(first, draw(0.5, 1, 2, 3, 4, 5)) {
		t.Error("two equal draws differ")
	}
	for what, other := range map[string][]float64{
		"key":         draw(0.5, 1<<40+1, 2, 3, 4, 5),
		"seed":        draw(0.5, 1, 3, 3, 4, 5),
		"high seed":   draw(0.5, 1, 2, 4, 4, 5),
		"step":        draw(0.5, 1, 2, 3, 5, 5),
		"micro-batch": draw(0.5, 1, 2, 3, 4, 6),
	} {
		equal := 0
		for i, v := range other {
			if v == first[i] {
				equal++
			}
		}
		if math.Abs(float64(equal)/n-0.5) > 0.02 {
			t.Errorf("a draw with another %s agrees in %d of %d elements", what, equal, n)
		}
	}
	if graph.DropoutKey("h.0", 1) == graph.DropoutKey("h.01", 0) || graph.DropoutKey("h.0", 1) == graph.DropoutKey("h.0", 2) {
		t.Error("two draws have one key")
	}
}

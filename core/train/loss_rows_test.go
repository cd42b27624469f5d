package train

import (
	"fmt"
	"testing"

	"starling/core/graph"
	"starling/core/plan"
	"starling/core/tensor"
)

// chunkModel is a small language model over digits: pixels, cut to a few levels, are tokens; each predicts the one behind it, where it is
// not empty. The head is the embedding's table or a weight of its own, in a block.
type chunkModel struct{ tied bool }

func (m chunkModel) Loss(batch []Input, training bool) (*graph.Graph, error) {
	b := graph.NewBuilder()
	in := map[string]*graph.Value{}
	for _, i := range batch {
		in[i.Name] = b.Must(graph.OpInput, graph.InputAttrs{Name: i.Name, DType: i.DType, Shape: graph.MakeDims(i.Shape)})[0]
	}
	param := func(name string, shape ...int) *graph.Value {
		return b.Must(graph.OpParam, graph.ParamAttrs{Name: name, Shape: graph.MakeDims(shape), Init: graph.Init{Kind: graph.InitNormal, B: 0.3}})[0]
	}
	x := in["features"]
	n := x.Shape[0]
	x = b.Must(graph.OpReshape, graph.ShapeAttrs{Shape: graph.MakeDims([]int{n, x.Shape.Numel() / n})}, x)[0]
	cut := func(lo, hi int) *graph.Value {
		y := b.Must(graph.OpSlice, graph.SliceAttrs{Axis: 1, Start: lo, End: hi, Size: x.Shape[1]}, x)[0]
		y = b.Must(graph.OpScale, graph.ScalarAttrs{Value: 5}, b.Must(graph.OpAbs, nil, y)[0])[0]
		return b.Must(graph.OpCast, graph.CastAttrs{To: tensor.I32}, y)[0]
	}
	tokens, targets := cut(0, 40), cut(1, 41)
	table := param("table", 12, 20)
	y := b.Must(graph.OpEmbedding, nil, table, tokens)[0]
	b.Block = "body"
	y = b.Must(graph.OpGELU, nil, b.Must(graph.OpLinear, nil, y, param("up", 64, 20))[0])[0]
	y = b.Must(graph.OpLinear, nil, y, param("down", 20, 64))[0]
	b.Block = "head"
	y = b.Must(graph.OpLayerNorm, graph.NormAttrs{Eps: 1e-5}, y, param("norm", 20))[0]
	head := table
	if !m.tied {
		head = param("head", 12, 20)
	}
	logits := b.Must(graph.OpLinear, nil, y, head)[0]
	out := b.Must(graph.OpCrossEntropy, graph.CrossEntropyAttrs{Ignore: 0}, logits, targets)
	b.Output("loss", out[0])
	b.Output("weight", out[1])
	return b.G, nil
}

// Chunks of the loss change no weight and no figure, wherever a run is placed.
func TestChunksOfTheLossChangeNothing(t *testing.T) {
	for _, precision := range []string{"fp32", "bf16"} {
		for _, tied := range []bool{true, false} {
			var base, losses string
			for _, c := range []struct {
				rows, ranks, stage int
				again              plan.Recompute
			}{
				{-1, 1, 0, plan.Recompute{}}, {64, 1, 0, plan.Recompute{}}, {64, 2, 0, plan.Recompute{}}, {64, 3, 1, plan.Recompute{All: true}},
				{64, 2, 2, plan.Recompute{}}, {64, 3, 3, plan.Recompute{}}, {64, 2, 3, plan.Recompute{Blocks: []string{"head"}}}, {32, 1, 0, plan.Recompute{}}, {-1, 2, 3, plan.Recompute{}},
			} {
				name := fmt.Sprintf("%s, tied %v, chunks of %d on %d ranks, zero %d, %+v", precision, tied, c.rows, c.ranks, c.stage, c.again)
				if precision == "bf16" && c.rows == 32 {
					continue
				}
				r, err := runOn(t, t.Context(), c.ranks, 1, func(_ int, s *Spec, _ *Env) {
					wide(s, 6)
					s.Model = chunkModel{tied}
					s.Precision, s.Mesh.Zero, s.Mesh.Recompute, s.Mesh.LossRows = precision, c.stage, c.again, c.rows
				})
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				for i, x := range r {
					got := fmt.Sprint(x.TrainLoss, *x.EvalLoss)
					if base == "" {
						base, losses = x.WeightsSHA256, got
					}
					if x.WeightsSHA256 != base || got != losses {
						t.Errorf("%s, rank %d: weights %.16s and losses %s, want %.16s and %s", name, i, x.WeightsSHA256, got, base, losses)
					}
				}
			}
		}
	}
}

// The test above chunks what it says: training and evaluation both.
func TestChunksOfTheLossAreInThePlan(t *testing.T) {
	for _, precision := range []string{"fp32", "bf16"} {
		s := testSpec(t)
		s.Model, s.Precision, s.Mesh.LossRows = chunkModel{true}, precision, 64
		p, err := Plan(s, 1, 0)
		if err != nil {
			t.Fatal(err)
		}
		found := map[string]int{}
		for name, seg := range p.Segments {
			for _, in := range seg.Instrs {
				if in.Op == graph.OpLinearCrossEntropy || in.Op == graph.OpLinearCrossEntropyGrads {
					found[name]++
				}
			}
		}
		if found[plan.SegmentMicro] != 1 || len(found) != 2 {
			t.Errorf("%s: heads in chunks are %v, want one in %s and one in the evaluation", precision, found, plan.SegmentMicro)
		}
	}
}

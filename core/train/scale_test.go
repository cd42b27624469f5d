package train

import (
	"context"
	"math"
	"slices"
	"strings"
	"testing"

	"starling/core/graph"
	"starling/core/optim"
	"starling/core/tensor"
)

// scaled makes the spec steps of SGD over lines, one sample a rank, under a loss scale.
func scaled(s *Spec, src arraySource, batch, steps int, l optim.LossScale) {
	one(s, src, lineModel{}, 1)
	s.Data.GlobalBatch, s.Steps, s.LossScale = batch, steps, l
}

func dynamic(init float64) optim.LossScale {
	l := optim.DefaultLossScale
	l.Init, l.Window = init, 3
	return l
}

// Case 5.
func TestAnOverflowOnOneRankIsSkippedByAll(t *testing.T) {
	rows := make([][]float32, 16)
	for i := range rows {
		rows[i] = []float32{2, 1}
	}
	rows[5] = []float32{3e38, 1} // of the first step, on rank 5
	for _, stage := range []int{0, 1, 3} {
		var losses, scales []float64
		r, err := runOn(t, t.Context(), 8, 1, func(rank int, s *Spec, _ *Env) {
			scaled(s, lines(t, 1, rows...), 8, 2, dynamic(1024))
			s.Mesh.Zero = stage
			s.Optimizer = optim.SGD{Schedule: optim.Constant{Rate: 1}, Momentum: 0.9}
			if rank == 0 {
				s.OnStep = func(m Metrics) (Action, error) {
					losses, scales = append(losses, m["loss"]), append(scales, m["loss_scale"])
					return Action{}, nil
				}
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		for i, x := range r {
			if x.Skipped != 1 || x.LossScale != 512 || x.WeightsSHA256 != r[0].WeightsSHA256 {
				t.Errorf("zero %d, rank %d: %d steps skipped, scale %v; want 1 and 512 on every rank", stage, i, x.Skipped, x.LossScale)
			}
		}
		if losses[1] != 2 || !slices.Equal(scales, []float64{1024, 512}) {
			t.Errorf("zero %d: the second step has loss %v, want 2 of weights that have not moved; scales %v, want 1024 and 512", stage, losses[1], scales)
		}
	}
}

// Case 6.
func TestASkippedStepDoesNotAdvanceTheSchedule(t *testing.T) {
	src := lines(t, 1, []float32{3e38, 1}, []float32{1, 1}, []float32{1, 1})
	var rates, skipped []float64
	r, err := runOn(t, t.Context(), 1, 1, func(_ int, s *Spec, _ *Env) {
		scaled(s, src, 1, 3, dynamic(1024))
		s.Optimizer = optim.SGD{Schedule: optim.Linear{From: 0.5, To: 0.1, Total: 4}}
		s.OnStep = func(m Metrics) (Action, error) {
			rates, skipped = append(rates, m["lr"]), append(skipped, m["skipped"])
			return Action{}, nil
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if want := []float64{0.5, 0.5, 0.4}; !slices.Equal(rates, want) || !slices.Equal(skipped, []float64{1, 1, 1}) {
		t.Errorf("learning rates %v, want %v; skipped %v, want 1 from the first step on", rates, want, skipped)
	}
	if r[0].Steps != 3 || r[0].Skipped != 1 {
		t.Errorf("%d steps tried and %d skipped, want 3 and 1", r[0].Steps, r[0].Skipped)
	}
}

// Case 4.
func TestOverflowsForEverEndTheRun(t *testing.T) {
	inf := float32(math.Inf(1))
	_, err := runOn(t, t.Context(), 2, 1, func(_ int, s *Spec, _ *Env) {
		scaled(s, lines(t, 1, []float32{1, 1}, []float32{inf, 1}), 2, 100, dynamic(1024))
	})
	if err == nil || !strings.Contains(err.Error(), "step 10: the gradient of w") || !strings.Contains(err.Error(), "The loss scale is 1 and cannot go down") {
		t.Errorf("error %v, want one of step 10, after ten halvings of 1024, that names w and the scale", err)
	}
}

// Case 11.
func TestTheGradientIsUnscaledBeforeItIsClipped(t *testing.T) {
	var norm float64
	var loss []float64
	_, err := runOn(t, t.Context(), 1, 1, func(_ int, s *Spec, _ *Env) {
		scaled(s, lines(t, 2, []float32{3, 4, 1}), 1, 2, optim.LossScale{Init: 1024})
		s.ClipNorm = 1
		s.OnStep = func(m Metrics) (Action, error) {
			norm = m["grad_norm"]
			loss = append(loss, m["loss"])
			return Action{}, nil
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	// Scaled norm 5120, unscaled 5, clipped to 1: w falls by (0.6, 0.8), the loss by 5.
	if math.Abs(norm-5) > 1e-5 || math.Abs(loss[0]-loss[1]-5) > 1e-4 {
		t.Errorf("norm %v and a fall of the loss by %v, want 5 and 5", norm, loss[0]-loss[1])
	}
}

// Case 7.
func TestTheScaleIsResumedWithItsCount(t *testing.T) {
	set := func(s *Spec) {
		wide(s, 6)
		s.Precision, s.LossScale, s.Checkpoint.Every = "fp16", dynamic(1<<20), 1
	}
	whole, err := runOn(t, t.Context(), 1, 1, func(_ int, s *Spec, _ *Env) { set(s); s.Steps = 14 })
	if err != nil {
		t.Fatal(err)
	}
	if whole[0].Skipped == 0 || whole[0].Skipped > 10 {
		t.Fatalf("%d of 14 steps were skipped, want a few", whole[0].Skipped)
	}
	dir := t.TempDir()
	for _, until := range []float64{3, 8, 99} {
		ctx, cancel := context.WithCancel(t.Context())
		r, err := runOn(t, ctx, 2, 1, func(rank int, s *Spec, e *Env) {
			set(s)
			s.Steps, s.Mesh.Zero, e.RunDir, e.Resume = 14, 3, dir, true
			s.OnStep = func(m Metrics) (Action, error) {
				if m["step"] == until && rank == 0 {
					cancel()
				}
				return Action{}, nil
			}
		})
		cancel()
		if until < 99 {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if r[0].WeightsSHA256 != whole[0].WeightsSHA256 || r[0].LossScale != whole[0].LossScale || r[0].Skipped != whole[0].Skipped {
			t.Errorf("resumed: scale %v, %d skipped, weights %.16s; want %v, %d and %.16s", r[0].LossScale, r[0].Skipped, r[0].WeightsSHA256,
				whole[0].LossScale, whole[0].Skipped, whole[0].WeightsSHA256)
		}
	}
}

// heavyModel multiplies its features by one weight in the half type; the gradient of the weight is the mean feature.
type heavyModel struct{}

func (heavyModel) Loss(batch []Input, _ bool) (*graph.Graph, error) {
	b := graph.NewBuilder()
	x := b.Must(graph.OpInput, graph.InputAttrs{Name: "features", DType: tensor.F32, Shape: graph.MakeDims(batch[0].Shape)})[0]
	w := b.Must(graph.OpParam, graph.ParamAttrs{Name: "w", Shape: graph.MakeDims([]int{1, 2}), Init: graph.Init{Kind: graph.InitConstant, A: 1}})[0]
	all := graph.ReduceAttrs{Axes: graph.MakeDims([]int{0, 1})}
	b.Output("loss", b.Must(graph.OpSum, all, b.Must(graph.OpLinear, nil, x, w)[0])[0])
	one := b.Must(graph.OpSlice, graph.SliceAttrs{Axis: 1, Start: 1, End: 2, Size: 2}, x)[0]
	b.Output("weight", b.Must(graph.OpSum, all, one)[0])
	return b.G, nil
}

// 1024 contributions of 100 each: their sum does not fit into fp16, their mean does.
func TestNoUnscaledSumPassesThroughFP16(t *testing.T) {
	rows := make([][]float32, 1024)
	for i := range rows {
		rows[i] = []float32{100, 1}
	}
	src := lines(t, 1, rows...)
	for _, c := range []struct {
		ranks  int
		reduce string // the sums themselves in fp16 (case 29): contributions are scaled to the mean before they meet
	}{{1, ""}, {3, ""}, {1, "fp16"}, {3, "fp16"}, {4, "bf16"}} {
		ranks := c.ranks
		var norm float64
		r, err := runOn(t, t.Context(), ranks, 1, func(rank int, s *Spec, _ *Env) {
			one(s, src, heavyModel{}, 1)
			s.Data.Lanes, s.Precision, s.LossScale, s.Reduce = 1024, "fp16", dynamic(256), c.reduce
			if rank == 0 {
				s.OnStep = func(m Metrics) (Action, error) { norm = m["grad_norm"]; return Action{}, nil }
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		if want := math.Hypot(100, 1); math.Abs(norm-want) > 1e-3*want || r[0].Skipped != 0 {
			t.Errorf("%+v: the mean gradient has norm %v with %d steps skipped, want %v and none", c, norm, r[0].Skipped, want)
		}
	}
}

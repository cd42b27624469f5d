package train

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"starling/core/optim"
)

// Buckets that are updated as they arrive change no weight, loss or norm: at every stage, whatever the lanes and the precision, with parameters
// that are tied, frozen, unreached or larger than a bucket.
func TestUpdatingBucketsAsTheyArriveChangesNoWeight(t *testing.T) {
	for _, model := range []Model{testModel{hidden: 200, classes: 10}, oddModel{}, blockModel{layers: 4}} {
		for _, c := range []struct {
			precision string
			lanes     int
		}{{"fp32", 12}, {"bf16", 6}} {
			var base *Result
			var norms []float64
			for _, p := range []struct{ ranks, stage, shard int }{{1, 0, 0}, {2, 0, 0}, {3, 0, 0}, {2, 1, 0}, {5, 1, 0}, {3, 2, 0}, {4, 2, 0}, {2, 3, 0}, {5, 3, 0}, {4, 3, 2}} {
				for _, overlap := range []bool{true, false} {
					if !overlap && p.ranks != 2 {
						continue
					}
					name := fmt.Sprintf("%T, %s, %d lanes, %+v, overlap %v", model, c.precision, c.lanes, p, overlap)
					var got []float64
					r, err := runOn(t, t.Context(), p.ranks, 1, func(rank int, s *Spec, _ *Env) {
						wide(s, c.lanes)
						s.Model, s.Precision, s.ClipNorm = model, c.precision, 0
						s.Mesh.Zero, s.Mesh.Shard, s.Mesh.NoOverlap = p.stage, p.shard, !overlap
						if rank > 0 {
							return
						}
						s.OnStep = func(m Metrics) (Action, error) { got = append(got, m["grad_norm"], m["loss"]); return Action{}, nil }
						if plan, err := Plan(s, p.ranks, 0); err != nil {
							t.Error(err)
						} else if early := plan.Renewals != nil; early != (p.ranks > 1 && overlap) {
							t.Errorf("%s: buckets are updated as they arrive: %v", name, early)
						}
					})
					if err != nil {
						t.Fatalf("%s: %v", name, err)
					}
					if base == nil {
						base, norms = r[0], got
					}
					if r[0].WeightsSHA256 != base.WeightsSHA256 || *r[0].EvalLoss != *base.EvalLoss || fmt.Sprint(got) != fmt.Sprint(norms) {
						t.Errorf("%s: weights %.16s, norms and losses %v; want %.16s and %v as on one rank", name, r[0].WeightsSHA256, got, base.WeightsSHA256, norms)
					}
				}
			}
		}
	}
}

// A batch that counts nothing moves nothing, and a gradient that is not finite ends the run, also where the update does not wait for
// the whole gradient.
func TestEarlyUpdatesOfBatchesThatCannotCount(t *testing.T) {
	run := func(ranks int, rows ...[]float32) ([]*Result, error) {
		return runOn(t, t.Context(), ranks, 1, func(_ int, s *Spec, _ *Env) {
			one(s, lines(t, 1, rows...), lineModel{}, 1)
			s.Optimizer = optim.AdamW{Schedule: optim.Constant{Rate: 1}, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1} // decays even where the gradient is 0
			s.Mesh.Zero = ranks - 1
		})
	}
	var hash string
	for ranks := 1; ranks <= 4; ranks++ {
		r, err := run(ranks, []float32{4, 0}, []float32{4, 0}, []float32{4, 0}, []float32{4, 0})
		if err != nil {
			t.Fatal(err)
		}
		if hash == "" {
			hash = r[0].WeightsSHA256
		}
		if r[0].WeightsSHA256 != hash {
			t.Errorf("%d ranks: a batch without weight moved the parameters", ranks)
		}
		_, err = run(ranks, []float32{1, 1}, []float32{1, 1}, []float32{1, 1}, []float32{float32(math.NaN()), 1})
		if err == nil || !strings.Contains(err.Error(), "step 0: the gradient of w") || !strings.Contains(err.Error(), "no weights of this step are kept") {
			t.Errorf("%d ranks, not finite: error %v", ranks, err)
		}
	}
}

package train

import (
	"context"
	"fmt"
	"testing"

	"starling/core/optim"
)

func TestTheLossFalls(t *testing.T) {
	r, err := runOn(t, t.Context(), 1, 1, func(_ int, s *Spec, _ *Env) {
		s.Epochs, s.Steps, s.ClipNorm = 20, 0, 1
		s.Evaluate.Source = s.Data.Source // a memory test: these few samples do not tell much about others
		s.Optimizer = optim.AdamW{Schedule: optim.Constant{Rate: 3e-3}, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8}
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := *r[0].EvalLoss; got > 0.9 {
		t.Errorf("eval loss %.3f after 20 epochs, want below 0.9 (an untrained model has 2.3)", got)
	}
	if r[0].Steps != 280 || r[0].Epoch != 19 {
		t.Errorf("20 epochs of 500 samples in batches of 36 took %d steps and ended in epoch %d, want 280 and 19", r[0].Steps, r[0].Epoch)
	}
}

// TestPlacementDoesNotChangeWeights is the invariance table of the trainer: one hash for every placement.
func TestPlacementDoesNotChangeWeights(t *testing.T) {
	base, err := runOn(t, t.Context(), 1, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		ranks, threads int
		change         func(int, *Spec, *Env)
	}{
		{1, 2, nil}, {1, 4, nil}, {2, 1, nil}, {3, 1, nil}, {4, 1, nil}, {5, 1, nil}, {6, 2, nil},
		{2, 1, func(_ int, s *Spec, _ *Env) { s.Mesh.BucketMB, s.Mesh.FirstBucket = 25, 1 }},
		{2, 1, func(_ int, s *Spec, _ *Env) { s.Data.Workers, s.Data.Prefetch = 1, 1 }},
		{2, 1, zero(1)}, {3, 1, zero(1)}, {4, 1, zero(1)},
		{2, 1, zero(2)}, {3, 1, zero(2)}, {4, 1, zero(2)},
		{2, 1, zero(3)}, {3, 1, zero(3)}, {4, 1, zero(3)}, {6, 1, zero(3)},
		{2, 1, func(_ int, s *Spec, _ *Env) { s.Mesh.Zero, s.Mesh.NoOverlap = 1, true }},
		{3, 1, func(_ int, s *Spec, _ *Env) { s.Mesh.Zero, s.Mesh.NoOverlap = 3, true }},
		{2, 1, func(_ int, s *Spec, _ *Env) { s.Mesh.Zero, s.Mesh.KeepGathered = 3, true }},
		{2, 1, func(_ int, s *Spec, _ *Env) { s.Mesh.Zero, s.Mesh.KeepWholeKB = 3, 2 }},
	} {
		t.Run(fmt.Sprintf("%d ranks of %d threads", c.ranks, c.threads), func(t *testing.T) {
			r, err := runOn(t, t.Context(), c.ranks, c.threads, c.change)
			if err != nil {
				t.Fatal(err)
			}
			for i, x := range r {
				if x.WeightsSHA256 != base[0].WeightsSHA256 {
					t.Errorf("rank %d: weights %.16s, want %.16s as on one rank", i, x.WeightsSHA256, base[0].WeightsSHA256)
				}
				if *x.EvalLoss != *base[0].EvalLoss || x.TrainLoss != base[0].TrainLoss || x.Tokens != base[0].Tokens {
					t.Errorf("rank %d: losses %v, %v and %d tokens differ from %v, %v and %d on one rank", i, x.TrainLoss, *x.EvalLoss, x.Tokens,
						base[0].TrainLoss, *base[0].EvalLoss, base[0].Tokens)
				}
			}
		})
	}
}

// zero shards so much of the state.
func zero(stage int) func(int, *Spec, *Env) {
	return func(_ int, s *Spec, _ *Env) { s.Mesh.Zero = stage }
}

func TestResumeIsExact(t *testing.T) {
	whole, err := runOn(t, t.Context(), 1, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, ranks := range []struct{ first, then int }{{1, 1}, {4, 2}, {2, 6}} {
		dir := t.TempDir()
		ctx, cancel := context.WithCancel(t.Context())
		_, err := runOn(t, ctx, ranks.first, 1, func(rank int, s *Spec, e *Env) {
			e.RunDir = dir
			s.OnStep = func(m Metrics) (Action, error) {
				if m["step"] == 9 && rank == 0 {
					cancel() // between two checkpoints
				}
				return Action{}, nil
			}
		})
		cancel()
		if err == nil {
			t.Fatal("the cancelled run ended without an error")
		}
		r, err := runOn(t, t.Context(), ranks.then, 1, func(_ int, s *Spec, e *Env) { e.RunDir, e.Resume = dir, true })
		if err != nil {
			t.Fatal(err)
		}
		if r[0].WeightsSHA256 != whole[0].WeightsSHA256 {
			t.Errorf("stopped on %d ranks and resumed on %d: weights %.16s, want %.16s", ranks.first, ranks.then, r[0].WeightsSHA256, whole[0].WeightsSHA256)
		}
	}
}

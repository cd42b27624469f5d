package train

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"

	"starling/core/checkpoint"
	"starling/core/data"
	"starling/core/device"
	"starling/core/graph"
	"starling/core/optim"
	"starling/core/plan"
	"starling/core/tensor"
)

func TestShardingDoesNotChangeWeights(t *testing.T) {
	for _, lanes := range []int{6, 12} {
		base, err := runOn(t, t.Context(), 1, 1, func(_ int, s *Spec, _ *Env) { wide(s, lanes) })
		if err != nil {
			t.Fatal(err)
		}
		for stage := range 4 {
			for ranks := 1; ranks <= 5; ranks++ {
				for _, overlap := range []bool{true, false} {
					if !overlap && (stage == 0 || ranks != 3) {
						continue
					}
					name := fmt.Sprintf("%d lanes, zero %d on %d ranks, overlap %v", lanes, stage, ranks, overlap)
					r, err := runOn(t, t.Context(), ranks, 1, func(_ int, s *Spec, _ *Env) {
						wide(s, lanes)
						s.Mesh.Zero, s.Mesh.NoOverlap = stage, !overlap
					})
					if err != nil {
						t.Fatalf("%s: %v", name, err)
					}
					for i, x := range r {
						if x.WeightsSHA256 != base[0].WeightsSHA256 || *x.EvalLoss != *base[0].EvalLoss || x.TrainLoss != base[0].TrainLoss {
							t.Errorf("%s, rank %d: weights %.16s, losses %v and %v; want %.16s, %v and %v as on one rank", name, i,
								x.WeightsSHA256, x.TrainLoss, *x.EvalLoss, base[0].WeightsSHA256, base[0].TrainLoss, *base[0].EvalLoss)
						}
					}
				}
			}
		}
	}
}

// Each precision has its own hash, and that is the same wherever the run is placed.
func TestHalfPrecisionIsPlacedFreely(t *testing.T) {
	hashes := map[string]string{}
	for _, precision := range []string{"fp32", "bf16", "fp16"} {
		for _, lanes := range []int{6, 12} {
			base := ""
			for _, c := range []struct{ ranks, stage int }{{1, 0}, {2, 0}, {3, 1}, {2, 2}, {4, 2}, {3, 3}, {4, 3}} {
				r, err := runOn(t, t.Context(), c.ranks, 1, func(_ int, s *Spec, _ *Env) {
					wide(s, lanes)
					s.Precision, s.Mesh.Zero, s.ClipNorm = precision, c.stage, 0.5
					if precision == "fp16" {
						s.LossScale = optim.DefaultLossScale
						s.LossScale.Init = 1 << 21 // overflows at first
					}
				})
				if err != nil {
					t.Fatalf("%s, %+v: %v", precision, c, err)
				}
				if precision == "fp16" && (r[0].Skipped == 0 || r[0].Skipped == r[0].Steps) {
					t.Errorf("fp16, %+v: %d of %d steps overflowed, want some", c, r[0].Skipped, r[0].Steps)
				}
				if base == "" {
					base = r[0].WeightsSHA256
				}
				for i, x := range r {
					if x.WeightsSHA256 != base {
						t.Errorf("%s, %d lanes, %+v, rank %d: weights %.16s, want %.16s", precision, lanes, c, i, x.WeightsSHA256, base)
					}
				}
			}
			if other := hashes[base]; other != "" && other != precision {
				t.Errorf("%s gives the weights of %s", precision, other)
			}
			hashes[base] = precision
		}
	}
}

// Parameters that are sharded inside groups of ranks and replicated between them: the weights and losses of every other placement.
func TestHybridShardingDoesNotChangeWeights(t *testing.T) {
	for precision, lanes := range map[string]int{"fp32": 12, "bf16": 6} {
		for name, model := range map[string]Model{"wide": testModel{hidden: 200, classes: 10}, "odd": oddModel{}, "blocks": blockModel{layers: 3}} {
			var base *Result
			for _, c := range []struct {
				ranks, shard  int
				keep, overlap bool
			}{{1, 0, false, true}, {4, 2, false, true}, {4, 1, false, true}, {4, 4, false, true}, {6, 3, true, true}, {6, 2, false, false}} {
				if c.ranks == 6 && name == "wide" && precision == "bf16" {
					continue
				}
				r, err := runOn(t, t.Context(), c.ranks, 1, func(_ int, s *Spec, _ *Env) {
					wide(s, lanes)
					s.Model, s.Precision, s.ClipNorm = model, precision, 0.5
					s.Mesh.Shard, s.Mesh.KeepGathered, s.Mesh.NoOverlap = c.shard, c.keep, !c.overlap
					if c.ranks > 1 {
						s.Mesh.Zero = 3
					}
				})
				if err != nil {
					t.Fatalf("%s, %s, %+v: %v", precision, name, c, err)
				}
				if base == nil {
					base = r[0]
				}
				for i, x := range r {
					if x.WeightsSHA256 != base.WeightsSHA256 || *x.EvalLoss != *base.EvalLoss || x.TrainLoss != base.TrainLoss {
						t.Errorf("%s, %s, %+v, rank %d: weights %.16s, losses %v and %v; want %.16s, %v and %v as on one rank", precision, name, c, i,
							x.WeightsSHA256, x.TrainLoss, *x.EvalLoss, base.WeightsSHA256, base.TrainLoss, *base.EvalLoss)
					}
				}
			}
		}
	}
}

func TestRecomputingChangesNoWeight(t *testing.T) {
	for precision, budget := range map[string]int64{"fp32": 50 << 10, "fp16": 300 << 10} { // fp16 has weights in it, widened while they are used
		base := ""
		for _, c := range []struct {
			ranks, stage int
			again        plan.Recompute
		}{
			{1, 0, plan.Recompute{}}, {1, 0, plan.Recompute{All: true}}, {2, 0, plan.Recompute{Every: 2}}, {3, 1, plan.Recompute{All: true}},
			{2, 2, plan.Recompute{Blocks: []string{"b.*"}}}, {3, 3, plan.Recompute{All: true}}, {2, 3, plan.Recompute{Budget: budget}},
		} {
			r, err := runOn(t, t.Context(), c.ranks, 1, func(_ int, s *Spec, _ *Env) {
				wide(s, 12)
				s.Model = blockModel{layers: 5}
				s.Precision, s.Mesh.Zero, s.Mesh.Recompute = precision, c.stage, c.again
				if precision == "fp16" {
					s.LossScale = optim.DefaultLossScale
				}
			})
			if err != nil {
				t.Fatalf("%s, %+v: %v", precision, c, err)
			}
			if base == "" {
				base = r[0].WeightsSHA256
			}
			if r[0].WeightsSHA256 != base {
				t.Errorf("%s, %+v: weights %.16s, want %.16s", precision, c, r[0].WeightsSHA256, base)
			}
		}
	}
}

func TestAResumeMayShardOtherwise(t *testing.T) {
	type place struct{ ranks, stage, shard int }
	whole, err := runOn(t, t.Context(), 1, 1, func(_ int, s *Spec, _ *Env) { wide(s, 6) })
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ first, then place }{
		{place{1, 0, 0}, place{3, 3, 0}}, {place{4, 3, 0}, place{1, 0, 0}}, {place{3, 1, 0}, place{4, 2, 0}}, {place{2, 2, 0}, place{6, 3, 0}},
		{place{4, 3, 0}, place{2, 3, 0}}, {place{4, 3, 2}, place{3, 2, 0}}, {place{2, 1, 0}, place{6, 3, 2}},
	} {
		name := fmt.Sprintf("%+v then %+v", c.first, c.then)
		dir := t.TempDir()
		ctx, cancel := context.WithCancel(t.Context())
		_, err := runOn(t, ctx, c.first.ranks, 1, func(rank int, s *Spec, e *Env) {
			wide(s, 6)
			s.Mesh.Zero, s.Mesh.Shard, s.Checkpoint.Every, e.RunDir = c.first.stage, c.first.shard, 2, dir
			s.OnStep = func(m Metrics) (Action, error) {
				if m["step"] == 5 && rank == 0 {
					cancel()
				}
				return Action{}, nil
			}
		})
		cancel()
		if err == nil {
			t.Fatalf("%s: the cancelled run ended without an error", name)
		}
		started := -1
		r, err := runOn(t, t.Context(), c.then.ranks, 1, func(rank int, s *Spec, e *Env) {
			wide(s, 6)
			s.Mesh.Zero, s.Mesh.Shard, e.RunDir, e.Resume = c.then.stage, c.then.shard, dir, true
			if rank == 0 {
				e.Observe = func(ev Event) {
					if ev.Kind == EventResumed {
						started = ev.Step
					}
				}
			}
		})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if started < 2 {
			t.Errorf("%s: resumed at step %d, want one of the checkpoints of steps 2 and 4", name, started)
		}
		if r[0].WeightsSHA256 != whole[0].WeightsSHA256 {
			t.Errorf("%s: weights %.16s, want %.16s", name, r[0].WeightsSHA256, whole[0].WeightsSHA256)
		}
		// Whatever wrote it, a checkpoint holds every tensor once, whole and without padding.
		path, _, err := checkpoint.Latest(t.Context(), filepath.Join(dir, CheckpointFolder))
		if err != nil {
			t.Fatal(err)
		}
		elements := 0
		for _, x := range path.Tensors() {
			elements += tensor.Shape(x.Shape).Numel()
		}
		path.Close()
		if want := 3 * int(r[0].Parameters); elements != want {
			t.Errorf("%s: the checkpoint holds %d elements, want %d: parameters and two moments", name, elements, want)
		}
	}
}

// Cases 14, 16 and 18: sizes that do not divide, a tensor larger than a bucket, parameters that no loss reaches.
func TestOddParametersAreSharded(t *testing.T) {
	var hash string
	for stage := range 4 {
		warned := 0
		r, err := runOn(t, t.Context(), 3, 1, func(rank int, s *Spec, e *Env) {
			s.Model, s.Steps, s.Mesh.Zero, s.Mesh.BucketMB = oddModel{}, 4, stage, 0.02
			e.RunDir = filepath.Join(t.TempDir(), "run")
			if rank == 0 {
				e.Observe = func(ev Event) {
					if ev.Kind == EventWarning && ev.Text == "parameter aux.head does not reach the loss: it gets no gradient and keeps its initial value" {
						warned++
					}
				}
			}
		})
		if err != nil {
			t.Fatalf("zero %d: %v", stage, err)
		}
		if hash == "" {
			hash = r[0].WeightsSHA256
		}
		if r[0].WeightsSHA256 != hash || warned != 1 {
			t.Errorf("zero %d: weights %.16s, want %.16s; the unreached parameter was named %d times, want once", stage, r[0].WeightsSHA256, hash, warned)
		}
	}
}

// stateBytes is what an element takes with AdamW: the weight in use, a gradient buffer, and the moments, with the exact weight in half precision.
var stateBytes = map[string]plan.ElementBytes{
	"fp32": {Weight: 4, Grad: 4, State: 8}, "bf16": {Weight: 2, Grad: 4, State: 12}, "fp16": {Weight: 2, Grad: 4, State: 12},
}

// Case 17: a whole-tensor optimizer gets its matrix whole, whatever is sharded.
func TestWholeTensorOptimizersGetWholeTensors(t *testing.T) {
	s := testSpec(t)
	s.Model = deepModel{layers: 3, width: 1024}
	for stage := 1; stage <= 3; stage++ {
		s.Mesh.Zero = stage
		owners := 0
		for rank := range 4 {
			set := s.settings(4, rank, 1)
			update := set.Update
			set.Update = func(a graph.ParamAttrs) (plan.Update, error) {
				u, err := update(a)
				u.Whole = a.Shape.N == 2
				return u, err
			}
			g, err := s.Model.Loss(BatchInputs(s.Data.Source.Fields(), 3), true)
			if err != nil {
				t.Fatal(err)
			}
			p, err := plan.Build(g, set)
			if err != nil {
				t.Fatal(err)
			}
			for _, in := range p.Segments[plan.SegmentUpdate].Instrs {
				if in.Kind != device.Kernel {
					continue
				}
				owners++
				for _, o := range in.In[:4] {
					if len(o.Shape) != 2 {
						t.Errorf("zero %d, rank %d: the update of a matrix works on %v", stage, rank, o.Type)
					}
				}
			}
		}
		if owners != 3 {
			t.Errorf("zero %d: %d updates on all ranks, want one for each of 3 matrices", stage, owners)
		}
	}
}

func TestSamplesAreDrawnFromShardedModels(t *testing.T) {
	var texts []string
	for _, stage := range []int{0, 3} {
		_, err := runOn(t, t.Context(), 3, 1, func(rank int, s *Spec, e *Env) {
			s.Mesh.Zero, s.Steps, s.Model = stage, 2, tokenModel{}
			s.Samples = []Sample{{Forward: tokenModel{}.forward, Tokenizer: data.Bytes{}, Context: 4, Prompt: "ab", Tokens: 5, Temperature: 1}}
			if rank == 0 {
				e.Observe = func(ev Event) {
					if ev.Kind == EventSample {
						texts = append(texts, ev.Text)
					}
				}
			}
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(texts) != 2 || texts[0] != texts[1] || texts[0] == "" {
		t.Errorf("samples %q, want two that are equal", texts)
	}
}

// The plan's price of sharding is what is really sent.
func TestShardedRanksSendWhatIsPlanned(t *testing.T) {
	for stage := 1; stage <= 3; stage++ {
		for _, ranks := range []int{2, 3, 4} {
			var planned int64
			r, err := runOn(t, t.Context(), ranks, 1, func(rank int, s *Spec, _ *Env) {
				wide(s, 12)
				s.Evaluate, s.Checkpoint, s.Mesh.Zero = nil, nil, stage
				if rank != 0 {
					return
				}
				p, err := Plan(s, ranks, 0)
				if err != nil {
					t.Error(err)
					return
				}
				planned = p.Summary().SentBytes
			})
			if err != nil {
				t.Fatal(err)
			}
			// Beside it go the figures of the micro-batches and the partial sums of the norm, a few hundred bytes.
			if got := r[0].SentBytes; got < planned || got > planned+2000 {
				t.Errorf("zero %d on %d ranks: rank 0 sent %d bytes in a step, want the planned %d and at most 2000 for figures", stage, ranks, got, planned)
			}
		}
	}
}

package train

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"starling/core/checkpoint"
	"starling/core/graph"
	"starling/core/optim"
	"starling/core/plan"
)

// keep makes the optimizer keep its moments in a small type.
func keep(s *Spec, state string) {
	o := s.Optimizer.(optim.AdamW)
	o.State = state
	s.Optimizer = o
}

// Small optimizer state has one hash at every placement: a shard never cuts a block.
func TestSmallStateIsPlacedFreely(t *testing.T) {
	seen := map[string]string{}
	for _, state := range []string{"", optim.StateBF16, optim.StateInt8} {
		for _, precision := range []string{"fp32", "bf16"} {
			if precision == "bf16" && state != optim.StateInt8 {
				continue
			}
			name, base := state+" in "+precision, ""
			for _, c := range []struct {
				ranks, stage int
				offload      string
			}{{1, 0, ""}, {2, 0, ""}, {3, 1, ""}, {4, 2, ""}, {3, 3, ""}, {5, 3, "disk"}} {
				r, err := runOn(t, t.Context(), c.ranks, 1, func(rank int, s *Spec, e *Env) {
					wide(s, 6)
					keep(s, state)
					s.Steps = 4
					s.Precision, s.Mesh.Zero, s.Mesh.Offload, s.Checkpoint, s.Evaluate, e.RunDir = precision, c.stage, c.offload, nil, nil, t.TempDir()
					p, err := Plan(s, c.ranks, rank)
					if err == nil {
						err = plan.Check(p)
					}
					if err != nil {
						t.Error(err)
					}
				})
				if err != nil {
					t.Fatalf("%s, %+v: %v", name, c, err)
				}
				if base == "" {
					base = r[0].WeightsSHA256
				}
				if r[0].WeightsSHA256 != base {
					t.Errorf("%s, %+v: weights %.16s, want %.16s", name, c, r[0].WeightsSHA256, base)
				}
			}
			if other := seen[base]; other != "" {
				t.Errorf("%s gives the weights of %s", name, other)
			}
			seen[base] = name
		}
	}
}

// A run whose small state was saved goes on at another placement as if nothing had been.
func TestSmallStateIsResumed(t *testing.T) {
	for _, state := range []string{optim.StateBF16, optim.StateInt8} {
		whole, err := runOn(t, t.Context(), 1, 1, func(_ int, s *Spec, _ *Env) { wide(s, 6); keep(s, state) })
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		ctx, cancel := context.WithCancel(t.Context())
		_, err = runOn(t, ctx, 3, 1, func(rank int, s *Spec, e *Env) {
			wide(s, 6)
			keep(s, state)
			s.Mesh.Zero, s.Checkpoint.Every, e.RunDir = 1, 2, dir
			s.OnStep = func(m Metrics) (Action, error) {
				if m["step"] == 5 && rank == 0 {
					cancel()
				}
				return Action{}, nil
			}
		})
		cancel()
		if err == nil {
			t.Fatal("the cancelled run ended without an error")
		}
		r, err := runOn(t, t.Context(), 4, 1, func(_ int, s *Spec, e *Env) {
			wide(s, 6)
			keep(s, state)
			s.Mesh.Zero, e.RunDir, e.Resume = 3, dir, true
		})
		if err != nil {
			t.Fatal(err)
		}
		if r[0].WeightsSHA256 != whole[0].WeightsSHA256 {
			t.Errorf("%s: weights %.16s after a resume, want %.16s", state, r[0].WeightsSHA256, whole[0].WeightsSHA256)
		}
		c, _, err := checkpoint.Latest(t.Context(), filepath.Join(dir, CheckpointFolder))
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]checkpoint.DType{optim.StateBF16: checkpoint.BF16, optim.StateInt8: checkpoint.U8}[state]
		if x, ok := c.Lookup("body.weight/m"); !ok || x.DType != want {
			t.Errorf("%s: the checkpoint holds %+v, want %s", state, x, want)
		}
		c.Close()
	}
}

// The plan's optimizer state: 8, 4 and a little over 2 bytes for each element of the large parameters.
func TestSmallStateTakesItsBytes(t *testing.T) {
	for state, per := range map[string]float64{"": 8, optim.StateBF16: 4, optim.StateInt8: 2 + 8./graph.QuantBlock} {
		s := testSpec(t)
		keep(s, state)
		s.Model = deepModel{layers: 6, width: 512}
		for _, ranks := range []int{1, 4} {
			s.Mesh.Zero, s.Mesh.Data = 1, ranks
			p, err := Plan(s, ranks, 0)
			if err != nil {
				t.Fatal(err)
			}
			want := per * float64(p.Summary().Parameters) / float64(ranks)
			if got := float64(PlanMemory(s, p, 0).State); got < want*0.97 || got > want*1.03 {
				t.Errorf("state %q on %d ranks: %.0f bytes, want %.0f within 3%%", state, ranks, got, want)
			}
		}
	}
}

func TestASecondMomentThatCannotShrinkIsRefused(t *testing.T) {
	s := testSpec(t)
	o := s.Optimizer.(optim.AdamW)
	o.State, o.Beta2 = optim.StateBF16, 0.999
	s.Optimizer = o
	if err := s.Validate(); err == nil || !strings.Contains(err.Error(), "could only grow") {
		t.Errorf("beta2 = 0.999 in bf16: %v", err)
	}
}

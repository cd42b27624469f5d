package train

import (
	"strings"
	"testing"

	"starling/core/optim"
	"starling/core/plan"
)

// Sums of gradients in 16 bits round every lane and every node of the tree, on one rank as on several: each type has one hash for all placements.
func TestHalfSumsArePlacedFreely(t *testing.T) {
	seen := map[string]string{}
	for _, precision := range []string{"fp32", "bf16", "fp16"} {
		for _, reduce := range []string{"", "bf16", "fp16"} {
			for _, lanes := range []int{6, 12} {
				if precision != "fp32" && (reduce != precision || lanes == 12) {
					continue
				}
				name, base := precision+" reduced in "+reduce, ""
				for _, c := range []struct {
					ranks, stage int
					overlap      bool
				}{{1, 0, true}, {2, 0, true}, {5, 0, true}, {3, 1, false}, {2, 2, true}, {5, 2, true}, {3, 3, true}, {4, 3, false}} {
					r, err := runOn(t, t.Context(), c.ranks, 1, func(_ int, s *Spec, _ *Env) {
						wide(s, lanes)
						s.Steps, s.Evaluate, s.Checkpoint = 4, nil, nil
						s.Precision, s.Reduce, s.Mesh.Zero, s.Mesh.NoOverlap = precision, reduce, c.stage, !c.overlap
						if precision == "fp16" {
							s.LossScale = optim.DefaultLossScale
						}
					})
					if err != nil {
						t.Fatalf("%s, %d lanes, %+v: %v", name, lanes, c, err)
					}
					if base == "" {
						base = r[0].WeightsSHA256
					}
					if r[0].WeightsSHA256 != base {
						t.Errorf("%s, %d lanes, %+v: weights %.16s, want %.16s", name, lanes, c, r[0].WeightsSHA256, base)
					}
				}
				if other := seen[base]; other != "" && (lanes == 6 || other != name) {
					t.Errorf("%s, %d lanes gives the weights of %s", name, lanes, other)
				}
				seen[base] = name
			}
		}
	}
}

func TestHalfSumsNeedTheTree(t *testing.T) {
	s := testSpec(t)
	s.Reduce, s.Mesh.Reduction = "bf16", ReductionFast
	if err := s.Validate(); err == nil || !strings.Contains(err.Error(), "use one of the two") {
		t.Errorf("reduce_dtype and a fast reduction: %v", err)
	}
}

// Gradients in 16 bits are half the bytes, and the plan says so.
func TestHalfSumsSendHalfTheBytes(t *testing.T) {
	for _, c := range []struct{ ranks, stage int }{{2, 0}, {4, 0}, {3, 1}, {2, 2}, {4, 3}} {
		sent := map[string]int64{}
		for _, reduce := range []string{"", "bf16"} {
			var planned, gathers int64
			r, err := runOn(t, t.Context(), c.ranks, 1, func(rank int, s *Spec, _ *Env) {
				wide(s, 12)
				s.Evaluate, s.Checkpoint, s.Mesh.Zero, s.Reduce = nil, nil, c.stage, reduce
				if rank != 0 {
					return
				}
				p, err := Plan(s, c.ranks, 0)
				if err != nil {
					t.Error(err)
					return
				}
				if err := plan.Check(p); err != nil {
					t.Error(err)
				}
				planned, gathers = p.Summary().SentBytes, p.Summary().GatherSentBytes
			})
			if err != nil {
				t.Fatal(err)
			}
			if got := r[0].SentBytes; got < planned || got > planned+2000 {
				t.Errorf("%+v, reduced in %q: rank 0 sent %d bytes in a step, want the planned %d and at most 2000 for figures", c, reduce, got, planned)
			}
			sent[reduce] = planned - gathers
		}
		if 2*sent["bf16"] != sent[""] {
			t.Errorf("%+v: %d bytes of gradient in bf16, %d in fp32, want half", c, sent["bf16"], sent[""])
		}
	}
}

package train

import (
	"path/filepath"
	"strings"
	"testing"

	"starling/core/plan"
)

// Optimizer state, and at stage 3 parameters, in files: the same weights, and no file left behind. A resume finds them elsewhere.
func TestOffloadingChangesNoWeight(t *testing.T) {
	base := ""
	for _, c := range []struct {
		ranks, stage int
		offload      string
	}{{1, 0, ""}, {1, 0, "disk"}, {2, 0, "host"}, {3, 1, "disk"}, {2, 2, "disk"}, {3, 3, "disk"}, {4, 3, "host"}} {
		dir := t.TempDir()
		r, err := runOn(t, t.Context(), c.ranks, 1, func(_ int, s *Spec, e *Env) {
			wide(s, 12)
			s.Mesh.Zero, s.Mesh.Offload, e.RunDir = c.stage, c.offload, dir
		})
		if err != nil {
			t.Fatalf("%+v: %v", c, err)
		}
		if base == "" {
			base = r[0].WeightsSHA256
		}
		if r[0].WeightsSHA256 != base {
			t.Errorf("%+v: weights %.16s, want %.16s", c, r[0].WeightsSHA256, base)
		}
		if left, _ := filepath.Glob(filepath.Join(dir, "starling-*")); len(left) > 0 {
			t.Errorf("%+v: the files %v are left", c, left)
		}
	}
}

// Activations off the device between the passes: the same weights, with and without recomputation, in each precision, at every stage.
func TestOffloadingActivationsChangesNoWeight(t *testing.T) {
	for _, precision := range []string{"fp32", "bf16"} {
		base := ""
		for _, c := range []struct {
			ranks, stage int
			offload      string
			again        bool
		}{{1, 0, "", false}, {1, 0, "host", false}, {2, 1, "disk", false}, {3, 3, "host", true}, {2, 3, "disk", false}} {
			r, err := runOn(t, t.Context(), c.ranks, 1, func(_ int, s *Spec, e *Env) {
				s.Model, s.Precision, s.Steps, e.RunDir = blockModel{layers: 6}, precision, 3, t.TempDir()
				s.Data.GlobalBatch, s.Data.MicroBatch, s.Data.Lanes = 192, 64, 3
				s.Mesh.Zero, s.Mesh.Offload, s.Mesh.OffloadWork, s.Mesh.Recompute.All = c.stage, c.offload, c.offload != "", c.again
				p, err := Plan(s, c.ranks, 0)
				if err != nil {
					t.Error(err)
				} else if m := PlanMemory(s, p, 0); (m.Off.Work > 0) != (c.offload != "") || m.Total()+m.Host() == 0 {
					t.Errorf("%+v: %d bytes of activations off the device", c, m.Off.Work)
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

// The host's memory has a count and a limit of its own: what is there does not count to the device's.
func TestTheHostsMemoryIsCountedApart(t *testing.T) {
	s := testSpec(t)
	s.Model, s.Mesh.Data, s.Mesh.Zero = blockModel{layers: 6}, 2, 3
	memory := func() (MemoryPlan, *plan.Plan) {
		p, err := Plan(s, 2, 0)
		if err != nil {
			t.Fatal(err)
		}
		return PlanMemory(s, p, 0), p
	}
	on, _ := memory()
	s.Mesh.Offload = OffloadHost
	off, p := memory()
	if off.Off.State != on.State || off.Off.Params != on.Params || off.Total()+off.Host() != on.Total() || off.Total() >= on.Total()-on.State {
		t.Errorf("%d bytes on the device and %d off it, of %d", off.Total(), off.Host(), on.Total())
	}
	s.Mesh.MemoryBytes, s.Mesh.HostBytes = off.Total(), off.Host()
	if err := s.Fits(p, 0); err != nil {
		t.Errorf("what fits both limits is refused: %v", err)
	}
	s.Mesh.HostBytes--
	if err := s.Fits(p, 0); err == nil || !strings.Contains(err.Error(), "of the host's memory") {
		t.Errorf("a byte too much of the host's memory: %v", err)
	}
}

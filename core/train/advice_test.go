package train

import (
	"strings"
	"testing"

	"starling/core/plan"
)

// Where no single change makes a run fit, changes together are offered, each of the size that it says; what fits is accepted.
func TestChangesTogetherAreOffered(t *testing.T) {
	s := testSpec(t)
	s.Model, s.Mesh.Data = blockModel{layers: 12}, 4
	s.Data.GlobalBatch, s.Data.MicroBatch, s.Data.Lanes = 256, 64, 4
	again := func(t *Spec) {
		t.Mesh.Zero, t.Mesh.Recompute, t.Mesh.Offload = 3, plan.Recompute{All: true}, OffloadDisk
	}
	small := *s
	again(&small)
	m, err := small.mostMemory(0)
	if err != nil {
		t.Fatal(err)
	}
	s.Mesh.MemoryBytes = m.Total()
	p, err := Plan(s, 4, 0)
	if err != nil {
		t.Fatal(err)
	}
	err = s.Fits(p, 0)
	if err == nil || !strings.Contains(err.Error(), " and ") || !strings.Contains(err.Error(), "MiB") {
		t.Fatalf("the refusal offers no changes together: %v", err)
	}
	again(s)
	if p, err = Plan(s, 4, 0); err != nil {
		t.Fatal(err)
	}
	if err := s.Fits(p, 0); err != nil {
		t.Errorf("what was planned to fit is refused: %v", err)
	}
}

// Where the host's memory is what lacks, changes that need less of it are offered together with what the device then lacks.
func TestARunThatTheHostCannotHoldIsToldOfTheDisk(t *testing.T) {
	s := testSpec(t)
	s.Model, s.Mesh.Data = blockModel{layers: 12}, 1
	s.Data.GlobalBatch, s.Data.MicroBatch, s.Data.Lanes = 64, 64, 1
	small := *s
	small.Mesh.Offload, small.Mesh.Recompute = OffloadDisk, plan.Recompute{All: true}
	m, err := small.mostMemory(0)
	if err != nil {
		t.Fatal(err)
	}
	s.Mesh.Offload, s.Mesh.HostBytes, s.Mesh.MemoryBytes = OffloadHost, 1, m.Total()
	p, err := Plan(s, 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	err = s.Fits(p, 0)
	if err == nil || !strings.Contains(err.Error(), `offload = "disk"`) {
		t.Fatalf("the refusal does not offer the disk: %v", err)
	}
	if zero, data := (change{family: "zero"}), (change{family: "data"}); !exclusive([]change{zero, data}) || exclusive([]change{zero}) {
		t.Error("changes that set one thing are tried together")
	}
}

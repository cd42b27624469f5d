package train

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"

	"starling/core/cluster"
	"starling/core/comm"
	"starling/core/device"
	"starling/core/device/cpu"
	"starling/core/optim"
	"starling/core/plan"
)

// TestPlannedMemoryIsWhatIsWritten compares the planned arenas with how far kernels really wrote into them.
func TestPlannedMemoryIsWhatIsWritten(t *testing.T) {
	dev, err := cpu.Open(cpu.Config{Threads: 2, TrackWrites: true})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	s := testSpec(t)
	s.Checkpoint = nil
	l := &loop{spec: s, env: Env{World: 1, Device: dev, Digest: "test", Observe: func(Event) {}, Status: func(string) {}}}
	defer l.close()
	if err := l.prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := l.train(t.Context()); err != nil {
		t.Fatal(err)
	}
	p := l.engine.plan
	for space := range device.NumSpaces {
		arenas := []device.Arena{l.engine.mem.Arenas[space]}
		switch space {
		case device.Grads:
			arenas = l.engine.grads
		case device.IO: // the host writes its inputs, which the device does not see
			continue
		}
		for i, a := range arenas {
			// The last operand may end up to one alignment before the arena does.
			if planned, written := p.ArenaBytes[space], cpu.HighWater(a); written > planned || planned-written >= device.Align {
				t.Errorf("%v %d: %d bytes planned, %d written", space, i, planned, written)
			}
		}
	}
	planned, _, used := l.memory()
	planned -= snapshotBytes(p) // nothing was saved
	if used > planned || float64(used) < 0.97*float64(planned)-float64(p.Summary().StagingBytes) {
		t.Errorf("planned peak %d bytes without a snapshot, used %d", planned, used)
	}
}

// TestStateTakesItsShareOfRealMemory trains at every stage on 1, 2, 4 and 8 ranks and compares what each rank then holds of
// parameters, gradients and optimizer state with the formula, within 3%, and the state and gradients that kernels have really
// written with the arenas that were planned for them.
func TestStateTakesItsShareOfRealMemory(t *testing.T) {
	const lanes = 8
	for _, precision := range []string{"fp32", "bf16"} {
		for _, ranks := range []int{1, 2, 4, 8} {
			for stage := range 4 {
				if ranks == 1 && stage > 0 {
					continue // one rank shards nothing
				}
				name := fmt.Sprintf("%s, zero %d on %d ranks", precision, stage, ranks)
				_, err := cluster.InProcess(t.Context(), cluster.Config{Ranks: ranks}, func(ctx context.Context, w *cluster.Worker) error {
					dev, err := cpu.Open(cpu.Config{Threads: 1, Ranks: ranks, TrackWrites: true})
					if err != nil {
						return err
					}
					defer dev.Close()
					s := testSpec(t)
					s.Model, s.Precision, s.Steps, s.ClipNorm = deepModel{layers: 6, width: 512}, precision, 2, 0
					s.Data.GlobalBatch, s.Data.MicroBatch, s.Data.Lanes = 16, 2, lanes
					s.Mesh = Mesh{Data: ranks, Zero: stage, BucketMB: 1, FirstBucket: 1}
					s.Evaluate, s.Checkpoint, s.Transient = nil, nil, true
					env := Env{Rank: w.Rank(), World: ranks, Device: dev, Threads: 1, Digest: "test", Observe: func(Event) {}, Status: w.Status}
					if ranks > 1 {
						all := make([]int, ranks)
						for i := range all {
							all[i] = i
						}
						if env.Group, err = comm.NewGroup(w.Transport(), "data", all, comm.Options{}); err != nil {
							return err
						}
						defer env.Group.Close()
					}
					l := &loop{spec: s, env: env}
					defer l.close()
					if err := l.prepare(ctx); err != nil {
						return err
					}
					if err := l.train(ctx); err != nil {
						return err
					}
					holds(t, fmt.Sprintf("%s, rank %d", name, w.Rank()), l)
					if ranks > 1 {
						return env.Group.Barrier(ctx, "end of the test")
					}
					return nil
				})
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
			}
		}
	}
}

// holds compares what a rank holds with the formula and with what was written.
func holds(t *testing.T, name string, l *loop) {
	e, p, s := l.engine, l.engine.plan, l.spec
	var m MemoryPlan
	m.Params, m.State = e.mem.Arenas[device.Params].Size(), e.mem.Arenas[device.State].Size()
	for _, a := range e.grads {
		m.Grads += a.Size()
	}
	for _, a := range e.sums {
		m.Sums += a.Size()
	}
	psi := float64(p.Summary().Parameters)
	compareMemory(t, name, s, l.env.World, plan.EstimateState(psi, s.Mesh.Zero, l.env.World, s.Data.LaneCount(), stateBytes[s.Precision]), m)
	written := func(what string, a device.Arena) {
		if high := cpu.HighWater(a); high > a.Size() || a.Size()-high >= 2*device.Align { // the last operand's end, rounded up, and a unit's
			t.Errorf("%s: %s: %d bytes were written of %d", name, what, high, a.Size())
		}
	}
	written("optimizer state", e.mem.Arenas[device.State])
	if !e.together() { // else parameters are gathered there, which no kernel writes
		written("activations", e.mem.Arenas[device.Work])
	}
	for i, a := range e.grads {
		written(fmt.Sprintf("gradient buffer %d", i), a)
	}
}

// compareState checks a rank's planned parameters, gradients and optimizer state against the formula, each within 3%.
func compareState(t *testing.T, name string, s *Spec, p *plan.Plan, ranks int) {
	t.Helper()
	e := plan.EstimateState(float64(p.Summary().Parameters), s.Mesh.Zero, ranks, s.Data.LaneCount(), stateBytes[s.Precision])
	compareMemory(t, name, s, ranks, e, PlanMemory(s, p, 0))
}

// compareMemory checks what a rank holds, as planned or as it is, against the formula.
func compareMemory(t *testing.T, name string, s *Spec, ranks int, e plan.Estimate, m MemoryPlan) {
	t.Helper()
	grads := m.Grads
	if s.Mesh.Zero >= 2 && ranks > 1 {
		grads = m.Sums // the buckets on their way are a line of their own
	}
	for _, x := range []struct {
		what string
		got  int64
		want float64
	}{{"parameters", m.Params, e.Params}, {"optimizer state", m.State, e.State}, {"gradients", grads, e.Grads}} {
		if math.Abs(float64(x.got)-x.want) > 0.03*x.want {
			t.Errorf("%s: %s take %d bytes, want %.0f within 3%%", name, x.what, x.got, x.want)
		}
	}
}

// Planned state against the formula of the ZeRO paper, with the stack of partial sums that a canonical sum over lanes needs: of each rank, at
// every stage, in every precision.
func TestShardedStateTakesItsShare(t *testing.T) {
	const lanes = 8
	for _, precision := range []string{"fp32", "bf16", "fp16"} {
		for _, ranks := range []int{1, 2, 4, 8} {
			for stage := range 4 {
				s := testSpec(t)
				s.Model, s.Precision = deepModel{layers: 6, width: 512}, precision
				if precision == "fp16" {
					s.LossScale = optim.DefaultLossScale
				}
				s.Data.GlobalBatch, s.Data.MicroBatch, s.Data.Lanes = 16, 2, lanes
				s.Mesh.Data, s.Mesh.Zero, s.Mesh.BucketMB, s.Mesh.FirstBucket = ranks, stage, 1, 1
				for rank := range ranks {
					name := fmt.Sprintf("%s, zero %d, rank %d of %d", precision, stage, rank, ranks)
					p, err := Plan(s, ranks, rank)
					if err != nil {
						t.Fatal(err)
					}
					if err := plan.Check(p); err != nil {
						t.Fatalf("%s: %v", name, err)
					}
					compareState(t, name, s, p, ranks)
					if m := PlanMemory(s, p, 0); stage >= 2 && ranks > 1 && m.Grads > 2*2<<20 {
						t.Errorf("%s: buckets on their way take %d bytes, want two of about 1 MiB", name, m.Grads)
					}
				}
			}
		}
	}
}

// The table of the ZeRO paper (figure 1), 7.5 billion parameters on 64 ranks, by planning such a model. The paper counts a gradient in two bytes;
// this runtime keeps its sums in four, which is what the plan is compared with first.
func TestAPlanOfThePapersModel(t *testing.T) {
	const ranks = 64
	for stage, want := range []float64{120, 31.4, 16.6, 1.9} {
		s := testSpec(t)
		s.Model, s.Precision, s.LossScale = deepModel{layers: 116, width: 8080}, "fp16", optim.DefaultLossScale
		s.Data.GlobalBatch, s.Data.MicroBatch, s.Data.Lanes = ranks, 1, ranks
		s.Mesh.Data, s.Mesh.Zero, s.Mesh.BucketMB, s.Mesh.FirstBucket = ranks, stage, 25, 1
		p, err := Plan(s, ranks, 17)
		if err != nil {
			t.Fatal(err)
		}
		psi := float64(p.Summary().Parameters)
		if math.Abs(psi-7.5e9) > 0.01*7.5e9 {
			t.Fatalf("the model has %g parameters, want about 7.5e9", psi)
		}
		compareState(t, fmt.Sprintf("zero %d", stage), s, p, ranks)
		m := PlanMemory(s, p, 0)
		grads := m.Grads
		if stage >= 2 {
			grads = m.Sums
		}
		got := float64(m.Params+m.State+grads/2) / psi * 7.5
		t.Logf("zero %d: %.2f GB", stage, got)
		if math.Abs(got-want) > 0.05+0.005*want { // the paper rounds to a tenth
			t.Errorf("zero %d: %.2f GB with gradients of two bytes, the paper has %.1f", stage, got, want)
		}
	}
}

// A run that will not fit is refused with what takes the memory, and with changes that were tried.
func TestARunThatDoesNotFitIsRefused(t *testing.T) {
	s := testSpec(t)
	s.Model = blockModel{layers: 12}
	s.Data.GlobalBatch, s.Data.MicroBatch, s.Data.Lanes, s.Mesh.Data = 256, 32, 8, 4
	p, err := Plan(s, 4, 0)
	if err != nil {
		t.Fatal(err)
	}
	need := PlanMemory(s, p, 0).Total()
	s.Mesh.MemoryBytes = need
	if err := s.Fits(p, 0); err != nil {
		t.Errorf("a rank with just what it needs is refused: %v", err)
	}
	s.Mesh.MemoryBytes = need * 3 / 4
	err = s.Fits(p, 0)
	if err == nil {
		t.Fatal("a rank with three quarters of what it needs is not refused")
	}
	for _, want := range []string{"rank 0 needs", "optimizer state", "activations", "at their most in ", "parallel.mesh(zero = 1): ", "any of these makes it fit"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the refusal lacks %q:\n%v", want, err)
		}
	}
	if n := strings.Count(err.Error()[strings.Index(err.Error(), "any of these"):], "\n"); n != 3 {
		t.Errorf("%d changes are offered, want 3:\n%v", n, err)
	}
	lines := int64(0)
	m := PlanMemory(s, p, 0)
	for _, n := range []int64{m.Params, m.State, m.Grads, m.Sums, m.Work, m.IO, m.Communication, m.Loader, m.Snapshot, m.Corpus, m.Scratch} {
		lines += n
	}
	if lines != m.Total() {
		t.Errorf("the parts add up to %d bytes, the total is %d", lines, m.Total())
	}
}

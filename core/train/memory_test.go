package train

import (
	"context"
	"fmt"
	"testing"

	"starling/core/cluster"
	"starling/core/comm"
	"starling/core/device"
	"starling/core/device/cpu"
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

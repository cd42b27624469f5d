package train

import (
	"testing"

	"starling/core/device"
	"starling/core/device/cpu"
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

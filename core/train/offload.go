package train

import (
	"fmt"
	"os"

	"starling/core/device"
	"starling/core/plan"
)

// The places to which parallel.mesh(offload = …) moves what a step needs only once.
const (
	// OffloadHost is the memory of the host: an arena off the device. On a CPU that is where everything is.
	OffloadHost = "host"
	// OffloadDisk is files in the run's folder: the optimizer's state, and parameters where they are sharded. The system reads
	// them ahead as the update goes through them and writes them back behind it.
	OffloadDisk = "disk"
)

// filer is a device whose memory can live in files.
type filer interface {
	AllocFile(folder, name string, bytes int64) (device.Arena, error)
}

// onDisk reports whether an arena lives in a file.
func (s *Spec) onDisk(p *plan.Plan, space device.Space) bool {
	if s.Mesh.Offload != OffloadDisk {
		return false
	}
	sharded := false
	for _, u := range p.Units {
		sharded = sharded || u.Sharded
	}
	return space == device.State || space == device.Params && sharded
}

// allocFile makes an arena in a file of the run's folder.
func (e *engine) allocFile(name string, bytes int64) (device.Arena, error) {
	if usesPlugins(e.plan) {
		return nil, e.spec.errorf("mesh", "parallel.mesh(offload = \"disk\"): optimizer plugins share memory with the run and cannot work on files; use a built-in optimizer")
	}
	f, ok := e.dev.(filer)
	if !ok {
		return nil, e.spec.errorf("mesh", "parallel.mesh(offload = \"disk\"): device %s cannot keep memory in files", e.dev.Name())
	}
	folder := e.env.RunDir
	if folder == "" {
		folder = os.TempDir()
	}
	a, err := f.AllocFile(folder, fmt.Sprintf("%s-%d", name, e.env.Rank), bytes)
	if err != nil {
		return nil, fmt.Errorf("parallel.mesh(offload = \"disk\"): %w", err)
	}
	return a, nil
}

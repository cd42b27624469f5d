package train

import (
	"fmt"
	"os"
	"slices"

	"starling/core/device"
	"starling/core/plan"
)

// The places to which parallel.mesh(offload = …) moves what a step needs only once: the optimizer's state, parameters where they are
// sharded, and on request activations between the passes.
const (
	// OffloadHost is the memory of the host: arenas off the device, which count to the host's memory alone. The update of what is there
	// is made there. On a CPU both are the same memory, with a limit each.
	OffloadHost = "host"
	// OffloadDisk is files in the run's folder. The system reads them ahead as the update goes through them and writes them back
	// behind it.
	OffloadDisk = "disk"
)

// filer is a device whose memory can live in files.
type filer interface {
	AllocFile(folder, name string, bytes int64) (device.Arena, error)
}

// offloaded is where an arena lives off the device: OffloadHost, OffloadDisk, or "" for what is on it.
func (s *Spec) offloaded(p *plan.Plan, space device.Space) string {
	sharded := slices.ContainsFunc(p.Units, func(u *plan.Unit) bool { return u.Sharded })
	if space == device.State || space == device.Offload || space == device.Params && sharded {
		return s.Mesh.Offload
	}
	return ""
}

// allocArena makes the arena of a space where the spec wants it; shared, other processes can map it.
func (e *engine) allocArena(space device.Space, shared bool) (device.Arena, error) {
	name, bytes := space.String(), e.plan.ArenaBytes[space]
	switch where := e.spec.offloaded(e.plan, space); {
	case where == OffloadDisk:
		return e.allocFile(name, bytes)
	case where == OffloadHost && !shared: // what plugins map is the host's
		h, ok := e.dev.(device.HostAllocator)
		if !ok {
			return nil, e.spec.errorf("mesh", "parallel.mesh(offload = \"host\"): device %s computes with no memory but its own", e.dev.Name())
		}
		return h.AllocHost(name, bytes)
	}
	return e.alloc(name, bytes, shared)
}

// allocFile makes an arena in a file of the run's folder.
func (e *engine) allocFile(name string, bytes int64) (device.Arena, error) {
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
	if m, ok := a.(interface{ File() *os.File }); ok && m.File() != nil {
		e.files[a] = m.File() // which plugins map as they map memory
	} else if bytes > 0 && usesPlugins(e.plan) {
		a.Free()
		return nil, e.spec.errorf("mesh", "parallel.mesh(offload = \"disk\"): optimizer plugins cannot map the files of device %s", e.dev.Name())
	}
	return a, nil
}

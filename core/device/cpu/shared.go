package cpu

import (
	"fmt"
	"os"

	"starling/core/device"
	"starling/sdk/shm"
)

// sharedArena is memory that another process can map, between guard pages.
type sharedArena struct {
	mapping *shm.Mapping
	file    *os.File
}

// Bytes implements device.Arena.
func (a *sharedArena) Bytes() []byte { return a.mapping.Bytes }

// Size implements device.Arena.
func (a *sharedArena) Size() int64 { return int64(len(a.mapping.Bytes)) }

// Free implements device.Arena.
func (a *sharedArena) Free() {
	a.mapping.Unmap()
	a.file.Close()
}

// AllocShared is Alloc of memory that other processes can map by its file, which belongs to the arena.
func (d *Device) AllocShared(name string, bytes int64) (device.Arena, *os.File, error) {
	if bytes < 0 {
		return nil, nil, fmt.Errorf("cpu: arena %s cannot have %d bytes", name, bytes)
	}
	f, err := shm.Create(name, bytes)
	if err != nil {
		return nil, nil, fmt.Errorf("cpu: arena %s: %w", name, err)
	}
	m, err := shm.Map(f.Fd(), 0, bytes, true)
	if err != nil {
		f.Close()
		return nil, nil, fmt.Errorf("cpu: arena %s of %d bytes: %w", name, bytes, err)
	}
	m.HugePages()
	return &sharedArena{m, f}, f, nil
}

package cpu

import (
	"fmt"
	"os"

	"starling/core/device"
)

// fileArena is memory whose content lives in a file: what is not in use takes no memory, the system writes it back and
// reads it ahead.
type fileArena struct {
	mem  []byte
	file *os.File
}

// Bytes implements device.Arena.
func (a *fileArena) Bytes() []byte { return a.mem }

// Size implements device.Arena.
func (a *fileArena) Size() int64 { return int64(len(a.mem)) }

// File is where the arena lives, for other processes to map; nil where it has no bytes. It belongs to the arena.
func (a *fileArena) File() *os.File { return a.file }

// Free implements device.Arena.
func (a *fileArena) Free() {
	unmap(a.mem)
	a.mem = nil
	if a.file != nil {
		a.file.Close() // it has no name any more: its room on the disk is free again
	}
}

// AllocFile is Alloc of memory that lives in a file of its own in a folder, on a disk with room for it. The file has no name: nothing
// is left of it when the arena is freed or the process ends. Kernels should go through it in order.
func (d *Device) AllocFile(folder, name string, bytes int64) (device.Arena, error) {
	if bytes < 0 {
		return nil, fmt.Errorf("cpu: arena %s cannot have %d bytes", name, bytes)
	}
	if bytes == 0 {
		return &fileArena{}, nil
	}
	f, err := os.CreateTemp(folder, "starling-"+name+"-")
	if err != nil {
		return nil, fmt.Errorf("cpu: a file for arena %s: %w", name, err)
	}
	defer os.Remove(f.Name())
	if err := reserveFile(f, bytes); err != nil {
		f.Close()
		return nil, fmt.Errorf("cpu: a file of %d bytes for arena %s in %s: %w", bytes, name, folder, err)
	}
	mem, err := mapFile(f, bytes)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("cpu: mapping a file of %d bytes for arena %s: %w", bytes, name, err)
	}
	return &fileArena{mem, f}, nil
}

package cpu

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"starling/core/device"
)

// hugeFrom is the size from which an arena asks for huge pages: below it they would waste more memory
// than they save time.
const hugeFrom = 4 << 20

// arena is anonymous memory, aligned to a page and hence to device.Align.
type arena struct {
	mem  []byte
	high atomic.Int64  // end of the last byte that a kernel wrote, where the device tracks writes
	held *atomic.Int64 // the count that it is part of
	free func([]byte)  // gives the memory back
}

// held counts the bytes of arenas that exist.
type held struct{ device, host atomic.Int64 }

// Held is how many bytes of arenas exist on the device and, by AllocHost, off it. Both are memory of this machine; what is
// mapped for plugins or lies in files is not counted.
func (d *Device) Held() (device, host int64) { return d.held.device.Load(), d.held.host.Load() }

// Bytes implements device.Arena.
func (a *arena) Bytes() []byte { return a.mem }

// Size implements device.Arena.
func (a *arena) Size() int64 { return int64(len(a.mem)) }

// Free implements device.Arena.
func (a *arena) Free() {
	a.held.Add(-int64(len(a.mem)))
	a.free(a.mem)
	a.mem = nil
}

// wrote notes that a kernel has written the bytes below end.
func (a *arena) wrote(end int64) {
	if end > a.high.Load() {
		a.high.Store(end)
	}
}

// HighWater is the end of the last byte of an arena that a kernel has written: what a plan's peak is compared
// with in tests. It is zero unless the device was opened with Config.TrackWrites.
func HighWater(a device.Arena) int64 {
	if a, ok := a.(*arena); ok {
		return a.high.Load()
	}
	return 0
}

// Alloc implements device.Device. Memory is zeroed and not resident until it is touched.
func (d *Device) Alloc(name string, bytes int64) (device.Arena, error) {
	return d.alloc(name, bytes, &d.held.device)
}

// AllocHost implements device.HostAllocator. The host's memory is this device's too, but it has a count of its own.
func (d *Device) AllocHost(name string, bytes int64) (device.Arena, error) {
	return d.alloc(name, bytes, &d.held.host)
}

func (d *Device) alloc(name string, bytes int64, held *atomic.Int64) (device.Arena, error) {
	if bytes < 0 {
		return nil, fmt.Errorf("cpu: arena %s cannot have %d bytes", name, bytes)
	}
	mem, err := mmap(bytes)
	if err != nil {
		return nil, fmt.Errorf("cpu: cannot get %d bytes for arena %s: %w", bytes, name, err)
	}
	held.Add(bytes)
	return &arena{mem: mem, held: held, free: unmap}, nil
}

// Adopt makes an arena of zeroed memory that somebody else has allocated, aligned to device.Align: such as other processes have
// mapped. Free calls free, once.
func (d *Device) Adopt(name string, mem []byte, free func()) (device.Arena, error) {
	if at := uintptr(unsafe.Pointer(unsafe.SliceData(mem))); at%device.Align != 0 {
		return nil, fmt.Errorf("cpu: arena %s: memory at %#x is not aligned to %d bytes", name, at, device.Align)
	}
	held := &d.held.device
	held.Add(int64(len(mem)))
	return &arena{mem: mem, held: held, free: func([]byte) { free() }}, nil
}

//go:build !unix

package cpu

import (
	"math"
	"syscall"
	"unsafe"

	"starling/core/device"
)

// mmap returns zeroed memory from the Go heap, aligned to device.Align.
func mmap(bytes int64) ([]byte, error) {
	if bytes == 0 {
		return nil, nil
	}
	if bytes > math.MaxInt-device.Align {
		return nil, syscall.ENOMEM
	}
	m := make([]byte, bytes+device.Align)
	skip := -int(uintptr(unsafe.Pointer(unsafe.SliceData(m)))) & (device.Align - 1)
	return m[skip : skip+int(bytes) : skip+int(bytes)], nil
}

// unmap leaves the memory to the collector.
func unmap([]byte) {}

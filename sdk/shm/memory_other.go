//go:build !linux

package shm

import "os"

// Supported reports whether this system has memory files.
const Supported = false

// Create returns ErrUnsupported.
func Create(string, int64) (*os.File, error) { return nil, ErrUnsupported }

// ReadOnly returns ErrUnsupported.
func ReadOnly(*os.File) (*os.File, error) { return nil, ErrUnsupported }

// Map returns ErrUnsupported.
func Map(uintptr, int64, int64, bool) (*Mapping, error) { return nil, ErrUnsupported }

// Unmap does nothing.
func (m *Mapping) Unmap() { m.Bytes, m.whole = nil, nil }

// HugePages does nothing.
func (m *Mapping) HugePages() {}

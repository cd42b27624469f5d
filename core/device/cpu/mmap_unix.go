//go:build unix

package cpu

import (
	"math"

	"golang.org/x/sys/unix"
)

// mmap returns zeroed anonymous memory.
func mmap(bytes int64) ([]byte, error) {
	if bytes == 0 {
		return nil, nil
	}
	if bytes > math.MaxInt {
		return nil, unix.ENOMEM
	}
	m, err := unix.Mmap(-1, 0, int(bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, err
	}
	if bytes >= hugeFrom {
		adviseHuge(m)
	}
	return m, nil
}

// unmap gives the memory of mmap back.
func unmap(m []byte) {
	if m != nil {
		_ = unix.Munmap(m) // fails only for memory that is not mapped
	}
}

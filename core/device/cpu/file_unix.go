//go:build unix

package cpu

import (
	"math"
	"os"

	"golang.org/x/sys/unix"
)

// mapFile maps a file's content into memory, to be gone through in order.
func mapFile(f *os.File, bytes int64) ([]byte, error) {
	if bytes > math.MaxInt {
		return nil, unix.ENOMEM
	}
	m, err := unix.Mmap(int(f.Fd()), 0, int(bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	_ = unix.Madvise(m, unix.MADV_SEQUENTIAL) // only a hint
	return m, nil
}

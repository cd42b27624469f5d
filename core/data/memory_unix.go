//go:build unix

package data

import "golang.org/x/sys/unix"

// allocBytes maps n zeroed bytes outside the Go heap.
func allocBytes(n int) ([]byte, error) {
	return unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
}

// sealBytes makes the bytes read-only: a stray write faults instead of changing data.
func sealBytes(b []byte) error { return unix.Mprotect(b, unix.PROT_READ) }

// freeBytes unmaps what allocBytes returned. Nil is allowed.
func freeBytes(b []byte) error {
	if b == nil {
		return nil
	}
	return unix.Munmap(b)
}

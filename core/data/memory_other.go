//go:build !unix

package data

// allocBytes falls back to the Go heap where there is no mmap.
func allocBytes(n int) ([]byte, error) { return make([]byte, n), nil }

func sealBytes([]byte) error { return nil }

func freeBytes([]byte) error { return nil }

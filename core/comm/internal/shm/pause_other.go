//go:build !amd64 && !arm64

package shm

// Pause marks a waiting loop.
func Pause() {}

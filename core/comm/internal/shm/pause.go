//go:build amd64 || arm64

package shm

// Pause tells the core that it is in a waiting loop, so that a thread sharing the core gets on and leaving the loop is
// cheap. It takes some tens of nanoseconds.
//
//go:noescape
func Pause()

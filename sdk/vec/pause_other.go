//go:build !amd64

package vec

// Pause does nothing on this architecture.
func Pause() {}

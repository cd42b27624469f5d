// Package shm is the shared memory between Starling and its plugins: memory files, mappings with guard pages around them, and
// the ring of slots through which results are handed over.
//
// It knows nothing of tensors and optimizers. Both ends of a connection use it; plugins written in Go meet it only through
// package sdk. Memory files exist on Linux (memfd_create); elsewhere every function that needs one returns ErrUnsupported.
package shm

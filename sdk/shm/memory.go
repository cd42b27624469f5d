package shm

import "os"

// errDeadline is what a wait that ran out of time returns.
var errDeadline = os.ErrDeadlineExceeded

// Mapping is a mapped range of a memory file, between two pages that nobody can touch.
type Mapping struct {
	// Bytes is the memory.
	Bytes []byte
	whole []byte // with the guard pages
}

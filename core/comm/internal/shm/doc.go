// Package shm gives the processes of one host memory that they all see, and a way to wait for each other in it.
//
// A Segment is anonymous shared memory (a memfd), which no mount limits and no crash leaves behind: it is handed from
// process to process as a file descriptor and lives as long as one of them maps it. A Bell is a word in it on which a
// process sleeps (a futex). Both exist on Linux; elsewhere Supported is false and Create fails.
//
// It knows nothing of ranks, groups or collectives.
package shm

import "errors"

// ErrUnsupported is returned where the system has no such memory.
var ErrUnsupported = errors.New("shared memory between processes is not supported on this system")

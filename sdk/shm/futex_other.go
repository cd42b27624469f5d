//go:build !linux

package shm

import (
	"sync/atomic"
	"time"
)

// sleep naps: without futexes a wait polls.
func sleep(_ *atomic.Uint32, _ uint32, d time.Duration) { time.Sleep(min(d, 50*time.Microsecond)) }

func wake(*atomic.Uint32) {}

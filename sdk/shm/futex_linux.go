package shm

import (
	"math"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	futexWait = 0 // FUTEX_WAIT, not private: the word is shared between processes
	futexWake = 1
)

// sleep blocks while word has the value v, for d at most.
func sleep(word *atomic.Uint32, v uint32, d time.Duration) {
	t := unix.NsecToTimespec(int64(d))
	// Errors mean that the value has changed, that time is up or that a signal came: the caller looks again.
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWait, uintptr(v), uintptr(unsafe.Pointer(&t)), 0, 0)
}

// wake ends the sleep of everybody who waits for word.
func wake(word *atomic.Uint32) {
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWake, math.MaxInt32, 0, 0, 0)
}

package shm

import (
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A Bell is a word of shared memory on which one process sleeps until another rings it.
type Bell struct {
	rings   atomic.Uint32
	waiting atomic.Uint32
}

const (
	futexWait = 0
	futexWake = 1
)

// Sleep returns when the bell rings, when ready has become true by the time it would fall asleep, or after limit.
func (b *Bell) Sleep(limit time.Duration, ready func() bool) {
	at := b.rings.Load()
	b.waiting.Add(1)
	if !ready() {
		ts := unix.NsecToTimespec(int64(limit))
		_, _, _ = syscall.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&b.rings)), futexWait, uintptr(at), uintptr(unsafe.Pointer(&ts)), 0, 0)
	}
	b.waiting.Add(^uint32(0))
}

// Ring wakes whoever sleeps. What the caller stored before is seen by the one who wakes.
func (b *Bell) Ring() {
	if b.waiting.Load() == 0 {
		return
	}
	b.rings.Add(1)
	_, _, _ = syscall.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&b.rings)), futexWake, 1<<30, 0, 0, 0)
}

// Yield lets another thread of the machine run on this core.
func Yield() { _, _, _ = syscall.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

package shm

import (
	"fmt"
	"sync/atomic"
	"unsafe"
)

// Journal is a ring's header page where the plugin copies results to their place itself: for each slot which task's result it
// holds, and for each task whether it has happened. Kernels keep the stores of a process that dies in the order in which it made
// them, and so does atomic.
type Journal struct {
	header []byte
	slots  int
	done   []byte
}

// NewJournal is the journal whose header page is mapped at header and whose uint32 for each task are at done.
func NewJournal(header []byte, slots int, done []byte) (*Journal, error) {
	if len(header) < HeaderBytes || slots < 1 || slots > MaxSlots {
		return nil, fmt.Errorf("a journal of %d slots with a header of %d bytes: slots must lie between 1 and %d and the header has %d bytes", slots, len(header), MaxSlots, HeaderBytes)
	}
	return &Journal{header, slots, done}, nil
}

func (j *Journal) computed(slot int) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&j.header[slot*lineBytes]))
}

// Computed notes that a slot holds the whole result of a task. The copy to its place follows.
func (j *Journal) Computed(slot int, task int64) { j.computed(slot).Store(uint32(task + 1)) }

// Committed notes that the copy is complete.
func (j *Journal) Committed(slot int, task int64) {
	j.happened(task).Store(1)
	j.computed(slot).Store(0)
}

func (j *Journal) happened(task int64) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&j.done[4*task]))
}

// Happened reports whether a task has happened.
func (j *Journal) Happened(task int64) bool { return j.happened(task).Load() != 0 }

// Pending returns the task whose copy may be incomplete in a slot.
func (j *Journal) Pending(slot int) (task int64, ok bool) {
	v := j.computed(slot).Load()
	return int64(v) - 1, v != 0
}

// Reset forgets everything. No plugin may be running a step.
func (j *Journal) Reset() {
	for i := range j.slots {
		j.computed(i).Store(0)
	}
	clear(j.done)
}

// Slots is their number.
func (j *Journal) Slots() int { return j.slots }

package shm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"
)

// ErrUnsupported says that this system has no memory files.
var ErrUnsupported = errors.New("this system has no memory that two processes can share by descriptor; optimizer plugins need Linux")

// ErrStopped is returned by waits that were told to stop.
var ErrStopped = errors.New("stopped")

const (
	// HeaderBytes is the size of the header page of a ring.
	HeaderBytes = 4096
	lineBytes   = 64
	// MaxSlots is how many lines the header has room for.
	MaxSlots = HeaderBytes / lineBytes
)

// Ring is the header page of the scratch memory. Task t goes through slot t mod Slots: the runtime gives the slot its turn, the
// plugin fills it and marks it ready, the runtime takes the result and gives the slot to task t + Slots.
type Ring struct {
	header []byte
	slots  int
}

// NewRing is the ring whose header page is mapped at header, a page of memory.
func NewRing(header []byte, slots int) (*Ring, error) {
	if len(header) < HeaderBytes || slots < 1 || slots > MaxSlots {
		return nil, fmt.Errorf("a ring of %d slots with a header of %d bytes: slots must lie between 1 and %d and the header has %d bytes", slots, len(header), MaxSlots, HeaderBytes)
	}
	return &Ring{header, slots}, nil
}

// Slots is their number.
func (r *Ring) Slots() int { return r.slots }

// Slot is the slot of a task.
func (r *Ring) Slot(task int64) int { return int(task % int64(r.slots)) }

// Reset gives the slots to the tasks from first on. Nobody may be using the ring.
func (r *Ring) Reset(first int64) {
	for t := first; t < first+int64(r.slots); t++ {
		turn, ready := r.words(t)
		ready.Store(uint32(t))
		turn.Store(uint32(t))
	}
}

func (r *Ring) words(task int64) (turn, ready *atomic.Uint32) {
	line := r.header[r.Slot(task)*lineBytes:]
	return (*atomic.Uint32)(unsafe.Pointer(&line[0])), (*atomic.Uint32)(unsafe.Pointer(&line[4]))
}

// AwaitTurn blocks until the task may use its slot, or until stopped is set.
func (r *Ring) AwaitTurn(task int64, stopped *atomic.Bool) error {
	turn, _ := r.words(task)
	return await(turn, uint32(task), stopped, time.Time{})
}

// Ready hands a filled slot over, with the number of elements that were computed.
func (r *Ring) Ready(task int64, elements int) {
	binary.LittleEndian.PutUint64(r.header[r.Slot(task)*lineBytes+8:], uint64(elements))
	_, ready := r.words(task)
	ready.Store(uint32(task + 1))
	wake(ready)
}

// AwaitReady blocks until the task's slot is filled and returns the number of elements that the plugin claims to have
// computed. It gives up when stopped is set, or at the deadline with os.ErrDeadlineExceeded.
func (r *Ring) AwaitReady(task int64, stopped *atomic.Bool, deadline time.Time) (uint64, error) {
	_, ready := r.words(task)
	if err := await(ready, uint32(task+1), stopped, deadline); err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint64(r.header[r.Slot(task)*lineBytes+8:]), nil
}

// Free gives the slot of a task that was taken to the task that is next in it.
func (r *Ring) Free(task int64) {
	turn, _ := r.words(task)
	turn.Store(uint32(task + int64(r.slots)))
	wake(turn)
}

const (
	// spins is how often a wait looks before it sleeps: some microseconds, the time that a neighbour on another core takes
	// to finish a small task.
	spins = 200
	// nap bounds a sleep, so that a peer that does not wake costs little, and a stop is seen.
	nap = time.Millisecond
)

// await blocks until word has the value want.
func await(word *atomic.Uint32, want uint32, stopped *atomic.Bool, deadline time.Time) error {
	for i := 0; ; i++ {
		v := word.Load()
		switch {
		case v == want:
			return nil
		case stopped.Load():
			return ErrStopped
		case i < spins:
			if i%16 == 15 {
				runtime.Gosched()
			}
			continue
		case !deadline.IsZero() && time.Now().After(deadline):
			return errDeadline
		}
		sleep(word, v, nap)
	}
}

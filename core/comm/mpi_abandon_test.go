//go:build mpi

package comm

import (
	"runtime"
	"testing"
	"time"
)

// TestAbandonedMemoryStaysPinned: a message that is given up keeps its memory pinned; letting go of a Pinner that pins ends the process.
func TestAbandonedMemoryStaysPinned(t *testing.T) {
	before := len(abandoned.ops)
	func() {
		o := &mpiOp{message: message{buf: make([]byte, 1<<16)}}
		o.pin.Pin(&o.buf[0])
		abandon(o)
	}()
	for range 5 {
		runtime.GC()
		time.Sleep(time.Millisecond) // for finalizers
	}
	if len(abandoned.ops) != before+1 {
		t.Error("the message was let go")
	}
}

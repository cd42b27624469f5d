//go:build !linux

package shm

import (
	"net"
	"runtime"
	"sync/atomic"
	"time"
)

// Supported says whether this system has segments.
const Supported = false

// Segment is memory that several processes have mapped.
type Segment struct{}

// Create fails: this system has no segments.
func Create(int) (*Segment, error) { return nil, ErrUnsupported }

// Bytes returns nothing.
func (s *Segment) Bytes() []byte { return nil }

// Reserve fails.
func (s *Segment) Reserve(int, int) error { return ErrUnsupported }

// Resident returns 0.
func (s *Segment) Resident() int64 { return 0 }

// Release fails.
func (s *Segment) Release(int, int) error { return ErrUnsupported }

// Close does nothing.
func (s *Segment) Close() error { return nil }

// Send fails.
func (s *Segment) Send(*net.UnixConn) error { return ErrUnsupported }

// Receive fails.
func Receive(*net.UnixConn) (*Segment, error) { return nil, ErrUnsupported }

// A Bell is a word on which one process sleeps until another rings it. Here it sleeps a short while.
type Bell struct {
	rings, waiting atomic.Uint32
}

// Sleep returns when ready is true or after a short while.
func (b *Bell) Sleep(limit time.Duration, ready func() bool) {
	if !ready() {
		time.Sleep(min(limit, 100*time.Microsecond))
	}
}

// Ring does nothing: sleeps are short.
func (b *Bell) Ring() {}

// Yield lets another goroutine run.
func Yield() { runtime.Gosched() }

package comm

import (
	"fmt"
	"time"
)

// Defaults of Options.
const (
	DefaultTimeout        = 60 * time.Second
	DefaultPrepareTimeout = 24 * time.Hour
	DefaultSilence        = 60 * time.Second
	DefaultPieceBytes     = 1 << 20
)

// ChunkAlign is the alignment of chunk boundaries, in elements, that the collectives use when they choose chunks
// themselves: one cache line of float32.
const ChunkAlign = 16

// Options of a group. The zero value asks for the defaults. All members must use the same PieceBytes.
type Options struct {
	// Timeout bounds every collective: how long to wait for the other ranks to enter it and, once all have, how long to go
	// without any progress.
	Timeout time.Duration
	// PrepareTimeout replaces the wait for other ranks in the group's first collective: ranks may still be preparing (reading
	// data, building programs) for a long time. While waiting, a rank that gives no sign of life for Silence is given up.
	PrepareTimeout time.Duration
	// Silence is how long a preparing rank may be silent on its connection; transports send heartbeats every second.
	Silence time.Duration
	// PieceBytes is the size of the pieces in which large payloads are pipelined, at most: a sum over many ranks takes smaller
	// ones (Reduction.StagingBytes).
	PieceBytes int
	// Flat sums over all members at once even where they run on several hosts. The bits are the same; see hierarchy.go for
	// what crosses the links. All members must agree.
	Flat bool
	// Recorder, if set, keeps what this rank does in the group.
	Recorder *Recorder
	// OnStall, if set, is called once when the group fails, on every rank, with the error that its collectives return: the
	// place to save all stacks. It runs on its own goroutine; collectives return after it has.
	OnStall func(err error)
}

// Validate reports values that make no sense.
func (o Options) Validate() error {
	switch {
	case o.Timeout < 0 || o.PrepareTimeout < 0 || o.Silence < 0:
		return fmt.Errorf("comm: negative timeout in group options %+v", o)
	case o.PieceBytes < 0 || o.PieceBytes%4 != 0:
		return fmt.Errorf("comm: PieceBytes is %d; it must be a multiple of 4", o.PieceBytes)
	case o.PieceBytes > maxMessage:
		return fmt.Errorf("comm: PieceBytes is %d; at most %d", o.PieceBytes, maxMessage)
	}
	return nil
}

func (o Options) withDefaults() Options {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&o.Timeout, DefaultTimeout)
	def(&o.PrepareTimeout, DefaultPrepareTimeout)
	def(&o.Silence, DefaultSilence)
	if o.PieceBytes == 0 {
		o.PieceBytes = DefaultPieceBytes
	}
	return o
}

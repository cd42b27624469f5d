package cpu

import (
	"fmt"

	"starling/core/device"
)

// copyPiece is how much is copied at once: a copy cannot be interrupted, and whoever stops the world would wait for it.
const copyPiece = 1 << 20

// copier copies between arenas on a thread of its own, beside the kernels: what a page of a file costs to bring in, it waits for.
type copier struct {
	jobs  chan *copyJob
	ended chan struct{}
}

type copyJob struct {
	src, dst []byte
	done     chan struct{}
}

func newCopier() *copier {
	// Copies that wait for their turn are few: a block's activations.
	c := &copier{jobs: make(chan *copyJob, 64), ended: make(chan struct{})}
	go func() {
		defer close(c.ended)
		for j := range c.jobs {
			for at := 0; at < len(j.src); at += copyPiece {
				copy(j.dst[at:], j.src[at:min(at+copyPiece, len(j.src))])
			}
			j.done <- struct{}{}
		}
	}()
	return c
}

func (c *copier) close() {
	if c == nil {
		return
	}
	close(c.jobs)
	<-c.ended
}

// BindCopy implements device.Copier.
func (d *Device) BindCopy(src, dst device.Tensor) (start, wait func(), err error) {
	j := &copyJob{src: src.Bytes(), dst: dst.Bytes(), done: make(chan struct{}, 1)}
	if len(j.src) != len(j.dst) {
		return nil, nil, fmt.Errorf("cpu: a copy of %d bytes to %d", len(j.src), len(j.dst))
	}
	if d.copier == nil {
		d.copier = newCopier()
	}
	c, note := d.copier, func() {}
	if a, ok := dst.Arena.(*arena); ok && d.track {
		note = func() { a.wrote(dst.Offset + dst.Type.Bytes()) }
	}
	return func() { c.jobs <- j }, func() { <-j.done; note() }, nil
}

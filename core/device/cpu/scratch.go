package cpu

import (
	"fmt"

	"starling/core/tensor"
)

// scratch is memory that kernels use while they run and leave behind without meaning. Kernels reserve what they need
// when they are made and ask for it each time they run, since a later reservation may move it.
type scratch struct{ mem []byte }

// Scratch memory is where products keep their packed operands, which every tile reads through: in huge pages, from a size on of which the
// rest of the last page is little to lose.
const (
	hugePage    = 2 << 20
	hugeScratch = 256 << 10
)

// reserve makes the memory at least bytes long.
func (s *scratch) reserve(bytes int) error {
	if bytes <= len(s.mem) {
		return nil
	}
	if bytes >= hugeScratch {
		bytes = (bytes + hugePage - 1) &^ (hugePage - 1)
	}
	mem, err := mmap(int64(bytes))
	if err != nil {
		return fmt.Errorf("cannot get %d bytes of scratch memory: %w", bytes, err)
	}
	if bytes >= hugeScratch {
		adviseHuge(mem)
	}
	unmap(s.mem)
	s.mem = mem
	return nil
}

func (s *scratch) free() {
	unmap(s.mem)
	s.mem = nil
}

// carve cuts typed pieces off a scratch memory, each aligned to a cache line.
type carve struct {
	mem  []byte
	used int
}

const cacheLine = 64

// padded is the room that a piece takes.
func padded(bytes int) int { return (bytes + cacheLine - 1) &^ (cacheLine - 1) }

// floats cuts n float32 off.
func (c *carve) floats(n int) []float32 { return piece[float32](c, n, 4) }

// doubles cuts n float64 off.
func (c *carve) doubles(n int) []float64 { return piece[float64](c, n, 8) }

// ints cuts n int32 off.
func (c *carve) ints(n int) []int32 { return piece[int32](c, n, 4) }

// words cuts n uint16 off.
func (c *carve) words(n int) []uint16 { return piece[uint16](c, n, 2) }

func piece[T tensor.Element](c *carve, n, size int) []T {
	b := c.mem[c.used : c.used+n*size]
	c.used += padded(n * size)
	return tensor.View[T](b)
}

// reserve makes sure that every thread has perThread bytes of its own and that there are shared bytes for all.
func (d *Device) reserve(perThread, shared int) error {
	for i := range d.own {
		if err := d.own[i].reserve(perThread); err != nil {
			return err
		}
	}
	return d.shared.reserve(shared)
}

// ownScratch is thread's memory, for the duration of one task.
func (d *Device) ownScratch(thread int) carve { return carve{mem: d.own[thread].mem} }

// sharedScratch is the memory of all threads, for the duration of one kernel.
func (d *Device) sharedScratch() carve { return carve{mem: d.shared.mem} }

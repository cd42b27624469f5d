package device

import "fmt"

// Copier is a device that copies beside its kernels. Where a device is none, copies are made where they begin.
type Copier interface {
	// BindCopy makes the copy of src to dst, which have the same size. start hands it over, behind copies that were handed over
	// before; wait, called once after each start, returns when dst holds it. Neither allocates.
	BindCopy(src, dst Tensor) (start, wait func(), err error)
}

// HostAllocator is a device that keeps memory off itself: what is in it counts to the host, not to the device, but can be an operand.
type HostAllocator interface {
	// AllocHost is Alloc of the host's memory.
	AllocHost(name string, bytes int64) (Arena, error)
}

// copying is a copy of a bound segment.
type copying struct {
	start, wait func()
	running     bool
}

// bindCopy makes what begins a copy, or what waits for one that was bound before.
func (b *Bound) bindCopy(dev Device, in *Instr, mem Memory) (func(), error) {
	if in.Kind == Copied {
		c := b.copies[in.Bucket]
		if c == nil {
			return nil, fmt.Errorf("copy %d is waited for and never begins", in.Bucket)
		}
		return c.finish, nil
	}
	src, err := mem.place(in.In[0])
	if err != nil {
		return nil, err
	}
	dst, err := mem.place(in.Out[0])
	if err != nil {
		return nil, err
	}
	if src.Type.Bytes() != dst.Type.Bytes() || b.copies[in.Bucket] != nil {
		return nil, fmt.Errorf("copy %d of %v to %v: it exists already, or the sizes differ", in.Bucket, src.Type, dst.Type)
	}
	c := &copying{}
	if d, ok := dev.(Copier); ok {
		c.start, c.wait, err = d.BindCopy(src, dst)
	} else {
		c.start, c.wait = func() { copy(dst.Bytes(), src.Bytes()) }, func() {}
	}
	b.copies[in.Bucket] = c
	return c.begin, err
}

func (c *copying) begin() {
	c.running = true
	c.start()
}

func (c *copying) finish() {
	c.wait()
	c.running = false
}

// awaitCopies returns when no copy touches memory any more.
func (b *Bound) awaitCopies() {
	for _, c := range b.copies {
		if c.running {
			c.finish()
		}
	}
}

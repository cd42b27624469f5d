package device

import "starling/core/graph"

// Arena is a piece of a device's memory.
type Arena interface {
	// Bytes is the arena's memory where the host can address it, else nil.
	Bytes() []byte
	// Size is its extent in bytes.
	Size() int64
	// Free returns the memory. No kernel bound to it may run afterwards.
	Free()
}

// Tensor is a typed place in an arena's memory.
type Tensor struct {
	graph.Type
	Arena  Arena
	Offset int64 // bytes
}

// Bytes is the tensor's memory where the host can address it.
func (t Tensor) Bytes() []byte {
	return t.Arena.Bytes()[t.Offset : t.Offset+t.Type.Bytes()]
}

// Call is what a device needs to make one kernel: the operation and the places of its operands.
type Call struct {
	Op    *graph.Op
	Attrs any
	In    []Tensor
	Out   []Tensor
	// Accum asks for the form that continues the sum already in Out[0] (operations with Accumulates only).
	Accum bool
}

// Device is a place where programs run. Its methods are called from one goroutine.
type Device interface {
	// Name is "cpu", "ref", "cuda:0".
	Name() string
	// KernelSet names the set of kernels that runs here, such as "avx512"; it is recorded in the run.
	KernelSet() string
	// Alloc returns zeroed memory, aligned to Align.
	Alloc(name string, bytes int64) (Arena, error)
	// Bind makes the kernel for a call. The function returned allocates nothing, gives the same bits at any number
	// of threads, and returns when its results may be read by the next kernel on this device.
	Bind(c Call) (func(), error)
	// ScratchBytes is the memory that the device holds beside the arenas, after all Bind calls.
	ScratchBytes() int64
	// Close ends the device's threads and frees its own memory.
	Close()
}

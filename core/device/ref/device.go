package ref

import (
	"fmt"
	"unsafe"

	"starling/core/device"
	"starling/core/graph"
)

// Device runs programs with the float64 references. It implements device.Device, except that its kernels allocate.
type Device struct{}

// Open returns the device; it needs nothing of the machine.
func Open() *Device { return &Device{} }

var _ device.Device = (*Device)(nil)

// Name returns "ref".
func (*Device) Name() string { return "ref" }

// KernelSet returns "float64".
func (*Device) KernelSet() string { return "float64" }

// ScratchBytes is 0: kernels allocate as they go.
func (*Device) ScratchBytes() int64 { return 0 }

// Close does nothing.
func (*Device) Close() {}

type arena struct{ mem []byte }

func (a *arena) Bytes() []byte { return a.mem }
func (a *arena) Size() int64   { return int64(len(a.mem)) }
func (a *arena) Free()         { a.mem = nil }

// Alloc returns zeroed memory of the Go heap.
func (*Device) Alloc(name string, bytes int64) (device.Arena, error) {
	if bytes < 0 {
		return nil, fmt.Errorf("ref: an arena %s of %d bytes", name, bytes)
	}
	mem := make([]byte, bytes+device.Align-1)
	skip := -uintptr(unsafe.Pointer(unsafe.SliceData(mem))) % device.Align
	return &arena{mem[skip : int64(skip)+bytes : int64(skip)+bytes]}, nil
}

// Bind makes the kernel for a call. Operands are read whole before results are written, so they may share memory.
func (*Device) Bind(c device.Call) (func(), error) {
	if c.Accum && !c.Op.Accumulates {
		return nil, fmt.Errorf("ref: %s cannot accumulate into its result", c.Op.Name)
	}
	n, err := node(c)
	if err != nil {
		return nil, fmt.Errorf("ref: %w", err)
	}
	return func() {
		in := make([]*graph.Array, len(c.In))
		for i, x := range c.In {
			in[i] = Read(x)
		}
		out := c.Op.Ref(n, in)
		if c.Accum {
			for i, v := range Read(c.Out[0]).Data {
				out[0].Data[i] += v
			}
		}
		for i, x := range c.Out {
			Write(x, out[i])
		}
	}, nil
}

// node makes the graph node that the operation's reference expects, and checks the call against its shape rule.
func node(c device.Call) (*graph.Node, error) {
	n := &graph.Node{Op: c.Op, Attrs: c.Attrs}
	for _, x := range c.In {
		n.In = append(n.In, &graph.Value{Type: x.Type})
	}
	types, err := c.Op.Infer(n.In, c.Attrs)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.Op.Name, err)
	}
	if len(types) != len(c.Out) {
		return nil, fmt.Errorf("%s has %d results, the call %d", c.Op.Name, len(types), len(c.Out))
	}
	for i, t := range types {
		if t.DType != c.Out[i].DType || !t.Shape.Equal(c.Out[i].Shape) {
			return nil, fmt.Errorf("result %d of %s is %v, the call has %v", i, c.Op.Name, t, c.Out[i].Type)
		}
		n.Out = append(n.Out, &graph.Value{Type: t, Def: n, Index: i})
	}
	if c.Op.Ref == nil {
		return nil, fmt.Errorf("%s computes nothing", c.Op.Name)
	}
	return n, nil
}

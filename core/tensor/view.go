package tensor

import (
	"fmt"
	"unsafe"
)

// Element is any Go type that a view may have.
type Element interface {
	~float32 | ~float64 | ~int32 | ~int64 | ~uint32 | ~uint8 | ~uint16
}

// View reinterprets raw memory as a slice of T without copying. The memory must
// be aligned to T and a whole number of elements long; anything else is a bug
// in the caller and panics.
func View[T Element](b []byte) []T {
	var z T
	size := int(unsafe.Sizeof(z))
	if len(b) == 0 {
		return nil
	}
	p := unsafe.Pointer(unsafe.SliceData(b))
	if len(b)%size != 0 || uintptr(p)%uintptr(size) != 0 {
		panic(fmt.Sprintf("tensor.View: %d bytes at %p are not whole, aligned elements of %d bytes", len(b), p, size))
	}
	return unsafe.Slice((*T)(p), len(b)/size)
}

// Bytes returns the memory of a slice, shared with it.
func Bytes[T Element](s []T) []byte {
	if len(s) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(s[0])))
}

// Tensor is a named piece of host memory with a type and a shape.
type Tensor struct {
	Name  string
	DType DType
	Shape Shape
	Data  []byte // row-major, little-endian, len = Shape.Numel() * DType.Size()
}

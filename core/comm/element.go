package comm

import (
	"fmt"
	"unsafe"
)

// Element is the type of a vector's elements. They lie in memory little-endian.
type Element uint8

// The element types.
const (
	Untyped Element = iota // bytes, which can be moved but not combined
	Float32
	Float16
	BFloat16
	Int8
	Int32
	Int64
	elementCount
)

// Size returns the bytes of an element.
func (e Element) Size() int { return [...]int{1, 4, 2, 2, 1, 4, 8}[e] }

// String returns the type's name.
func (e Element) String() string {
	if e >= elementCount {
		return "unknown"
	}
	return [...]string{"bytes", "float32", "float16", "bfloat16", "int8", "int32", "int64"}[e]
}

// ParseElement reads a name.
func ParseElement(s string) (Element, error) {
	for e := Float32; e < elementCount; e++ {
		if e.String() == s {
			return e, nil
		}
	}
	return 0, fmt.Errorf("no element type %q: choose float32, float16, bfloat16, int8, int32 or int64", s)
}

// whole reports whether elements are whole numbers.
func (e Element) whole() bool { return e >= Int8 }

// Combine is how a reduction joins the members' elements.
type Combine uint8

// The ways.
const (
	CombineSum Combine = iota
	CombineMean
	CombineMax
	CombineMin
	combineCount
)

// String returns the name.
func (c Combine) String() string {
	if c >= combineCount {
		return "unknown"
	}
	return [...]string{"sum", "mean", "max", "min"}[c]
}

// checkElements checks that buf can hold elements of type e.
func checkElements(buf []byte, e Element) error {
	switch {
	case e >= elementCount:
		return fmt.Errorf("no element type %d", e)
	case len(buf)%e.Size() != 0:
		return fmt.Errorf("%d bytes are no whole number of %v elements", len(buf), e)
	}
	return nil
}

// checkCombined checks that elements of type e in buf can be joined.
func checkCombined(buf []byte, e Element, how Combine) error {
	switch {
	case e == Untyped:
		return fmt.Errorf("bytes cannot be combined; name an element type")
	case how >= combineCount:
		return fmt.Errorf("no combination %d", how)
	}
	return checkElements(buf, e)
}

// viewOf views b as elements: little-endian, which is how the supported machines store them.
func viewOf[T int8 | uint16 | int32 | float32 | int64](b []byte) []T {
	var x T
	n := len(b) / int(unsafe.Sizeof(x))
	if n == 0 {
		return nil
	}
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), n)
}

// inBytes gives ranges of elements of so many bytes as ranges of bytes.
func inBytes(ranges []Range, size int) []Range {
	out := make([]Range, len(ranges))
	for i, r := range ranges {
		out[i] = Range{r.Lo * size, r.Hi * size}
	}
	return out
}

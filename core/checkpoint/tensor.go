package checkpoint

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"unicode/utf8"
)

// DType is an element type by its safetensors name.
type DType string

// The element types of safetensors.
const (
	Bool   DType = "BOOL"
	U8     DType = "U8"
	I8     DType = "I8"
	F8E4M3 DType = "F8_E4M3"
	F8E5M2 DType = "F8_E5M2"
	U16    DType = "U16"
	I16    DType = "I16"
	F16    DType = "F16"
	BF16   DType = "BF16"
	U32    DType = "U32"
	I32    DType = "I32"
	F32    DType = "F32"
	U64    DType = "U64"
	I64    DType = "I64"
	F64    DType = "F64"
)

// Size is the number of bytes of one element, 0 for a type that is none of the above.
func (d DType) Size() int {
	switch d {
	case Bool, U8, I8, F8E4M3, F8E5M2:
		return 1
	case U16, I16, F16, BF16:
		return 2
	case U32, I32, F32:
		return 4
	case U64, I64, F64:
		return 8
	}
	return 0
}

// Tensor is a tensor, or one contiguous piece of it.
type Tensor struct {
	Name   string // logical name, the same on every rank
	DType  DType
	Shape  []int  // of the whole tensor
	Offset int64  // first element of this piece, in row-major order
	Data   []byte // the elements, little-endian
}

// Count is the number of elements in the piece.
func (t Tensor) Count() int64 {
	if size := t.DType.Size(); size > 0 {
		return int64(len(t.Data) / size)
	}
	return 0
}

// Validate reports what makes the piece impossible.
func (t Tensor) Validate() error {
	if err := checkName(t.Name); err != nil {
		return err
	}
	n, err := elements(t.DType, t.Shape)
	if err != nil {
		return fmt.Errorf("tensor %q: %w", t.Name, err)
	}
	if len(t.Data)%t.DType.Size() != 0 {
		return fmt.Errorf("tensor %q: %d bytes are no whole number of %s elements", t.Name, len(t.Data), t.DType)
	}
	if t.Offset < 0 || t.Offset > n || t.Count() > n-t.Offset {
		return fmt.Errorf("tensor %q: the piece of %d elements from %d lies outside shape %v (%d elements)", t.Name, t.Count(), t.Offset, t.Shape, n)
	}
	return nil
}

// piece describes t without its data.
func (t Tensor) piece() Piece {
	return Piece{Name: t.Name, DType: t.DType, Shape: slices.Clone(t.Shape), Offset: t.Offset, Count: t.Count()}
}

const metadataKey = "__metadata__"

func checkName(name string) error {
	switch {
	case name == "":
		return errors.New("a tensor has no name")
	case name == metadataKey:
		return fmt.Errorf("%s is no name for a tensor: safetensors keeps it for metadata", name)
	case !utf8.ValidString(name):
		return fmt.Errorf("tensor %q: the name is no valid UTF-8", name)
	}
	return nil
}

// elements is the number of elements of a shape; that many of the type must be
// countable in bytes.
func elements(d DType, shape []int) (int64, error) {
	size := int64(d.Size())
	if size == 0 {
		return 0, fmt.Errorf("unknown dtype %q", string(d))
	}
	n := int64(1)
	for _, dim := range shape {
		if dim < 0 {
			return 0, fmt.Errorf("shape %v has a negative dimension", shape)
		}
		if dim > 0 && n > math.MaxInt64/size/int64(dim) {
			return 0, fmt.Errorf("shape %v has more bytes than can be counted", shape)
		}
		n *= int64(dim)
	}
	return n, nil
}

// Piece describes elements Offset … Offset+Count-1 of a tensor.
type Piece struct {
	Name   string `json:"name"`
	DType  DType  `json:"dtype"`
	Shape  []int  `json:"shape"` // of the whole tensor
	Offset int64  `json:"offset"`
	Count  int64  `json:"count"`
}

// stored is the key and the shape that a shard's header gives the piece.
func (p Piece) stored() (key string, shape []int, err error) {
	n, err := elements(p.DType, p.Shape)
	if err != nil {
		return "", nil, fmt.Errorf("tensor %q: %w", p.Name, err)
	}
	if p.Offset == 0 && p.Count == n {
		return p.Name, p.Shape, nil
	}
	return fmt.Sprintf("%s[%d:%d]", p.Name, p.Offset, p.Offset+p.Count), []int{int(p.Count)}, nil
}

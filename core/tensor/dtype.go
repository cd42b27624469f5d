package tensor

import "fmt"

// DType is the type of a tensor's elements.
type DType uint8

// The element types. Their names follow the safetensors format.
const (
	Invalid DType = iota
	F32
	F64
	BF16
	F16
	I32
	I64
	U32
	U8
)

var dtypes = [...]struct {
	name string // as printed in graphs
	safe string // as written in safetensors headers
	size int
}{
	Invalid: {"invalid", "", 0},
	F32:     {"f32", "F32", 4},
	F64:     {"f64", "F64", 8},
	BF16:    {"bf16", "BF16", 2},
	F16:     {"f16", "F16", 2},
	I32:     {"i32", "I32", 4},
	I64:     {"i64", "I64", 8},
	U32:     {"u32", "U32", 4},
	U8:      {"u8", "U8", 1},
}

// String returns the name used in printed graphs, such as "f32".
func (d DType) String() string {
	if int(d) < len(dtypes) {
		return dtypes[d].name
	}
	return fmt.Sprintf("dtype(%d)", uint8(d))
}

// Safetensors returns the name used in safetensors headers, such as "F32".
func (d DType) Safetensors() string { return dtypes[d].safe }

// Size is the number of bytes of one element.
func (d DType) Size() int { return dtypes[d].size }

// IsFloat reports whether d is a floating-point type, the only kind that gradients flow through.
func (d DType) IsFloat() bool { return d == F32 || d == F64 || d == BF16 || d == F16 }

// ParseDType reads either spelling of a type's name.
func ParseDType(s string) (DType, error) {
	for d := F32; int(d) < len(dtypes); d++ {
		if dtypes[d].name == s || dtypes[d].safe == s {
			return d, nil
		}
	}
	return Invalid, fmt.Errorf("unknown element type %q", s)
}

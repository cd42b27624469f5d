package tensor

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Shape is the list of a tensor's dimensions, outermost first. A scalar has the empty shape.
type Shape []int

// Numel is the number of elements.
func (s Shape) Numel() int {
	n := 1
	for _, d := range s {
		n *= d
	}
	return n
}

// String prints the shape as [8,64,384].
func (s Shape) String() string {
	var b strings.Builder
	b.WriteByte('[')
	for i, d := range s {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(d))
	}
	b.WriteByte(']')
	return b.String()
}

// Equal reports whether both have the same dimensions.
func (s Shape) Equal(t Shape) bool { return slices.Equal(s, t) }

// Clone returns a copy that shares nothing with s.
func (s Shape) Clone() Shape { return slices.Clone(s) }

// Strides returns the row-major strides in elements.
func (s Shape) Strides() []int {
	st := make([]int, len(s))
	n := 1
	for i := len(s) - 1; i >= 0; i-- {
		st[i] = n
		n *= s[i]
	}
	return st
}

// Broadcast returns the shape that a and b broadcast to by NumPy's rule:
// dimensions are aligned at the right and a dimension of 1 stretches.
func Broadcast(a, b Shape) (Shape, error) {
	n := max(len(a), len(b))
	out := make(Shape, n)
	for i := 1; i <= n; i++ {
		x, y := 1, 1
		if i <= len(a) {
			x = a[len(a)-i]
		}
		if i <= len(b) {
			y = b[len(b)-i]
		}
		switch {
		case x == y || y == 1:
			out[n-i] = x
		case x == 1:
			out[n-i] = y
		default:
			return nil, fmt.Errorf("cannot broadcast %v with %v: %d against %d", a, b, x, y)
		}
	}
	return out, nil
}

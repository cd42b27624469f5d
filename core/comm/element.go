package comm

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"

	"starling/sdk/vec"
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

// PrepareAllReduceOf prepares the reduction of a vector of any element type over the members, in place. Floating-point
// contributions travel as they are and are joined in float32, in the canonical tree with one lane per member, and rounded
// once; a mean scales each of them before it is added, so that no sum passes through a type too small for it. Whole numbers
// are joined without overflow; what the type cannot hold becomes its nearest value. Their mean is exact, rounded towards zero. The maximum
// and minimum of a NaN are NaN.
func (g *Group) PrepareAllReduceOf(label string, buf []byte, e Element, how Combine) (*Collective, error) {
	switch {
	case e > Int64 || how > CombineMin:
		return nil, fmt.Errorf("no element type %d or combination %d", e, how)
	case len(buf)%e.Size() != 0:
		return nil, fmt.Errorf("%d bytes are no whole number of %v", len(buf), e)
	}
	red, err := NewReduction(g.Size(), Assign(g.Size(), g.Size()))
	if err != nil {
		return nil, err
	}
	chunks := Chunks(len(buf), g.Size(), 4*ChunkAlign) // in bytes
	own := chunks[g.self]
	j := &join{red: red, element: e, how: how, values: make([][]byte, g.Size())}
	for m := range g.ranks {
		j.values[m] = buf[own.Lo:own.Hi]
		if m != g.self {
			j.values[m] = make([]byte, own.Len())
		}
	}
	call := Call{Op: OpAllReduceOf, Element: e, Combine: how, Label: label, Bytes: int64(len(buf))}
	return g.prepareExchange(call, func(x exchange) error {
		chunk := func(m int) []byte { return buf[chunks[m].Lo:chunks[m].Hi] }
		if err := x(0, chunk, func(m int) []byte { return j.values[m] }); err != nil {
			return err
		}
		j.into(buf[own.Lo:own.Hi])
		return x(1, func(int) []byte { return buf[own.Lo:own.Hi] }, chunk)
	}), nil
}

// AllReduceOf is PrepareAllReduceOf and Run.
func (g *Group) AllReduceOf(ctx context.Context, label string, buf []byte, e Element, how Combine) error {
	c, err := g.PrepareAllReduceOf(label, buf, e, how)
	if err != nil {
		return fmt.Errorf("comm: all_reduce %q: %w", label, err)
	}
	return c.Run(ctx)
}

// join combines the members' values of one chunk.
type join struct {
	red     *Reduction
	element Element
	how     Combine
	values  [][]byte // by member

	floats [][]float32 // by member, a strip each; then the result
	temp   []float32
	bits   []uint16
	whole  []int64
	rest   []int64 // of a mean, what is left of the members' values when they are divided by their number; of a sum, its upper 64 bits
}

// into writes the combination to dst, which may be one of the values.
func (j *join) into(dst []byte) {
	size := j.element.Size()
	for lo := 0; lo < len(dst); lo += strip * size {
		hi := min(lo+strip*size, len(dst))
		if j.element.whole() {
			j.wholeStrip(dst[lo:hi], lo, hi)
		} else {
			j.floatStrip(dst[lo:hi], lo, hi)
		}
	}
}

func (j *join) floatStrip(dst []byte, lo, hi int) {
	n := (hi - lo) / j.element.Size()
	if j.floats == nil {
		j.floats = make([][]float32, len(j.values)+1)
		for m := range j.floats {
			j.floats[m] = make([]float32, strip)
		}
		j.temp, j.bits = make([]float32, j.red.temps*strip), make([]uint16, strip)
	}
	in := make([][]float32, len(j.values))
	for m, v := range j.values {
		in[m] = j.floats[m][:n]
		j.load(in[m], v[lo:hi])
		if j.how == CombineMean {
			vec.Scale(in[m], in[m], 1/float32(len(j.values)))
		}
	}
	out := j.floats[len(j.values)][:n]
	switch j.how {
	case CombineMax, CombineMin:
		copy(out, in[0])
		for _, v := range in[1:] {
			if j.how == CombineMax {
				vec.Max(out, out, v)
			} else {
				vec.Min(out, out, v)
			}
		}
	default:
		j.red.evaluate(out, nil, in, j.temp)
	}
	j.store(dst, out)
}

func (j *join) load(to []float32, from []byte) {
	if j.element == Float32 {
		for i := range to {
			to[i] = math.Float32frombits(binary.LittleEndian.Uint32(from[4*i:]))
		}
		return
	}
	bits := j.bits[:len(to)]
	for i := range bits {
		bits[i] = binary.LittleEndian.Uint16(from[2*i:])
	}
	if j.element == BFloat16 {
		vec.BF16ToF32(to, bits)
	} else {
		vec.F16ToF32(to, bits)
	}
}

func (j *join) store(to []byte, from []float32) {
	if j.element == Float32 {
		for i, v := range from {
			binary.LittleEndian.PutUint32(to[4*i:], math.Float32bits(v))
		}
		return
	}
	bits := j.bits[:len(from)]
	if j.element == BFloat16 {
		vec.F32ToBF16(bits, from)
	} else {
		vec.F32ToF16(bits, from)
	}
	for i, v := range bits {
		binary.LittleEndian.PutUint16(to[2*i:], v)
	}
}

func (j *join) wholeStrip(dst []byte, lo, hi int) {
	size := j.element.Size()
	n := (hi - lo) / size
	if j.whole == nil {
		j.whole, j.rest = make([]int64, strip), make([]int64, strip)
	}
	sum, rest, members := j.whole[:n], j.rest[:n], int64(len(j.values))
	clear(rest)
	for m, v := range j.values {
		v = v[lo:hi]
		for i := range sum {
			x := j.wholeAt(v, i)
			if j.how == CombineMean { // no sum of quotients overflows
				rest[i] += x % members
				x /= members
			}
			switch {
			case m == 0:
				sum[i] = x
				if j.how == CombineSum {
					rest[i] = x >> 63
				}
			case j.how == CombineMax:
				sum[i] = max(sum[i], x)
			case j.how == CombineMin:
				sum[i] = min(sum[i], x)
			case j.how == CombineMean:
				sum[i] += x
			default:
				low, carry := bits.Add64(uint64(sum[i]), uint64(x), 0)
				sum[i], rest[i] = int64(low), rest[i]+x>>63+int64(carry)
			}
		}
	}
	for i, x := range sum {
		switch j.how {
		case CombineSum:
			x = nearest(x, rest[i])
		case CombineMean:
			x = towardsZero(x+rest[i]/members, rest[i]%members)
		}
		switch j.element {
		case Int8:
			dst[i] = byte(int8(max(min(x, math.MaxInt8), math.MinInt8)))
		case Int32:
			binary.LittleEndian.PutUint32(dst[4*i:], uint32(int32(max(min(x, math.MaxInt32), math.MinInt32))))
		default:
			binary.LittleEndian.PutUint64(dst[8*i:], uint64(x))
		}
	}
}

func (j *join) wholeAt(b []byte, i int) int64 {
	switch j.element {
	case Int8:
		return int64(int8(b[i]))
	case Int32:
		return int64(int32(binary.LittleEndian.Uint32(b[4*i:])))
	}
	return int64(binary.LittleEndian.Uint64(b[8*i:]))
}

// towardsZero is a quotient rounded towards zero, given one with a rest of the same or the other sign.
func towardsZero(quotient, rest int64) int64 {
	switch {
	case quotient > 0 && rest < 0:
		return quotient - 1
	case quotient < 0 && rest > 0:
		return quotient + 1
	}
	return quotient
}

// nearest is the number of 64 bits that is nearest to one of 128, given in two halves.
func nearest(low, high int64) int64 {
	switch {
	case high == low>>63:
		return low
	case high < 0:
		return math.MinInt64
	}
	return math.MaxInt64
}

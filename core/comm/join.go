package comm

import (
	"math"
	"math/bits"

	"starling/sdk/vec"
)

// join combines the members' values of a range of elements.
type join struct {
	red     *Reduction // one lane for each member
	element Element
	how     Combine
	values  [][]byte // by member

	// Scratch, a strip each.
	floats      []float32 // two operands, the result, the tree's intermediate sums
	whole, rest []int64   // rest: of a mean, what is left of the values when they are divided by their number; of a sum, its upper 64 bits
}

// into writes the combination to dst, which may be one of the values, and to each of also, which may be others.
func (j *join) into(dst []byte, also [][]byte) {
	size := j.element.Size()
	for lo := 0; lo < len(dst); lo += strip * size {
		hi := min(lo+strip*size, len(dst))
		switch j.element {
		case Int8:
			narrowStrip[int8](j, dst[lo:hi], lo, hi)
		case Int32:
			narrowStrip[int32](j, dst[lo:hi], lo, hi)
		case Int64:
			j.longStrip(viewOf[int64](dst[lo:hi]), lo, hi)
		default:
			j.floatStrip(dst[lo:hi], lo, hi)
		}
		for _, a := range also {
			copy(a[lo:hi], dst[lo:hi])
		}
	}
}

// floatStrip joins in float32, sums in the canonical tree, and rounds once.
func (j *join) floatStrip(dst []byte, lo, hi int) {
	n := (hi - lo) / j.element.Size()
	if j.floats == nil {
		j.floats = make([]float32, (3+j.red.temps)*strip)
	}
	place := func(i int) []float32 { return j.floats[i*strip:][:n] }
	value := func(m, side int) []float32 {
		x := j.load(place(side), j.values[m][lo:hi])
		if j.how == CombineMean {
			vec.Scale(place(side), x, 1/float32(len(j.values)))
			return place(side)
		}
		return x
	}
	out := place(2)
	switch j.how {
	case CombineMax, CombineMin:
		copy(out, value(0, 0))
		for m := 1; m < len(j.values); m++ {
			if j.how == CombineMax {
				vec.Max(out, out, value(m, 0))
			} else {
				vec.Min(out, out, value(m, 0))
			}
		}
	default:
		leaves := len(j.red.leaves)
		operand := func(i, side int) []float32 {
			if i < leaves {
				return value(i, side)
			}
			return place(3 + j.red.temp[i-leaves])
		}
		if leaves == 1 {
			copy(out, value(0, 0))
		}
		for i, s := range j.red.sums {
			sum := out
			if i < len(j.red.sums)-1 {
				sum = operand(leaves+i, 0)
			}
			vec.Add(sum, operand(s.left, 0), operand(s.right, 1))
		}
	}
	switch j.element {
	case Float32:
		copy(viewOf[float32](dst), out)
	case BFloat16:
		vec.F32ToBF16(viewOf[uint16](dst), out)
	default:
		vec.F32ToF16(viewOf[uint16](dst), out)
	}
}

// load returns a member's values as float32, in to where they are something else.
func (j *join) load(to []float32, from []byte) []float32 {
	switch j.element {
	case Float32:
		return viewOf[float32](from)
	case BFloat16:
		vec.BF16ToF32(to, viewOf[uint16](from))
	default:
		vec.F16ToF32(to, viewOf[uint16](from))
	}
	return to
}

func (j *join) wholes(n int) []int64 {
	if j.whole == nil {
		j.whole = make([]int64, strip)
	}
	return j.whole[:n]
}

// narrowStrip joins whole numbers of which no number of members makes more than 64 bits.
func narrowStrip[T int8 | int32](j *join, dst []byte, lo, hi int) {
	out := viewOf[T](dst)
	sum := j.wholes(len(out))
	for m, b := range j.values {
		v := viewOf[T](b[lo:hi])[:len(sum)]
		switch {
		case m == 0:
			for i, x := range v {
				sum[i] = int64(x)
			}
		case j.how == CombineMax:
			for i, x := range v {
				sum[i] = max(sum[i], int64(x))
			}
		case j.how == CombineMin:
			for i, x := range v {
				sum[i] = min(sum[i], int64(x))
			}
		default:
			for i, x := range v {
				sum[i] += int64(x)
			}
		}
	}
	if members := int64(len(j.values)); j.how == CombineMean {
		for i := range sum {
			sum[i] /= members
		}
	}
	most := int64(1)<<(8*j.element.Size()-1) - 1
	for i, x := range sum {
		out[i] = T(max(min(x, most), -most-1))
	}
}

// longStrip joins whole numbers of 64 bits.
func (j *join) longStrip(dst []int64, lo, hi int) {
	if j.rest == nil {
		j.rest = make([]int64, strip)
	}
	sum, rest, members := j.wholes(len(dst)), j.rest[:len(dst)], int64(len(j.values))
	clear(sum)
	clear(rest)
	for m, b := range j.values {
		v := viewOf[int64](b[lo:hi])[:len(sum)]
		switch {
		case j.how == CombineMean: // no sum of quotients overflows
			for i, x := range v {
				sum[i] += x / members
				rest[i] += x % members
			}
		case j.how == CombineSum:
			for i, x := range v {
				low, carry := bits.Add64(uint64(sum[i]), uint64(x), 0)
				sum[i], rest[i] = int64(low), rest[i]+x>>63+int64(carry)
			}
		case m == 0:
			copy(sum, v)
		case j.how == CombineMax:
			for i, x := range v {
				sum[i] = max(sum[i], x)
			}
		default:
			for i, x := range v {
				sum[i] = min(sum[i], x)
			}
		}
	}
	switch j.how {
	case CombineMean:
		for i, x := range sum {
			dst[i] = towardsZero(x+rest[i]/members, rest[i]%members)
		}
	case CombineSum:
		for i, x := range sum {
			dst[i] = nearest(x, rest[i])
		}
	default:
		copy(dst, sum)
	}
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

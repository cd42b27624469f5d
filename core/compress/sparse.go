package compress

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
)

// A sparse vector of k elements out of n travels as their positions in the code of Elias and Fano, whose size depends on n and
// k alone, and their values as float32: the positions' lowest bits packed, then for each position, in unary, how far its other
// bits are from those of the one before.

// lowBits is how many bits of a position are packed.
func lowBits(n, k int) int {
	if k == 0 || n <= k {
		return 0
	}
	return bits.Len(uint(n/k)) - 1
}

func sparseSize(n, k int) int {
	if k == 0 {
		return 0
	}
	low, high := positionBytes(n, k)
	return 4*k + low + high
}

func positionBytes(n, k int) (low, high int) {
	l := lowBits(n, k)
	return (k*l + 7) / 8, (k + (n-1)>>l + 1 + 7) / 8
}

// sparseCodec sends the elements of largest magnitude; of equal ones those that come first.
type sparseCodec struct {
	count func(n int) int
	// picked are the positions that the last encode sent.
	picked []int32
	bins   [2048]int32
}

func (c *sparseCodec) encode(dst []byte, x []float32) error {
	n := len(x)
	k := c.count(n)
	c.pick(x, k)
	if k == 0 {
		return nil
	}
	clear(dst)
	low, _ := positionBytes(n, k)
	l := lowBits(n, k)
	lows, highs := dst[4*k:4*k+low], dst[4*k+low:]
	for i, at := range c.picked {
		binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(x[at]))
		x[at] = 0
		for b := range l {
			if at>>b&1 != 0 {
				bit := i*l + b
				lows[bit/8] |= 1 << (bit % 8)
			}
		}
		bit := int(at)>>l + i
		highs[bit/8] |= 1 << (bit % 8)
	}
	return nil
}

// pick finds the k largest elements of x.
func (c *sparseCodec) pick(x []float32, k int) {
	c.picked = c.picked[:0]
	if k == len(x) {
		for i := range x {
			c.picked = append(c.picked, int32(i))
		}
		return
	}
	limit, ties := c.threshold(x, k)
	for i, v := range x {
		m := magnitude(v)
		if m < limit {
			continue
		}
		if m == limit {
			if ties == 0 {
				continue
			}
			ties--
		}
		c.picked = append(c.picked, int32(i))
	}
}

// threshold is the k-th largest magnitude of x, and how many of those that equal it are among the k largest. It narrows the
// magnitude down by 11, 11 and 9 of its bits.
func (c *sparseCodec) threshold(x []float32, k int) (limit uint32, ties int) {
	ties = k
	for _, s := range [...]struct{ shift, width int }{{20, 11}, {9, 11}, {0, 9}} {
		bins := c.bins[:1<<s.width]
		clear(bins)
		above := s.shift + s.width
		mask := uint32(1)<<s.width - 1
		for _, v := range x {
			if m := magnitude(v); m>>above == limit {
				bins[m>>s.shift&mask]++
			}
		}
		at := len(bins) - 1
		for ; int(bins[at]) < ties; at-- {
			ties -= int(bins[at])
		}
		limit = limit<<s.width | uint32(at)
	}
	return limit, ties
}

func (c *sparseCodec) decode(dst []float32, src []byte) error {
	n := len(dst)
	k := c.count(n)
	if want := sparseSize(n, k); len(src) != want {
		return sizeError(len(src), want)
	}
	clear(dst)
	if k == 0 {
		return nil
	}
	low, _ := positionBytes(n, k)
	l := lowBits(n, k)
	lows, highs := src[4*k:4*k+low], src[4*k+low:]
	seen, last := 0, -1
	for b, word := range highs {
		for ; word != 0; word &= word - 1 {
			if seen == k {
				return errors.New("compressed gradient: more positions than elements")
			}
			at := (8*b + bits.TrailingZeros8(word) - seen) << l
			for j := range l {
				bit := seen*l + j
				at |= int(lows[bit/8]>>(bit%8)&1) << j
			}
			if at <= last || at >= n {
				return fmt.Errorf("compressed gradient: position %d after %d in a vector of %d elements", at, last, n)
			}
			dst[at] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*seen:]))
			last = at
			seen++
		}
	}
	if seen != k {
		return fmt.Errorf("compressed gradient: %d positions for %d elements", seen, k)
	}
	return nil
}

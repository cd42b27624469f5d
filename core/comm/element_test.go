package comm

import (
	"context"
	"encoding/binary"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"starling/sdk/vec"
)

// TestMeanOfManyHalves is case 29: 1024 ranks each with a float16 gradient of 100 have a mean of 100, though their sum is
// more than float16 holds.
func TestMeanOfManyHalves(t *testing.T) {
	const ranks, n = 1024, 5
	red, err := NewReduction(ranks, Assign(ranks, ranks))
	if err != nil {
		t.Fatal(err)
	}
	var half [1]uint16
	vec.F32ToF16(half[:], []float32{100})
	for _, how := range []Combine{CombineMean, CombineMax, CombineSum} {
		j := &join{red: red, element: Float16, how: how}
		for range ranks {
			b := make([]byte, 2*n)
			for i := range n {
				binary.LittleEndian.PutUint16(b[2*i:], half[0])
			}
			j.values = append(j.values, b)
		}
		out := make([]byte, 2*n)
		j.into(out, nil)
		var got [1]float32
		vec.F16ToF32(got[:], []uint16{binary.LittleEndian.Uint16(out)})
		want := float32(100)
		if how == CombineSum { // nothing else could be told
			want = float32(math.Inf(1))
		}
		if got[0] != want {
			t.Errorf("the %v of 1024 times 100 is %v, want %v", how, got[0], want)
		}
	}
}

// TestWholeNumbersStop: what a type cannot hold becomes its nearest value.
func TestWholeNumbersStop(t *testing.T) {
	noErrors(t, onAll(t, inProcess(t, 3), Options{}, func(ctx context.Context, g *Group) error {
		b := []byte{100, 156, 1} // 100, -100, 1
		if err := g.AllReduceOf(ctx, "int8", b, Int8, CombineSum); err != nil {
			return err
		}
		if int8(b[0]) != 127 || int8(b[1]) != -128 || b[2] != 3 {
			t.Errorf("sums are %d, %d, %d", int8(b[0]), int8(b[1]), int8(b[2]))
		}
		return nil
	}))
}

// TestWholeNumbersAreExact: sums and means at the ends of a type are those of unlimited numbers, a mean rounded towards zero.
func TestWholeNumbersAreExact(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	ends := []int64{math.MaxInt64, math.MaxInt64 - 1, math.MinInt64, math.MinInt64 + 1, -1, 0, 1, 7, -7}
	for _, ranks := range []int{1, 2, 3, 5, 7, 64} {
		const n = strip + 9 // more than is joined at a time
		for e, limit := range map[Element]int64{Int8: math.MaxInt8, Int32: math.MaxInt32, Int64: math.MaxInt64} {
			values := make([][]int64, ranks)
			j := &join{element: e, values: make([][]byte, ranks)}
			for r := range values {
				for i := range n {
					x := ends[random.IntN(len(ends))]
					switch {
					case i == 0:
						x = math.MaxInt64
					case i == 1:
						x = math.MinInt64
					case i%3 == 0:
						x = int64(random.Uint64())
					}
					if e != Int64 { // within the type, its ends included
						x = max(min(x, limit), -limit-1)
					}
					values[r] = append(values[r], x)
					j.values[r] = binary.LittleEndian.AppendUint64(j.values[r], uint64(x))[:len(j.values[r])+e.Size()]
				}
			}
			for _, how := range []Combine{CombineSum, CombineMean} {
				j.how = how
				out := make([]byte, n*e.Size())
				j.into(out, nil)
				for i := range n {
					want := new(big.Int)
					for r := range ranks {
						want.Add(want, big.NewInt(values[r][i]))
					}
					if how == CombineMean {
						want.Quo(want, big.NewInt(int64(ranks))) // towards zero
					}
					if top := big.NewInt(limit); want.Cmp(top) > 0 {
						want = top
					}
					if bottom := big.NewInt(-limit - 1); want.Cmp(bottom) < 0 {
						want = bottom
					}
					if got := wholeAt(out, e, i); got != want.Int64() {
						t.Fatalf("the %v of %d of %v at %d is %d, want %v", how, ranks, e, i, got, want)
					}
				}
			}
		}
	}
}

// wholeAt is a whole number of little-endian bytes.
func wholeAt(b []byte, e Element, i int) int64 {
	switch e {
	case Int8:
		return int64(int8(b[i]))
	case Int32:
		return int64(int32(binary.LittleEndian.Uint32(b[4*i:])))
	}
	return int64(binary.LittleEndian.Uint64(b[8*i:]))
}

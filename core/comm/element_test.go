package comm

import (
	"context"
	"encoding/binary"
	"math"
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
		j.into(out)
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
	if s := addWhole(math.MaxInt64, 1); s != math.MaxInt64 {
		t.Errorf("the largest number and one are %d", s)
	}
	if s := addWhole(math.MinInt64, -1); s != math.MinInt64 {
		t.Errorf("the smallest number less one is %d", s)
	}
}

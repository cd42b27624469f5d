package main

import (
	"math"
	"math/rand/v2"
	"testing"

	"starling/sdk"
)

func made(t *testing.T, block int) (*fourbit, sdk.Layout) {
	t.Helper()
	f := &fourbit{}
	m, err := sdk.Describe(f)
	if err != nil {
		t.Fatal(err)
	}
	l, err := f.Setup(sdk.NewHypers(m, map[string]any{"block": int64(block)}))
	if err == nil {
		err = l.Validate()
	}
	if err != nil {
		t.Fatal(err)
	}
	return f, l
}

// The quantiser in float64, from its definition: each element is the nearest multiple of its block's largest magnitude / 7.
func reference(x []float32, block int) []float64 {
	out := make([]float64, len(x))
	for lo := 0; lo < len(x); lo += block {
		part := x[lo:min(lo+block, len(x))]
		top := 0.0
		for _, v := range part {
			top = max(top, math.Abs(float64(v)))
		}
		for i, v := range part {
			if top > 0 {
				out[lo+i] = math.RoundToEven(7*float64(v)/top) * top / 7
			}
		}
	}
	return out
}

func TestAgainstReference(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, block := range []int{2, 64, 256} {
		f, l := made(t, block)
		for _, n := range []int{0, 1, 2, 63, 64, 65, 1009, 100000} {
			x := make([]float32, n)
			for i := range x {
				x[i] = float32(r.NormFloat64() * math.Pow(10, float64(i/block%9-4)))
			}
			src, got := make([]byte, l.Size(n)), make([]float32, n)
			if err := f.Encode(src, x); err != nil {
				t.Fatal(err)
			}
			if err := f.Decode(got, src); err != nil {
				t.Fatal(err)
			}
			for i, want := range reference(x, block) {
				lo := i / block * block
				top := 0.0
				for _, v := range x[lo:min(lo+block, n)] {
					top = max(top, math.Abs(float64(v)))
				}
				// Where float32 falls on the other side of a tie the two differ by a step, and both are half a step off.
				off, tie := math.Abs(float64(got[i])-float64(x[i])), math.Abs(want-float64(x[i]))
				if math.Abs(float64(got[i])-want) > 1e-6*top && math.Abs(off-tie) > 1e-6*top || off > top/14*1.00001 {
					t.Fatalf("block %d, element %d of %d: %v became %v, want %v", block, i, n, x[i], got[i], want)
				}
			}
		}
	}
}

func TestExtremes(t *testing.T) {
	f, l := made(t, 4)
	for _, x := range [][]float32{{0, 0, 0, 0}, {math.SmallestNonzeroFloat32}, {math.MaxFloat32, -math.MaxFloat32}, {1e-30, -1e-38, 0}} {
		src, got := make([]byte, l.Size(len(x))), make([]float32, len(x))
		if err := f.Encode(src, x); err != nil {
			t.Fatal(err)
		}
		if err := f.Decode(got, src); err != nil {
			t.Fatalf("%v: %v", x, err)
		}
		for i := range x {
			if x[i] == 0 && got[i] != 0 || math.IsInf(float64(got[i]), 0) || got[i] != got[i] {
				t.Errorf("%v became %v", x, got)
			}
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte{0, 0, 0x80, 0x3f, 0x77, 0x77}, 3)
	f.Fuzz(func(t *testing.T, src []byte, n int) {
		c, l := made(t, 4)
		if n < 0 || n > 1000 {
			return
		}
		padded := make([]byte, l.Size(n))
		copy(padded, src)
		dst := make([]float32, n)
		if c.Decode(dst, padded) != nil {
			return
		}
		for i, v := range dst {
			if v-v != 0 {
				t.Errorf("element %d is %v", i, v)
			}
		}
	})
}

func TestOddBlock(t *testing.T) {
	f := &fourbit{}
	if _, err := f.Setup(sdk.NewHypers(f.Manifest(), map[string]any{"block": int64(3)})); err == nil {
		t.Error("a block of 3 was accepted")
	}
}

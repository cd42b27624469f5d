package vec

import (
	"math"
	"testing"
)

// The cases that are tried at start-up are those of the arithmetic as it is spelled out here, and tell it from each of its kin.
func TestPairCases(t *testing.T) {
	wide := func(x uint16) float32 { return math.Float32frombits(uint32(x) << 16) }
	var swapped, kept, fused int
	for i, p := range pairCases {
		if got := dotPair(p.c, p.a[0], p.a[1], p.b[0], p.b[1]); got != p.want {
			t.Errorf("case %d is %x, want %x", i, got, p.want)
		}
		if dotPair(p.c, p.a[1], p.a[0], p.b[1], p.b[0]) != p.want {
			swapped++
		}
		if fma32(wide(p.a[0]), wide(p.b[0]), fma32(wide(p.a[1]), wide(p.b[1]), p.c)) != p.want {
			kept++
		}
		if float32(float64(p.c)+float64(wide(p.a[0]))*float64(wide(p.b[0]))+float64(wide(p.a[1]))*float64(wide(p.b[1]))) != p.want {
			fused++
		}
	}
	if swapped == 0 || kept == 0 || fused == 0 {
		t.Errorf("the cases tell %d, %d, %d times from another order, from subnormal numbers kept and from one rounding", swapped, kept, fused)
	}
	if cpuHasPairs() && !pairsKeepPromise() {
		t.Error("this processor multiplies pairs otherwise")
	}
}

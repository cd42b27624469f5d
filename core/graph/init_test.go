package graph

import (
	"math"
	"testing"
)

// The words that Random123 publishes for Philox4x32-10 (kat_vectors).
func TestPhiloxKnownAnswers(t *testing.T) {
	for _, c := range []struct {
		key  [2]uint32
		ctr  [4]uint32
		want [4]uint32
	}{
		{[2]uint32{0, 0}, [4]uint32{0, 0, 0, 0}, [4]uint32{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
		{
			[2]uint32{0xffffffff, 0xffffffff},
			[4]uint32{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
			[4]uint32{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
		},
		{
			[2]uint32{0xa4093822, 0x299f31d0},
			[4]uint32{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
			[4]uint32{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1},
		},
	} {
		if got := Philox(c.key, c.ctr); got != c.want {
			t.Errorf("Philox(%x, %x) = %x, want %x", c.key, c.ctr, got, c.want)
		}
	}
}

// plainInit is element e of an initial value, one at a time.
func plainInit(p ParamAttrs, seed uint64, e uint64) float32 {
	h := HashName(p.Name) ^ seed
	w := Philox([2]uint32{uint32(h), uint32(h >> 32)}, [4]uint32{uint32(e / 4), uint32(e / 4 >> 32), 0x696e6974, math.MaxUint32})[e%4]
	a, b := p.Init.A, p.Init.B
	if p.Init.Kind == InitNormal {
		q := (float64(w)+0.5)/(1<<32) - 0.5
		x := math.Sqrt2 * math.Erfinv(2*q)
		return float32(a + b*x)
	}
	return float32(a + (b-a)*(float64(w)/(1<<32)))
}

func TestInitValuesAreThoseOfTheirWords(t *testing.T) {
	for _, in := range []Init{{Kind: InitUniform, A: -0.1, B: 0.3}, {Kind: InitNormal, A: 0.5, B: 2}} {
		p := ParamAttrs{Name: "h.0.w", Init: in}
		got := make([]float32, 1<<16+7)
		InitValues(p, 7, 1<<33+5, got)
		for i, v := range got {
			if want := plainInit(p, 7, 1<<33+5+uint64(i)); math.Abs(float64(v-want)) > 1e-5 {
				t.Fatalf("%v: element %d is %v, want %v", in, i, v, want)
			}
		}
	}
	p := ParamAttrs{Name: "x", Init: Init{Kind: InitUniform, A: 1, B: 1 + 0x1p-23}} // half of the draws would round to B
	got := make([]float32, 1000)
	InitValues(p, 7, 0, got)
	for i, v := range got {
		if v != 1 {
			t.Fatalf("element %d of [1, 1+ε) is %v", i, v)
		}
	}
}

func TestInitValuesDoNotDependOnTheCut(t *testing.T) {
	for _, kind := range []InitKind{InitConstant, InitUniform, InitNormal} {
		p := ParamAttrs{Name: "h.0.w", Init: Init{Kind: kind, A: -1, B: 2}}
		whole := make([]float32, 1<<18+103)
		InitValues(p, 7, 0, whole)
		for from := 0; from < len(whole); from += 9973 {
			part := make([]float32, min(10007, len(whole)-from))
			InitValues(p, 7, from, part)
			for i, v := range part {
				if v != whole[from+i] {
					t.Fatalf("kind %d: element %d is %v in a range from %d and %v in the whole", kind, from+i, v, from, whole[from+i])
				}
			}
		}
	}
}

func TestInitValuesHaveTheirDistribution(t *testing.T) {
	const n = 1 << 18
	moments := func(in Init, seed uint64, name string) (mean, std, lo, hi float64) {
		v := make([]float32, n)
		InitValues(ParamAttrs{Name: name, Init: in}, seed, 0, v)
		lo, hi = math.Inf(1), math.Inf(-1)
		for _, x := range v {
			mean += float64(x) / n
			std += float64(x) * float64(x) / n
			lo, hi = min(lo, float64(x)), max(hi, float64(x))
		}
		return mean, math.Sqrt(std - mean*mean), lo, hi
	}
	near := func(what string, got, want, by float64) {
		t.Helper()
		if math.Abs(got-want) > by {
			t.Errorf("%s is %v, want %v", what, got, want)
		}
	}
	mean, std, lo, hi := moments(Init{InitUniform, -1, 3}, 1, "a")
	near("uniform mean", mean, 1, 0.02)
	near("uniform deviation", std, 4/math.Sqrt(12), 0.02)
	near("uniform least", lo, -1, 1e-3)
	near("uniform greatest", hi, 3, 1e-3)
	if hi >= 3 {
		t.Errorf("uniform values reach the open end: %v", hi)
	}
	mean, std, lo, hi = moments(Init{InitNormal, 0.5, 2}, 1, "a")
	near("normal mean", mean, 0.5, 0.02)
	near("normal deviation", std, 2, 0.02)
	near("normal least", lo, 0.5-2*4.5, 2)
	near("normal greatest", hi, 0.5+2*4.5, 2)
	other, _, _, _ := moments(Init{InitNormal, 0.5, 2}, 1, "b")
	seed, _, _, _ := moments(Init{InitNormal, 0.5, 2}, 2, "a")
	if mean == other || mean == seed {
		t.Error("another name or seed draws the same values")
	}
}

// Frozen bits: initial values are part of what a recipe means, on every architecture.
func TestInitValuesAreFrozen(t *testing.T) {
	v := make([]float32, 6)
	InitValues(ParamAttrs{Name: "wte.weight", Init: Init{InitNormal, 0, 0.02}}, 1337, 0, v)
	want := []uint32{0x3c1e7cbd, 0xbc977cfd, 0xbc3a7980, 0x3cc094c7, 0xbcfc683c, 0x3c61b453}
	for i := range want {
		if got := math.Float32bits(v[i]); got != want[i] {
			t.Errorf("element %d is %#x (%v), want %#x", i, got, v[i], want[i])
		}
	}
}

func BenchmarkInitNormal(b *testing.B) {
	v := make([]float32, 1<<20)
	b.SetBytes(int64(len(v)) * 4)
	for b.Loop() {
		InitValues(ParamAttrs{Name: "w", Init: Init{InitNormal, 0, 1}}, 1, 0, v)
	}
}

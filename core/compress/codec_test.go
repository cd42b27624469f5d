package compress

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func random(seed uint64, n int) []float32 {
	r := rand.New(rand.NewPCG(seed, 1))
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64() * math.Exp(3*r.NormFloat64()))
	}
	return x
}

func codecs(update int) map[string]codec {
	out := map[string]codec{"bf16": &bf16Codec{}}
	for name, c := range map[string]Config{"int8": {Kind: Int8, Block: 256}, "int8 in small blocks": {Kind: Int8, Block: 8}, "topk": {Kind: TopK, Ratio: 0.01},
		"topk warming up": {Kind: TopK, Ratio: 0.001, Warmup: 10}, "topk half": {Kind: TopK, Ratio: 0.5}} {
		s := NewStream(c, 0, 0)
		s.Begin(update, 1)
		out[name] = s.codec
	}
	return out
}

func sizeOf(c codec, n int) int {
	switch c := c.(type) {
	case int8Codec:
		return int8Size(n, c.block)
	case *sparseCodec:
		return sparseSize(n, c.count(n))
	}
	return 2 * n
}

var lengths = []int{0, 1, 2, 7, 8, 9, 63, 64, 255, 256, 257, 1023, 1024, 1025, 4099, 20011}

// What is decoded and what is left add up to what was encoded: exactly where nothing is rounded, else to within the rounding.
func TestWhatIsLeftIsTheRest(t *testing.T) {
	for name, c := range codecs(0) {
		for _, n := range lengths {
			x := random(uint64(n), n)
			rest, got := slices.Clone(x), make([]float32, n)
			dst := make([]byte, sizeOf(c, n))
			for i := range dst {
				dst[i] = 0xa5 // whatever was there before
			}
			must(t, c.encode(dst, rest))
			if err := c.decode(got, dst); err != nil {
				t.Fatalf("%s, %d elements: %v", name, n, err)
			}
			for i := range x {
				if d := math.Abs(float64(got[i]) + float64(rest[i]) - float64(x[i])); d > 1e-6*math.Abs(float64(x[i])) && d > 1e-7*math.Abs(float64(got[i])) {
					t.Fatalf("%s, %d elements: %v at %d is sent as %v and leaves %v", name, n, x[i], i, got[i], rest[i])
				}
			}
		}
	}
}

func TestInt8StaysWithinHalfAStep(t *testing.T) {
	c := int8Codec{16}
	x := random(3, 1000)
	rest := slices.Clone(x)
	must(t, c.encode(make([]byte, int8Size(len(x), 16)), rest))
	for b := 0; b < len(x); b += 16 {
		top := 0.0
		for _, v := range x[b:min(b+16, len(x))] {
			top = max(top, math.Abs(float64(v)))
		}
		for i := b; i < min(b+16, len(x)); i++ {
			if e := math.Abs(float64(rest[i])); e > top/254*1.0001 {
				t.Errorf("element %d of a block with largest magnitude %v is off by %v", i, top, e)
			}
		}
	}
}

func TestTopKSendsTheLargest(t *testing.T) {
	c := NewStream(Config{Kind: TopK, Ratio: 0.05}, 0, 0).sparse
	for _, n := range lengths {
		x := random(uint64(n)+7, n)
		k := c.count(n)
		rest := slices.Clone(x)
		dst := make([]byte, sparseSize(n, k))
		must(t, c.encode(dst, rest))
		sorted := make([]uint32, n)
		for i, v := range x {
			sorted[i] = magnitude(v)
		}
		slices.Sort(sorted)
		sent := 0
		for i := range x {
			if rest[i] == 0 && x[i] != 0 {
				sent++
				if magnitude(x[i]) < sorted[n-k] {
					t.Errorf("%d elements: %v is sent and is not among the %d largest", n, x[i], k)
				}
			}
		}
		if sent != k {
			t.Errorf("%d elements: %d are sent, want %d", n, sent, k)
		}
	}
}

func TestTiesAreBrokenByPosition(t *testing.T) {
	c := &sparseCodec{count: func(int) int { return 3 }}
	c.pick([]float32{1, -2, 2, 0, -2, 2, 1}, 3)
	if want := []int32{1, 2, 4}; !slices.Equal(c.picked, want) {
		t.Errorf("picked %v, want %v", c.picked, want)
	}
	c.pick(make([]float32, 9), 3)
	if want := []int32{0, 1, 2}; !slices.Equal(c.picked, want) {
		t.Errorf("of zeros picked %v, want %v", c.picked, want)
	}
}

// A value that is not finite reaches whoever decodes, so that all ranks see the overflow of one.
func TestWhatIsNotFiniteArrives(t *testing.T) {
	for name, c := range codecs(100) {
		for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1))} {
			x := random(5, 3000)
			x[1234] = bad
			dst, got := make([]byte, sizeOf(c, len(x))), make([]float32, len(x))
			must(t, c.encode(dst, x))
			if err := c.decode(got, dst); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if v := float64(got[1234]); !math.IsNaN(v) && !math.IsInf(v, 0) {
				t.Errorf("%s: %v arrives as %v", name, bad, v)
			}
		}
	}
}

func TestTinyBlocksWait(t *testing.T) {
	c := int8Codec{8}
	x := []float32{1e-40, -1e-39, 0, 0, 0, 0, 0, 0}
	rest := slices.Clone(x)
	dst := make([]byte, int8Size(8, 8))
	must(t, c.encode(dst, rest))
	if !slices.Equal(rest, x) {
		t.Errorf("left %v of %v", rest, x)
	}
}

func TestTheRatioFallsByQuarters(t *testing.T) {
	c := Config{Kind: DGC, Ratio: 0.001, Warmup: 100}
	for update, want := range map[int]float64{0: 0.25, 24: 0.25, 25: 0.0625, 50: 0.015625, 75: 0.00390625, 99: 0.00390625, 100: 0.001, 1e9: 0.001} {
		if got := c.RatioAt(update); got != want {
			t.Errorf("update %d: %v, want %v", update, got, want)
		}
	}
	if n, most := c.Size(1e6, 0), c.MaxSize(1e6); n != most || c.Size(1e6, 100) > most/100 {
		t.Errorf("sizes %d at first, %d at the end, at most %d", n, c.Size(1e6, 100), most)
	}
}

// The bits of every codec are the same everywhere: recorded sums of what they make of one vector.
func TestRecordedBits(t *testing.T) {
	want := map[string]uint64{
		"bf16": 0x759eca87f43a6c3e, "int8": 0x238c90b9b837c6fe, "int8 in small blocks": 0xf865b62a30530101,
		"topk": 0x6fbdc68a24b69286, "topk warming up": 0x477007605bda71, "topk half": 0x7978818b0ae1b7b2,
	}
	for name, c := range codecs(3) {
		x := make([]float32, 5000)
		for i := range x {
			x[i] = float32((i*7919)%10007-5000) * float32(1+i%13)
		}
		dst := make([]byte, sizeOf(c, len(x)))
		must(t, c.encode(dst, x))
		h := uint64(14695981039346656037)
		for _, b := range dst {
			h = (h ^ uint64(b)) * 1099511628211
		}
		for _, v := range x {
			h = (h ^ uint64(math.Float32bits(v))) * 1099511628211
		}
		if h != want[name] {
			t.Errorf("%q: %#x,", name, h)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, c := range codecs(0) {
		x := random(9, 100)
		dst := make([]byte, sizeOf(c, len(x)))
		must(f, c.encode(dst, x))
		f.Add(dst, uint16(100))
	}
	f.Fuzz(func(t *testing.T, src []byte, n uint16) {
		dst := make([]float32, int(n)%5000)
		for name, c := range codecs(0) {
			if c, ok := c.(*sparseCodec); ok && c.decode(dst, src) == nil {
				// What is accepted is a vector: encoding it again gives as many elements at the same places.
				seen := 0
				for _, v := range dst {
					if v != 0 {
						seen++
					}
				}
				if seen > c.count(len(dst)) {
					t.Errorf("%s: %d elements decoded, at most %d were sent", name, seen, c.count(len(dst)))
				}
			}
			if len(src)%2 == 0 {
				_ = c.decode(dst, append([]byte(nil), src...))
			}
		}
	})
}

// Any one flipped bit in the positions of a sparse vector is an error or other positions, never a panic; cut or longer
// messages are errors.
func TestDamagedVectorsAreRefused(t *testing.T) {
	for name, c := range codecs(100) {
		x := random(11, 700)
		good := make([]byte, sizeOf(c, len(x)))
		must(t, c.encode(good, x))
		dst := make([]float32, len(x))
		for _, bad := range [][]byte{good[:len(good)-2], append(slices.Clone(good), 0, 0), nil} {
			if c.decode(dst, bad) == nil {
				t.Errorf("%s: %d bytes are decoded where there should be %d", name, len(bad), len(good))
			}
		}
	}
	c := &sparseCodec{count: func(int) int { return 10 }}
	good := make([]byte, sparseSize(700, 10))
	must(t, c.encode(good, random(13, 700)))
	refused := 0
	for bit := 8 * 40; bit < 8*len(good); bit++ {
		bad := slices.Clone(good)
		bad[bit/8] ^= 1 << (bit % 8)
		if c.decode(make([]float32, 700), bad) != nil {
			refused++
		}
	}
	if refused == 0 {
		t.Error("no flipped bit is noticed")
	}
}

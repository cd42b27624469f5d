package compress

import (
	"errors"
	"math"
	"slices"
	"testing"
)

// halving is an External whose encodings say of each element only that it is there: 0.5.
type halving struct{ err error }

func (halving) String() string { return "halving" }
func (halving) Size(n int) int { return n }

func (h halving) Encode(dst []byte, x []float32) error {
	for i := range x {
		dst[i] = 1
		x[i] -= 0.5
	}
	return h.err
}

func (h halving) Decode(dst []float32, src []byte) error {
	for i := range dst {
		dst[i] = 0.5 * float32(src[i])
	}
	return h.err
}

func TestForeign(t *testing.T) {
	cfg := Config{Kind: Foreign, External: halving{}}
	must(t, cfg.Validate())
	if cfg.String() != "halving" || cfg.Size(0, 0) != 0 || cfg.Size(7, 3) != 8 {
		t.Errorf("%v: %d and %d bytes", cfg, cfg.Size(0, 0), cfg.Size(7, 3))
	}
	if (Config{Kind: Foreign}).Validate() == nil {
		t.Error("no method at all was accepted")
	}
	// Elements 2 and 3 of 6 are a gap; the last three are the owned chunk.
	s := NewForeign(cfg, halving{}, 6, 3, 3, [][2]int{{2, 4}})
	s.Begin(0, 1)
	buf, got := make([]byte, 7), make([]float32, 6)
	g := []float32{1, 2, 9, 9, 3, 4} // what a sum left in the gap
	for step := range 2 {
		must(t, s.Send(buf, [][]float32{g}, 0))
		must(t, s.Receive(got, buf))
		if want := []float32{.5, .5, .5, .5, .5, .5}; !slices.Equal(got, want) {
			t.Errorf("step %d: %v arrived, want %v", step, got, want)
		}
	}
	if want := []float32{1, 3, 0, 0, 5, 7}; !slices.Equal(s.Rest(), want) {
		t.Errorf("%v is left, want %v", s.Rest(), want)
	}
	must(t, s.Return(buf[:4], []float32{7, 1, 2}))
	if want := []float32{0, .5, 1.5}; !slices.Equal(s.Owned(), want) {
		t.Errorf("%v of the owned chunk is left, want %v", s.Owned(), want)
	}
}

// What is not finite reaches everybody, without the method.
func TestForeignNotFinite(t *testing.T) {
	s := NewForeign(Config{Kind: Foreign, External: halving{}, Transactional: true}, halving{errors.New("it was asked")}, 3, 0, 0, nil)
	s.Begin(0, 1)
	buf, got := make([]byte, 4), make([]float32, 3)
	must(t, s.Send(buf, [][]float32{{1, float32(math.Inf(1)), 2}}, 0))
	must(t, s.Receive(got, buf))
	for _, v := range got {
		if v == v {
			t.Errorf("%v arrived", got)
		}
	}
	if !slices.Equal(s.Rest(), make([]float32, 3)) {
		t.Errorf("a step that was not taken left %v", s.Rest())
	}
	if err := s.Send(buf, [][]float32{{1, 1, 1}}, 0); err != nil {
		t.Errorf("%v", err) // the work of this step still holds the infinity
	}
	s.Begin(0, 1)
	if err := s.Send(buf, [][]float32{{1, 1, 1}}, 0); err == nil {
		t.Error("a method's error was lost")
	}
	for _, bad := range [][]byte{nil, {1, 2}, {0, 1, 1, 1}, {7, 1, 1, 1}} {
		if s.Receive(got, bad) == nil {
			t.Errorf("%v was decoded", bad)
		}
	}
	must(t, s.Receive(nil, nil))
}

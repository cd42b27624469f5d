package compress

import (
	"math"
	"slices"
	"testing"
)

var methods = []Config{{Kind: Int8, Block: 64}, {Kind: BF16}, {Kind: TopK, Ratio: 0.02, Warmup: 5}}

// Over many steps, what was sent and what is left are what there was to send.
func TestNothingIsLost(t *testing.T) {
	const n, steps = 900, 40
	for _, cfg := range methods {
		s := NewStream(cfg, n, n)
		total, sent, returned := make([]float64, n), make([]float64, n), make([]float64, n)
		v := make([]float32, n)
		for step := range steps {
			scale := float64(int(1) << (step % 7))
			s.Begin(step, scale)
			a, b := random(uint64(step), n), random(uint64(step)+1000, n)
			for i := range a {
				total[i] += (float64(a[i]) + float64(b[i])) / scale
			}
			buf := make([]byte, s.Size(n))
			must(t, s.Send(buf, [][]float32{a, b}, 0))
			if err := s.Receive(v, buf); err != nil {
				t.Fatal(err)
			}
			for i := range v {
				sent[i] += float64(v[i])
			}
			must(t, s.Return(buf, v))
			if err := s.Receive(v, buf); err != nil {
				t.Fatal(err)
			}
			for i := range v {
				returned[i] += float64(v[i])
			}
			s.Commit()
		}
		for i := range total {
			if d := math.Abs(sent[i] + float64(s.Rest()[i]) - total[i]); d > 1e-4*(1+math.Abs(total[i])) {
				t.Fatalf("%v: element %d: %v sent and %v left of %v", cfg, i, sent[i], s.Rest()[i], total[i])
			}
			if d := math.Abs(returned[i] + float64(s.Owned()[i]) - sent[i]); d > 1e-4*(1+math.Abs(sent[i])) {
				t.Fatalf("%v: element %d: %v returned and %v left of %v", cfg, i, returned[i], s.Owned()[i], sent[i])
			}
		}
	}
}

// A step that was not committed leaves no trace.
func TestASkippedStepLeavesNoTrace(t *testing.T) {
	const n = 500
	for _, cfg := range append(methods, Config{Kind: DGC, Ratio: 0.05, Momentum: 0.9}) {
		cfg.Transactional = true
		one, two := NewStream(cfg, n, n), NewStream(cfg, n, n)
		step := func(s *Stream, seed uint64, bad bool) []byte {
			g := random(seed, n)
			if bad {
				g[3] = float32(math.Inf(1))
			}
			buf, v := make([]byte, s.Size(n)), make([]float32, n)
			must(t, s.Send(buf, [][]float32{g}, 0))
			if err := s.Receive(v, buf); err != nil {
				t.Fatal(err)
			}
			back := make([]byte, s.Size(n))
			must(t, s.Return(back, v))
			return append(buf, back...)
		}
		for i := range 6 {
			one.Begin(i, 4)
			a := step(one, uint64(i), false)
			one.Commit()
			two.Begin(i, 8)
			step(two, 99, true) // and not committed
			two.Begin(i, 4)
			b := step(two, uint64(i), false)
			two.Commit()
			if !slices.Equal(a, b) {
				t.Fatalf("%v: step %d sends other bytes after a skipped step", cfg, i)
			}
		}
	}
}

// With everything sent, DGC is momentum SGD but for the masking; with masking, the paper's three steps by hand.
func TestDGCByHand(t *testing.T) {
	for _, nesterov := range []bool{false, true} {
		s := NewStream(Config{Kind: DGC, Ratio: 0.25, Momentum: 0.5, Nesterov: nesterov}, 4, 0)
		u, v := make([]float64, 4), make([]float64, 4)
		for step := range 6 {
			g := []float32{1, float32(step), -2, 0.5}
			s.Begin(step, 2)
			buf, got := make([]byte, s.Size(4)), make([]float32, 4)
			must(t, s.Send(buf, [][]float32{g}, 0))
			if err := s.Receive(got, buf); err != nil {
				t.Fatal(err)
			}
			best := 0
			for i := range u {
				x := float64(g[i]) / 2
				if nesterov {
					u[i] = 0.5 * (u[i] + x)
					v[i] += u[i] + x
				} else {
					u[i] = 0.5*u[i] + x
					v[i] += u[i]
				}
				if math.Abs(v[i]) > math.Abs(v[best]) {
					best = i
				}
			}
			want := make([]float32, 4)
			want[best] = float32(v[best])
			u[best], v[best] = 0, 0
			if !slices.Equal(got, want) {
				t.Errorf("nesterov %v, step %d: sent %v, want %v", nesterov, step, got, want)
			}
			for i := range u {
				if float64(s.Momentum()[i]) != u[i] || float64(s.Rest()[i]) != v[i] {
					t.Errorf("nesterov %v, step %d, element %d: momentum %v and rest %v, want %v and %v", nesterov, step, i, s.Momentum()[i], s.Rest()[i], u[i], v[i])
				}
			}
			s.Commit()
		}
	}
}

// Alone, DGC is momentum SGD: nothing is masked, and what was left is added once.
func TestAloneDGCIsMomentumSGD(t *testing.T) {
	s := NewStream(Config{Kind: DGC, Ratio: 0.5, Momentum: 0.5}, 2, 0)
	s.Rest()[0] = 8
	u := 0.0
	for step, want := range []float32{8 + 1, 1.5, 1.75} {
		s.Begin(step, 1)
		own := []float32{1, 0}
		s.Absorb(own)
		s.Commit()
		u = 0.5*u + 1
		if own[0] != want || float64(s.Momentum()[0]) != u || s.Rest()[0] != 0 {
			t.Errorf("step %d: gradient %v, momentum %v, rest %v; want %v, %v and 0", step, own[0], s.Momentum()[0], s.Rest()[0], want, u)
		}
	}
}

func TestValidateRefuses(t *testing.T) {
	for _, c := range []Config{{Kind: "zip"}, {Kind: Int8}, {Kind: Int8, Block: 4}, {Kind: TopK}, {Kind: TopK, Ratio: 0.9}, {Kind: TopK, Ratio: math.NaN()}, {Kind: DGC, Ratio: 0.1, Warmup: -1},
		{Kind: DGC, Ratio: 0.1, Clip: math.Inf(1)}, {Kind: DGC, Ratio: 0.1, Clip: -1}, {Kind: PowerSGD}, {Kind: PowerSGD, Rank: 1000}} {
		if c.Validate() == nil {
			t.Errorf("%+v is accepted", c)
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

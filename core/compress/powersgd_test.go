package compress

import (
	"math"
	"slices"
	"testing"

	"starling/sdk/vec"
)

// together runs one step of all contributors' factors, each in a goroutine; sums are in order of the contributors.
func together(f []*Factors, own [][]float32) [][]float32 {
	n := len(f)
	dst := make([][]float32, n)
	arrive, leave := make(chan int, n), make([]chan struct{}, n)
	parts := make([][]float32, n)
	done := make(chan struct{}, n)
	for r := range f {
		leave[r] = make(chan struct{})
		go func() {
			dst[r] = make([]float32, len(own[r]))
			_ = f[r].Sum([][]float32{own[r]}, dst[r], func(v []float32) error {
				parts[r] = v
				arrive <- r
				<-leave[r]
				return nil
			})
			done <- struct{}{}
		}()
	}
	for range 2 {
		for range n {
			<-arrive
		}
		total := slices.Clone(parts[0])
		for _, p := range parts[1:] {
			for i := range total {
				total[i] += p[i]
			}
		}
		for r := range n {
			copy(parts[r], total)
			leave[r] <- struct{}{}
		}
	}
	for range n {
		<-done
	}
	return dst
}

var testMatrices = []Matrix{{At: 3, Rows: 12, Cols: 20, Key: 1}, {At: 250, Rows: 2, Cols: 3, Key: 2}, {At: 260, Rows: 30, Cols: 9, Key: 3}}

const testLen = 260 + 270 + 5

func TestPowerSGDLosesNothing(t *testing.T) {
	cfg := Config{Kind: PowerSGD, Rank: 2, Warmup: 20, Transactional: true}
	f := []*Factors{NewFactors(cfg, testLen, testMatrices), NewFactors(cfg, testLen, testMatrices), NewFactors(cfg, testLen, testMatrices)}
	total, sent := make([]float64, testLen), make([]float64, testLen)
	for step := range 30 {
		var own [][]float32
		for r := range f {
			g := random(uint64(100*step+r), testLen)
			for i := range g {
				g[i] = float32(math.Tanh(float64(g[i]))) + 1
				total[i] += float64(g[i]) / 2
			}
			own = append(own, g)
			f[r].Begin(step, 2)
		}
		dst := together(f, own)
		for r := range f {
			if !slices.Equal(dst[r], dst[0]) {
				t.Fatalf("step %d: contributors 0 and %d get other sums", step, r)
			}
			f[r].Commit()
		}
		for i, v := range dst[0] {
			sent[i] += float64(v)
		}
	}
	for i := range total {
		left := 0.0
		for _, x := range f {
			left += float64(x.Rest()[i])
		}
		if d := math.Abs(sent[i] + left - total[i]); d > 1e-3*(1+math.Abs(total[i])) {
			t.Fatalf("element %d: %v sent and %v left of %v", i, sent[i], left, total[i])
		}
	}
	for _, i := range []int{0, 2, 243, 255, testLen - 1} { // no matrix, or one that would not shrink
		if f[0].Rest()[i] != 0 {
			t.Errorf("element %d, which is sent as it is, leaves %v", i, f[0].Rest()[i])
		}
	}
	if !slices.Equal(f[0].Q(testMatrices[0]), f[2].Q(testMatrices[0])) || f[0].Q(testMatrices[1]) != nil {
		t.Error("contributors keep different factors, or one of a matrix that is sent as it is")
	}
}

// A matrix of the rank that is sent is sent whole, but for rounding.
func TestPowerSGDIsExactForLowRank(t *testing.T) {
	m := Matrix{At: 0, Rows: 40, Cols: 30, Key: 5}
	f := NewFactors(Config{Kind: PowerSGD, Rank: 2}, 1200, []Matrix{m})
	a, b := random(1, 70), random(2, 70)
	g := make([]float32, 1200)
	for i := range 40 {
		for j := range 30 {
			g[30*i+j] = a[i]*a[40+j] + b[i]*b[40+j]
		}
	}
	f.Begin(0, 1)
	dst := together([]*Factors{f}, [][]float32{slices.Clone(g)})[0]
	var off, all float64
	for i := range g {
		off += math.Pow(float64(dst[i]-g[i]), 2)
		all += math.Pow(float64(g[i]), 2)
	}
	if math.Sqrt(off/all) > 1e-5 {
		t.Errorf("a matrix of rank 2 is off by %v of its norm", math.Sqrt(off/all))
	}
}

func TestPowerSGDSurvivesZerosAndSpreadsNaN(t *testing.T) {
	cfg := Config{Kind: PowerSGD, Rank: 2, Transactional: true}
	f := NewFactors(cfg, testLen, testMatrices)
	step := func(g []float32, keep bool) []float32 {
		f.Begin(0, 1)
		dst := together([]*Factors{f}, [][]float32{g})[0]
		if keep {
			f.Commit()
		}
		return dst
	}
	for i, v := range step(make([]float32, testLen), true) {
		if v != 0 {
			t.Fatalf("element %d of a gradient of zeros is %v", i, v)
		}
	}
	bad := random(3, testLen)
	bad[20] = float32(math.NaN())
	seen := false
	for _, v := range step(bad, false) {
		seen = seen || v != v
	}
	if !seen {
		t.Error("NaN does not arrive")
	}
	g := random(4, testLen)
	sent := 0.0
	for _, v := range step(g, true)[3:243] {
		sent += math.Abs(float64(v))
	}
	if !(sent > 0) || math.IsInf(sent, 0) {
		t.Errorf("after zeros and a skipped NaN the matrix is sent as %v in all", sent)
	}
	p := random(5, 60)
	copy(p[20:40], p[:20]) // the second is the first
	orthonormalise(p, 3, 20)
	for i := range 20 {
		if p[20+i] != 0 {
			t.Fatalf("a vector in the span of another leaves %v", p[20+i])
		}
	}
}

// The rank falls in three stages to the one that was asked for; a matrix that a stage would not shrink is sent as it is, and its
// factor goes on where it shrinks.
func TestPowerSGDWarmsUp(t *testing.T) {
	cfg := Config{Kind: PowerSGD, Rank: 1, Warmup: 10}
	var ranks []int
	for u := range 12 {
		ranks = append(ranks, cfg.RankAt(u))
	}
	if want := []int{8, 8, 8, 8, 4, 4, 4, 2, 2, 2, 1, 1}; !slices.Equal(ranks, want) {
		t.Errorf("ranks %v, want %v", ranks, want)
	}
	if r := (Config{Kind: PowerSGD, Rank: 3}).RankAt(0); r != 3 {
		t.Errorf("rank %d without a warm-up, want 3", r)
	}
	// A run that was begun with a warm-up that sent everything has another digest, and is not resumed with this one.
	if got := cfg.String(); got != "powersgd(rank 1, warmup 10 from rank 8)" {
		t.Errorf("a warm-up enters the digest as %s", got)
	}
	if got := (Config{Kind: PowerSGD, Rank: 1}).String(); got != "powersgd(rank 1, warmup 0)" {
		t.Errorf("no warm-up enters the digest as %s", got)
	}
	mats := append(slices.Clone(testMatrices), Matrix{At: testLen, Rows: 40, Cols: 30, Key: 4})
	const n = testLen + 40*30
	f := NewFactors(cfg, n, mats)
	planned := cfg.Payload(n, mats)
	for u := range 12 {
		rank := cfg.RankAt(u)
		g := random(uint64(u), n)
		for i := range g {
			g[i] = float32(math.Tanh(float64(g[i])))
		}
		f.Begin(u, 1)
		was := slices.Clone(f.Rest())
		dst := together([]*Factors{f}, [][]float32{slices.Clone(g)})[0]
		f.Commit()
		if first, second := f.Payload(); first > planned.Most || second > planned.Most || len(f.payload) > planned.Most {
			t.Fatalf("rank %d: sums of %d and %d, planned %d at most", rank, first, second, planned.Most)
		}
		// At rank 8 only the largest shrinks, at 4 and 2 all but the smallest, which does at 1.
		if got, want := len(f.mats), map[int]int{8: 1, 4: 3, 2: 3, 1: 4}[rank]; got != want {
			t.Fatalf("rank %d: %d matrices in factors, want %d", rank, got, want)
		}
		for _, m := range f.mats {
			q := f.Q(m.Matrix)
			for j := range rank {
				if vec.SumSq64(q[j*m.Cols:][:m.Cols]) == 0 {
					t.Fatalf("update %d: column %d of the factor of the matrix at %d is 0", u, j, m.At)
				}
			}
		}
		for i := range dst {
			if want := was[i] + g[i]; !(math.Abs(float64(dst[i]+f.Rest()[i]-want)) < 1e-4*(1+math.Abs(float64(want)))) {
				t.Fatalf("update %d, element %d: %v sent and %v left of %v", u, i, dst[i], f.Rest()[i], want)
			}
		}
	}
	if first, second := f.Payload(); first != planned.First || second != planned.Second {
		t.Errorf("factors send %d and %d, planned %d and %d", first, second, planned.First, planned.Second)
	}
	if got := 4 * int64(len(f.rest.kept)+len(f.q.kept)); got != planned.State {
		t.Errorf("%d bytes of state, planned %d", got, planned.State)
	}
	if got := 4 * int64(len(f.payload)+len(f.p)); got != planned.Buffers {
		t.Errorf("%d bytes of buffers, planned %d", got, planned.Buffers)
	}
}

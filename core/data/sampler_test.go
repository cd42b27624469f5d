package data

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func newSampler(t testing.TB, c SamplerConfig) *Sampler {
	t.Helper()
	s, err := NewSampler(c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// step lists the samples of a whole step, micro-batch after micro-batch.
func stepOf(s *Sampler, step int64) []int64 {
	var out []int64
	for m := range s.MicroBatches() {
		dst := make([]int64, s.MicroBatch())
		s.Indices(dst, step, m)
		out = append(out, dst...)
	}
	return out
}

// epochOf lists the real samples of an epoch.
func epochOf(s *Sampler, epoch int64) []int64 {
	var out []int64
	for k := range s.StepsPerEpoch() {
		for _, i := range stepOf(s, epoch*s.StepsPerEpoch()+k) {
			if i >= 0 {
				out = append(out, i)
			}
		}
	}
	return out
}

func TestThreeEpochsHaveThreeOrdersTheSameOnEveryRun(t *testing.T) {
	orders := func() [][]int64 {
		s := newSampler(t, SamplerConfig{Samples: 22, GlobalBatch: 4, MicroBatch: 2, Seed: 7, Shuffle: true})
		return [][]int64{epochOf(s, 0), epochOf(s, 1), epochOf(s, 2)}
	}
	got := orders()
	// Frozen: another order would change every run that people resume or compare.
	want := [][]int64{
		{21, 12, 2, 3, 10, 1, 0, 14, 5, 9, 18, 13, 16, 6, 4, 20, 17, 19, 8, 15, 7, 11},
		{8, 0, 20, 11, 1, 10, 3, 2, 14, 16, 5, 17, 4, 18, 7, 9, 19, 6, 21, 15, 13, 12},
		{1, 16, 11, 10, 17, 21, 5, 15, 20, 13, 6, 8, 2, 18, 3, 4, 14, 7, 0, 9, 19, 12},
	}
	for e := range got {
		if !slices.Equal(got[e], want[e]) {
			t.Errorf("epoch %d: %v, want %v", e, got[e], want[e])
		}
	}
	if slices.Equal(got[0], got[1]) || slices.Equal(got[1], got[2]) || slices.Equal(got[0], got[2]) {
		t.Error("two epochs have the same order")
	}
	if again := orders(); !slices.EqualFunc(got, again, slices.Equal[[]int64]) {
		t.Errorf("a second run gave %v", again)
	}
}

func TestResumeAtStep200Of125AnEpoch(t *testing.T) {
	c := SamplerConfig{Samples: 125 * 8, GlobalBatch: 8, MicroBatch: 2, Seed: 1, Shuffle: true}
	s := newSampler(t, c)
	if n := s.StepsPerEpoch(); n != 125 {
		t.Fatalf("%d steps an epoch, want 125", n)
	}
	if epoch, offset := s.Position(200); epoch != 1 || offset != 75 {
		t.Fatalf("step 200 is step %d of epoch %d, want 75 of 1", offset, epoch)
	}
	for step := range int64(200) { // the run that was not stopped
		stepOf(s, step)
	}
	resumed := newSampler(t, c)
	for step := int64(200); step < 210; step++ {
		if a, b := stepOf(s, step), stepOf(resumed, step); !slices.Equal(a, b) {
			t.Errorf("step %d: %v straight through, %v resumed", step, a, b)
		}
	}
}

func TestLastStepOfAnEpochIsPadded(t *testing.T) {
	s := newSampler(t, SamplerConfig{Samples: 21, GlobalBatch: 4, MicroBatch: 1})
	if n := s.StepsPerEpoch(); n != 6 {
		t.Fatalf("%d steps, want 6", n)
	}
	if got, want := stepOf(s, 5), []int64{20, -1, -1, -1}; !slices.Equal(got, want) {
		t.Errorf("the last step is %v, want %v", got, want)
	}
	if s.Samples(4) != 4 || s.Samples(5) != 1 || s.Samples(6) != 4 {
		t.Errorf("samples in steps 4, 5, 6: %d %d %d, want 4 1 4", s.Samples(4), s.Samples(5), s.Samples(6))
	}
	if got, want := stepOf(s, 6), []int64{0, 1, 2, 3}; !slices.Equal(got, want) {
		t.Errorf("the step after it is %v, want %v", got, want)
	}
}

func TestEpochIsAPermutation(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		micro := rapid.IntRange(1, 5).Draw(t, "micro")
		c := SamplerConfig{
			Samples:     rapid.Int64Range(1, 600).Draw(t, "samples"),
			GlobalBatch: micro * rapid.IntRange(1, 6).Draw(t, "M"),
			MicroBatch:  micro,
			Seed:        rapid.Uint64().Draw(t, "seed"),
			Shuffle:     rapid.Bool().Draw(t, "shuffle"),
		}
		s, err := NewSampler(c)
		if err != nil {
			t.Fatal(err)
		}
		order := epochOf(s, rapid.Int64Range(0, 1<<40).Draw(t, "epoch"))
		if !c.Shuffle && !slices.IsSorted(order) {
			t.Fatalf("not shuffled, yet out of order: %v", order)
		}
		slices.Sort(order)
		for k, i := range order {
			if int64(k) != i {
				t.Fatalf("sample %d is missing or twice: %v", k, order)
			}
		}
		if int64(len(order)) != c.Samples {
			t.Fatalf("%d samples of %d", len(order), c.Samples)
		}
	})
}

// Every place of a small shuffle is equally likely for every sample. The chi-square statistic of n²
// cells has mean (n-1)² and deviation about sqrt(2)(n-1); six of them never occur by chance.
func TestShuffleIsUniform(t *testing.T) {
	for _, n := range []int64{2, 3, 5, 22, 33} {
		const epochs = 4000
		counts := make([]float64, n*n)
		for e := range uint64(epochs) {
			p := newPermutation(uint64(n), 99, e)
			for i := range n {
				counts[i*n+int64(p.at(uint64(i)))]++
			}
		}
		expected := float64(epochs) / float64(n)
		chi := 0.0
		for _, c := range counts {
			chi += (c - expected) * (c - expected) / expected
		}
		free := float64((n - 1) * (n - 1))
		if limit := free + 6*1.42*float64(n-1) + 12; chi > limit {
			t.Errorf("%d samples: chi-square %.0f with %.0f degrees of freedom", n, chi, free)
		}
	}
}

func TestPermutationOfHugeDomain(t *testing.T) {
	const n = 1<<62 + 3
	p := newPermutation(n, 1, 2)
	seen := map[uint64]bool{}
	for i := range uint64(10_000) {
		v := p.at(i)
		if v >= n || seen[v] {
			t.Fatalf("element %d is %d", i, v)
		}
		seen[v] = true
	}
}

func TestEvalSamplerSeesTheSameSamplesEachTime(t *testing.T) {
	s, err := NewEvalSampler(1000, 32, 8, 16)
	if err != nil {
		t.Fatal(err)
	}
	if s.MicroBatches() != 64 || s.StepsPerEpoch() != 1 {
		t.Fatalf("%d micro-batches in %d steps, want 64 in 1", s.MicroBatches(), s.StepsPerEpoch())
	}
	first := stepOf(s, 0)
	if !slices.Equal(first, stepOf(s, 9)) {
		t.Error("a later evaluation sees other samples")
	}
	if lo, hi := slices.Min(first), slices.Max(first); lo > 50 || hi < 950 {
		t.Errorf("the samples lie in %d … %d, not spread over the data", lo, hi)
	}
	for _, c := range []struct {
		samples    int64
		batches, m int
		real       int64
	}{
		{samples: 100, batches: 0, m: 13, real: 100},    // all of it, the last micro-batch padded
		{samples: 100, batches: 2, m: 8, real: 64},      // exactly two batches
		{samples: 100, batches: 1000, m: 13, real: 100}, // more than there is
		{samples: 3, batches: 1, m: 1, real: 3},
	} {
		s, err := NewEvalSampler(c.samples, 32, 8, c.batches)
		if err != nil {
			t.Fatal(err)
		}
		if s.MicroBatches() != c.m || s.Samples(0) != c.real || s.Samples(5) != c.real {
			t.Errorf("%d batches of %d samples: %d micro-batches, %d samples, want %d, %d", c.batches, c.samples, s.MicroBatches(), s.Samples(0), c.m, c.real)
		}
		got := epochOf(s, 3)
		slices.Sort(got)
		if n := len(slices.Compact(got)); int64(n) != c.real {
			t.Errorf("%d different samples, want %d", n, c.real)
		}
	}
}

func TestSamplerRefuses(t *testing.T) {
	for _, c := range []struct {
		cfg  SamplerConfig
		want string
	}{
		{SamplerConfig{Samples: 0, GlobalBatch: 4, MicroBatch: 2}, "at least one sample"},
		{SamplerConfig{Samples: 9, GlobalBatch: 0, MicroBatch: 2}, "global_batch = 0"},
		{SamplerConfig{Samples: 9, GlobalBatch: 4, MicroBatch: 0}, "micro_batch = 0"},
		{SamplerConfig{Samples: 9, GlobalBatch: 32, MicroBatch: 12}, "use a divisor such as 8"},
		{SamplerConfig{Samples: 9, GlobalBatch: 4, MicroBatch: 8}, "use a divisor such as 4"},
	} {
		if _, err := NewSampler(c.cfg); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: error %v, want one with %q", c.cfg, err, c.want)
		}
	}
	if _, err := NewEvalSampler(9, 4, 2, -1); err == nil || !strings.Contains(err.Error(), "batches = -1") {
		t.Errorf("error %v", err)
	}
}

func TestShareCoversEverythingOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n, parts := rapid.IntRange(0, 50).Draw(t, "n"), rapid.IntRange(1, 9).Draw(t, "parts")
		var all []int
		for p := range parts {
			share := Share(n, parts, p)
			if d := len(share) - n/parts; d < 0 || d > 1 {
				t.Fatalf("part %d of %d has %d of %d", p, parts, len(share), n)
			}
			all = append(all, share...)
		}
		for k, i := range all {
			if k != i {
				t.Fatalf("parts joined: %v", all)
			}
		}
		if len(all) != n {
			t.Fatalf("%d of %d", len(all), n)
		}
	})
}

package data

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// counting is a dataset whose sample i is the number i and its label i mod 10; it can fail at one sample
// and take its time.
type counting struct {
	n      int64
	broken int64
	delay  func(i int64)
	reads  *atomic.Int64
}

var errBroken = errors.New("unreadable")

func (c counting) Len() int64 { return c.n }

func (c counting) Fields() []Field {
	return []Field{
		{Name: "value", DType: Float32, Shape: []int{2}},
		{Name: "label", DType: Int32, Role: Target},
	}
}

func (c counting) Sample(i int64, dst []Values) error {
	if c.reads != nil {
		c.reads.Add(1)
	}
	if c.delay != nil {
		c.delay(i)
	}
	if c.broken > 0 && i == c.broken {
		return errBroken
	}
	dst[0].Float32[0], dst[0].Float32[1] = float32(i), -float32(i)
	dst[1].Int32[0] = int32(i % 10)
	return nil
}

func newLoader(t testing.TB, ctx context.Context, c LoaderConfig) *Loader {
	t.Helper()
	l, err := NewLoader(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

// drain reads the loader to its end, as lines "step.index: samples".
func drain(t *testing.T, l *Loader) (lines []string) {
	t.Helper()
	for {
		b, err := l.Next(t.Context())
		if err == io.EOF {
			return lines
		}
		if err != nil {
			t.Fatal(err)
		}
		for r, i := range b.Indices() {
			want := float32(max(i, 0))
			if v := b.Column("value").Float32; v[2*r] != want || v[2*r+1] != -want {
				t.Errorf("step %d, micro-batch %d, row %d holds %v, want sample %d", b.Step, b.Index, r, v[2*r:2*r+2], i)
			}
		}
		lines = append(lines, fmt.Sprintf("%d.%d: %v", b.Step, b.Index, b.Indices()))
		b.Release()
	}
}

func TestLoaderDeliversTheScheduleInOrder(t *testing.T) {
	// The samples that come early take longest, so that workers finish out of order.
	ds := counting{n: 40, delay: func(i int64) { time.Sleep(time.Duration(i%3) * 200 * time.Microsecond) }}
	s := newSampler(t, SamplerConfig{Samples: 40, GlobalBatch: 8, MicroBatch: 2, Seed: 3, Shuffle: true})
	schedule := []int{2, 0, 3}
	var want []string
	for step := int64(4); step < 14; step++ {
		all := stepOf(s, step)
		for _, m := range schedule {
			want = append(want, fmt.Sprintf("%d.%d: %v", step, m, all[2*m:2*m+2]))
		}
	}
	for _, workers := range []int{1, 2, 5} {
		for _, prefetch := range []int{1, 3} {
			l := newLoader(t, t.Context(), LoaderConfig{Dataset: ds, Sampler: s, Schedule: schedule, Start: 4, Steps: 10, Workers: workers, Prefetch: prefetch})
			if got := drain(t, l); !slices.Equal(got, want) {
				t.Errorf("%d workers, prefetch %d:\n%s\nwant\n%s", workers, prefetch, strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		}
	}
}

// 21 micro-batches of one sample, 4 a step, over two ranks: both ranks run the same number of
// micro-batches, the last step is padded, and the average over real samples is exact.
func TestShortLastStepOverTwoRanks(t *testing.T) {
	ds := counting{n: 21}
	s := newSampler(t, SamplerConfig{Samples: 21, GlobalBatch: 4, MicroBatch: 1, Seed: 5, Shuffle: true})
	var sum, weight, batches, padded int64
	for rank := range 2 {
		l := newLoader(t, t.Context(), LoaderConfig{Dataset: ds, Sampler: s, Schedule: Share(4, 2, rank), Steps: s.StepsPerEpoch()})
		for {
			b, err := l.Next(t.Context())
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			batches++
			weight += b.Weight
			if b.Samples == 0 {
				padded++
				if b.Weight != 0 || b.Column("label").Int32[0] != Masked || b.Column("value").Float32[0] != 0 {
					t.Errorf("padding holds weight %d, label %d, value %v", b.Weight, b.Column("label").Int32[0], b.Column("value").Float32)
				}
			}
			sum += int64(b.Column("value").Float32[0])
			b.Release()
		}
	}
	if batches != 24 || padded != 3 || weight != 21 || sum != 20*21/2 {
		t.Errorf("%d micro-batches, %d of them padding, weight %d, sum %d; want 24, 3, 21, 210", batches, padded, weight, sum)
	}
}

func TestLoaderAllocatesNothingOnceRunning(t *testing.T) {
	s := newSampler(t, SamplerConfig{Samples: 1000, GlobalBatch: 16, MicroBatch: 8, Shuffle: true})
	w, err := NewWindows(make([]byte, 1000*16+1), 16)
	if err != nil {
		t.Fatal(err)
	}
	l := newLoader(t, t.Context(), LoaderConfig{Dataset: w, Sampler: s, Schedule: []int{0, 1}})
	ctx := t.Context()
	n := testing.AllocsPerRun(500, func() {
		b, err := l.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		b.Release()
	})
	if n != 0 {
		t.Errorf("%v allocations a micro-batch", n)
	}
}

func TestLoaderBytesAreThoseOfItsBatches(t *testing.T) {
	ds := counting{n: 40}
	s := newSampler(t, SamplerConfig{Samples: 40, GlobalBatch: 8, MicroBatch: 4})
	l := newLoader(t, t.Context(), LoaderConfig{Dataset: ds, Sampler: s, Schedule: []int{0}, Workers: 3, Prefetch: 2})
	var n int64
	for _, s := range l.slots {
		for _, c := range s.batch.Columns {
			n += int64(len(c.Bytes()))
		}
	}
	if want := LoaderBytes(ds.Fields(), 4, 3, 2); n != want || want != 7*4*12 {
		t.Errorf("the loader holds %d bytes, LoaderBytes says %d, want %d", n, want, 7*4*12)
	}
}

func TestLoaderReadsNoFurtherAheadThanItSays(t *testing.T) {
	var reads atomic.Int64
	ds := counting{n: 4000, reads: &reads}
	s := newSampler(t, SamplerConfig{Samples: 4000, GlobalBatch: 4, MicroBatch: 1})
	l := newLoader(t, t.Context(), LoaderConfig{Dataset: ds, Sampler: s, Schedule: []int{0, 1, 2, 3}, Workers: 2, Prefetch: 3})
	b, err := l.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(5 * time.Second)
	for reads.Load() < 7 && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(10 * time.Millisecond) // room for a mistake to show
	if n := reads.Load(); n != 7 {
		t.Errorf("%d micro-batches read with one in use, want 2 × 3 + 1", n)
	}
	b.Release()
}

func TestLoaderError(t *testing.T) {
	ds := counting{n: 40, broken: 13}
	s := newSampler(t, SamplerConfig{Samples: 40, GlobalBatch: 8, MicroBatch: 4})
	l := newLoader(t, t.Context(), LoaderConfig{Dataset: ds, Sampler: s, Schedule: []int{0, 1}})
	for range 3 { // step 0, and the first half of step 1
		b, err := l.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		b.Release()
	}
	for range 2 {
		_, err := l.Next(t.Context())
		if !errors.Is(err, errBroken) || !strings.Contains(err.Error(), "step 1, micro-batch 1: sample 13") {
			t.Errorf("error %v, want one that names the sample", err)
		}
	}
}

func TestLoaderEndsWithItsContext(t *testing.T) {
	for _, how := range []string{"caller", "loader", "close"} {
		release := make(chan struct{})
		ds := counting{n: 40, delay: func(int64) { <-release }}
		s := newSampler(t, SamplerConfig{Samples: 40, GlobalBatch: 8, MicroBatch: 4})
		run, stopRun := context.WithCancel(t.Context())
		call, stopCall := context.WithCancel(t.Context())
		l := newLoader(t, run, LoaderConfig{Dataset: ds, Sampler: s, Schedule: []int{0}})
		failed := make(chan error, 1)
		go func() {
			_, err := l.Next(call)
			failed <- err
		}()
		switch how {
		case "caller":
			stopCall()
		case "loader":
			stopRun()
		case "close":
			go l.Close()
		}
		if err := <-failed; !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "micro-batch 0 of step 0") {
			t.Errorf("%s: error %v", how, err)
		}
		close(release)
		l.Close()
		stopRun()
		stopCall()
	}
}

func TestLoaderWithEveryBatchHeld(t *testing.T) {
	s := newSampler(t, SamplerConfig{Samples: 40, GlobalBatch: 4, MicroBatch: 4})
	l := newLoader(t, t.Context(), LoaderConfig{Dataset: counting{n: 40}, Sampler: s, Schedule: []int{0}, Workers: 1, Prefetch: 1})
	var held []*Batch
	for range 2 {
		b, err := l.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, b)
	}
	if _, err := l.Next(t.Context()); err == nil || !strings.Contains(err.Error(), "all 2 batches") {
		t.Errorf("error %v, want a refusal", err)
	}
	// Given back out of order, the next ones still come in order.
	held[1].Release()
	held[0].Release()
	for want := int64(2); want < 6; want++ {
		b, err := l.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if b.Step != want {
			t.Errorf("step %d, want %d", b.Step, want)
		}
		b.Release()
	}
	defer func() {
		if recover() == nil {
			t.Error("a second release of one batch went unnoticed")
		}
	}()
	b, err := l.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	b.Release()
	b.Release()
}

func TestLoaderRefuses(t *testing.T) {
	s := newSampler(t, SamplerConfig{Samples: 40, GlobalBatch: 8, MicroBatch: 4})
	ok := LoaderConfig{Dataset: counting{n: 40}, Sampler: s, Schedule: []int{0}}
	for want, change := range map[string]func(*LoaderConfig){
		"needs a dataset":           func(c *LoaderConfig) { c.Dataset = nil },
		"40 samples, the dataset":   func(c *LoaderConfig) { c.Dataset = counting{n: 41} },
		"schedule is empty":         func(c *LoaderConfig) { c.Schedule = nil },
		"micro-batch 2, a step has": func(c *LoaderConfig) { c.Schedule = []int{0, 2} },
		"step -1":                   func(c *LoaderConfig) { c.Start = -1 },
		"workers = -1":              func(c *LoaderConfig) { c.Workers = -1 },
		"prefetch = -2":             func(c *LoaderConfig) { c.Prefetch = -2 },
	} {
		c := ok
		change(&c)
		if _, err := NewLoader(t.Context(), c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
}

func BenchmarkLoader(b *testing.B) {
	w, err := NewWindows(make([]byte, 1<<20), 64)
	if err != nil {
		b.Fatal(err)
	}
	s := newSampler(b, SamplerConfig{Samples: w.Len(), GlobalBatch: 32, MicroBatch: 8, Shuffle: true})
	l := newLoader(b, b.Context(), LoaderConfig{Dataset: w, Sampler: s, Schedule: []int{0, 1, 2, 3}})
	b.SetBytes(8 * 64)
	for b.Loop() {
		batch, err := l.Next(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		batch.Release()
	}
}

package cpu

import (
	"bytes"
	"crypto/sha256"
	"flag"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"starling/core/device"
	"starling/core/device/devicetest"
	"starling/core/graph"
	"starling/core/tensor"
	"starling/sdk/vec"
)

func open(t testing.TB, cfg Config) *Device {
	t.Helper()
	d, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

// use switches to a set of kernels and returns what switches back.
func use(t testing.TB, set string) (restore func()) {
	t.Helper()
	restore, err := vec.Use(set)
	if err != nil {
		t.Fatal(err)
	}
	return restore
}

// Every operation that a program can contain has a sample, and so a kernel.
func TestEveryOperationHasAKernel(t *testing.T) {
	var have []string
	for _, s := range samples {
		have = append(have, s.op)
	}
	for _, name := range graph.Names() {
		if name == "input" || name == "param" { // the host's business
			continue
		}
		if !slices.Contains(have, name) {
			t.Errorf("operation %s has no sample", name)
		}
	}
}

// The suite that every device passes, with every set of kernels and on several threads.
func TestConformance(t *testing.T) {
	sets := vec.Sets()
	for i, set := range sets {
		counts := []int{2}
		if i == len(sets)-1 { // that sets agree at any number of threads is TestSameBits' business
			counts = []int{1, 3}
		}
		for _, threads := range counts {
			t.Run(fmt.Sprintf("%s, %d threads", set, threads), func(t *testing.T) {
				defer use(t, set)()
				devicetest.Run(t, func() device.Device { return open(t, Config{Threads: threads}) })
			})
		}
	}
}

func TestAgainstTheReference(t *testing.T) {
	d := open(t, Config{Threads: 2})
	for _, s := range samples {
		t.Run(s.name(), func(t *testing.T) {
			b := s.lay(t, d)
			want := b.reference()
			if s.accum {
				before := reader(device.Tensor{Type: b.call.Out[0].Type, Arena: &arena{mem: b.start[len(b.call.In)]}})
				for i := range want[0].Data {
					want[0].Data[i] += before(i)
				}
			}
			run, err := d.Bind(b.call)
			if err != nil {
				t.Fatal(err)
			}
			run()
			for k, y := range b.call.Out {
				near(t, k, y, want[k])
			}
		})
	}
}

// near compares a result with its reference: exactly for integers, else relative to the magnitude of the result.
func near(t *testing.T, k int, y device.Tensor, want *graph.Array) {
	t.Helper()
	tolerance := map[tensor.DType]float64{tensor.F32: 5e-6, tensor.F64: 1e-12, tensor.BF16: 1e-2, tensor.F16: 1e-3}[y.DType]
	scale := 0.0
	for _, v := range want.Data {
		if !math.IsNaN(v) && !math.IsInf(v, 0) {
			scale = max(scale, math.Abs(v))
		}
	}
	read := reader(y)
	for i, w := range want.Data {
		got := read(i)
		if got == w || math.IsNaN(got) && math.IsNaN(w) {
			continue
		}
		if d := math.Abs(got - w); !(d <= tolerance*(scale/2+math.Abs(w))) {
			t.Fatalf("result %d, element %d of %v: %v, want %v (results reach %.3g)", k, i, y.Type, got, w, scale)
		}
	}
}

// Results have the same bits with every set of kernels at any number of threads, and when a kernel runs again.
func TestSameBits(t *testing.T) {
	want := make([][][]byte, len(samples))
	check := func(set string, threads int) {
		defer use(t, set)()
		d := open(t, Config{Threads: threads})
		for i, s := range samples {
			b := s.lay(t, d)
			run, err := d.Bind(b.call)
			if err != nil {
				t.Fatal(err)
			}
			for range 2 {
				b.reset()
				run()
				got := b.results()
				if want[i] == nil {
					want[i] = got
				}
				for k := range got {
					if !bytes.Equal(got[k], want[i][k]) {
						t.Errorf("%s: result %d differs with %s on %d threads", s.name(), k, set, threads)
					}
				}
			}
		}
	}
	sets := vec.Sets()
	fastest := sets[len(sets)-1]
	for _, threads := range []int{1, 2, 3, 8} {
		check(fastest, threads)
	}
	for _, set := range sets[:len(sets)-1] {
		check(set, 2)
	}
}

var record = flag.Bool("record", false, "write the bits of all samples to testdata")

// The results' bits are on record, one hash for each sample: the same on every architecture and in every version, unless the
// arithmetic is changed on purpose (go test -record).
func TestBitsOnRecord(t *testing.T) {
	d := open(t, Config{Threads: 2})
	var got strings.Builder
	for _, s := range samples {
		b := s.lay(t, d)
		run, err := d.Bind(b.call)
		if err != nil {
			t.Fatal(err)
		}
		run()
		h := sha256.New()
		for _, y := range b.call.Out {
			if y.DType == tensor.F32 {
				for i, v := range f32(y) {
					if v != v { // which NaN it is depends on the processor
						f32(y)[i] = float32(math.NaN())
					}
				}
			}
			h.Write(y.Bytes())
		}
		fmt.Fprintf(&got, "%.8x  %s\n", h.Sum(nil), s.name())
	}
	const file = "testdata/bits.txt"
	if *record {
		if err := os.WriteFile(file, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	w, g := strings.Split(string(want), "\n"), strings.Split(got.String(), "\n")
	if len(w) != len(g) {
		t.Fatalf("%d samples on record, %d here", len(w), len(g))
	}
	for i := range w {
		if w[i] != g[i] {
			t.Errorf("recorded %s\n     got %s", w[i], g[i])
		}
	}
}

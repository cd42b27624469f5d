package plugin

import (
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"starling/core/comm"
	"starling/sdk"
)

// signs is a compressor: for each block a mean magnitude in 4 bytes, which the sign of the first is of, and that is all. Under
// some names it misbehaves, for vectors of 77 elements.
type signs struct {
	name  string
	block int
}

func (s *signs) Manifest() sdk.Manifest {
	return sdk.Manifest{Name: s.name, Version: "1.0.0", Hypers: []sdk.Hyper{sdk.Int("block", 8, "").AtLeast(1)}}
}

func (s *signs) Setup(h sdk.Hypers) (sdk.Layout, error) {
	s.block = h.Int("block")
	switch {
	case s.name == "coder-refuses":
		return sdk.Layout{}, errors.New("not today")
	case s.name == "coder-grows":
		return sdk.Layout{Block: 2, BlockBytes: 8}, nil
	case s.name == "coder-endless":
		return sdk.Layout{Block: 0, BlockBytes: 8}, nil
	case s.name == "coder-changes" && marked("asked"):
		return sdk.Layout{Head: 1, Block: s.block, BlockBytes: 2}, nil
	}
	return sdk.Layout{Head: 1, Block: s.block, BlockBytes: 1}, nil
}

func (s *signs) Encode(dst []byte, x []float32) error {
	if len(x) == 77 {
		kind, rest, _ := strings.Cut(strings.TrimPrefix(s.name, "coder-"), "-")
		if rest == "always" || !marked("done") {
			switch kind {
			case "panic":
				_ = dst[len(dst)]
			case "fail":
				return errors.New("no more ideas")
			case "exit":
				fmt.Fprintln(os.Stderr, "leaving early")
				os.Exit(4)
			case "hang":
				time.Sleep(time.Hour)
			case "nan":
				dst[0] = 9
				return nil
			case "undecodable":
				dst[0] = 5
				return nil
			}
		}
	}
	dst[0] = 1
	for b := range dst[1:] {
		if x[b*s.block] < 0 {
			dst[1+b] = 1
		}
	}
	return nil
}

func (s *signs) Decode(dst []float32, src []byte) error {
	switch src[0] {
	case 3:
		panic("three is too many")
	case 5:
		return fmt.Errorf("it begins with %d", src[0])
	}
	for i := range dst {
		if dst[i] = 0.5; src[1+i/s.block] != 0 {
			dst[i] = -0.5
		}
	}
	if src[0] == 9 {
		dst[len(dst)-1] = float32(math.NaN())
	}
	return nil
}

// coder starts a coder of a plugin.
func coder(t *testing.T, name string) *Coder {
	t.Helper()
	c, err := AskCompressor(t.Context(), use(t, name), map[string]any{"block": int64(8)})
	if err != nil {
		t.Fatal(err)
	}
	k, err := NewCoder(CoderConfig{Compressor: c, Elements: 5000, Threads: 1, Timeout: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Close)
	if err := k.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return k
}

func ramp(n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(i%16-7) / 4
	}
	return x
}

// encodes makes a round trip and compares it with the compressor in this process.
func encodes(t *testing.T, k *Coder, n int) error {
	t.Helper()
	x := ramp(n)
	rest, dst, back := slices.Clone(x), make([]byte, k.cfg.Compressor.Size(n)), make([]float32, n)
	if err := k.Encode(dst, rest); err != nil {
		if !slices.Equal(rest, x) {
			t.Errorf("a failed call has changed the vector")
		}
		return err
	}
	here := signs{name: "coder", block: 8}
	wantBytes, want := make([]byte, len(dst)), make([]float32, n)
	if err := errors.Join(here.Encode(wantBytes, x), here.Decode(want, wantBytes), k.Decode(back, dst)); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(dst, wantBytes) || !slices.Equal(back, want) {
		t.Errorf("%d elements: %v and %v, want %v and %v", n, dst, back, wantBytes, want)
	}
	for i := range x {
		if rest[i] != x[i]-want[i] {
			t.Fatalf("element %d of %d: %v is left of %v, of which %v was sent", i, n, rest[i], x[i], want[i])
		}
	}
	return nil
}

func TestCoder(t *testing.T) {
	k := coder(t, "coder")
	for _, n := range []int{1, 7, 8, 9, 77, 5000, 3} {
		if err := encodes(t, k, n); err != nil {
			t.Fatal(err)
		}
	}
	if k.Restarts() != 0 {
		t.Errorf("%d restarts", k.Restarts())
	}
	fails(t, k.Encode(make([]byte, 4), ramp(16)), "4 bytes for 16 elements, where 3 are expected")
}

// Whatever happens to the plugin in a call, the call is made again and has the same answer.
func TestCoderStartsAgain(t *testing.T) {
	for _, name := range []string{"coder-panic", "coder-fail", "coder-exit", "coder-hang", "coder-nan", "coder-undecodable"} {
		t.Run(name, func(t *testing.T) {
			k := coder(t, name)
			for _, n := range []int{5, 77, 78} {
				if err := encodes(t, k, n); err != nil {
					t.Fatal(err)
				}
			}
			if k.Restarts() != 1 {
				t.Errorf("%d restarts, want 1", k.Restarts())
			}
		})
	}
}

func TestCoderGivesUp(t *testing.T) {
	for name, want := range map[string]string{
		"coder-panic-always": "Encode panicked: runtime error: index out of range",
		"coder-fail-always":  "no more ideas",
		"coder-exit-always":  "leaving early",
		"coder-nan-always":   "decodes to NaN for element 76",
	} {
		k := coder(t, name)
		err := encodes(t, k, 77)
		fails(t, err, name, want)
		fails(t, err, name, "plugin "+name+" failed in encoding 77 elements")
		fails(t, err, name, "it was tried 4 times")
		if err := encodes(t, k, 76); err != nil {
			t.Errorf("%s: after that: %v", name, err)
		}
	}
}

// Rubbish is its sender's fault, unless the plugin fails at it.
func TestCoderDecodesRubbish(t *testing.T) {
	k := coder(t, "coder")
	src := make([]byte, k.cfg.Compressor.Size(20))
	var own *comm.OwnError
	for first, want := range map[byte]string{5: "it begins with 5", 9: "not finite"} {
		src[0] = first
		err := k.Decode(make([]float32, 20), src)
		fails(t, err, want)
		if errors.As(err, &own) || k.Restarts() != 0 {
			t.Errorf("%d: %v, %d restarts", first, err, k.Restarts())
		}
	}
	src[0] = 3
	if err := k.Decode(make([]float32, 20), src); !errors.As(err, &own) || !strings.Contains(err.Error(), "three is too many") {
		t.Errorf("a panic: %v", err)
	}
}

// A plugin that is killed at any moment, by several callers' calls, changes nothing; a closed coder fails at once.
func TestCoderKilled(t *testing.T) {
	k := coder(t, "coder")
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(15 * time.Millisecond):
				if pid := k.PID(); pid != 0 {
					_ = syscall.Kill(pid, syscall.SIGKILL)
					time.Sleep(100 * time.Millisecond) // the limit is one of restarts in a call
				}
			}
		}
	})
	var calls sync.WaitGroup
	for range 2 {
		calls.Go(func() {
			for start := time.Now(); k.Restarts() < 3 && time.Since(start) < time.Minute; {
				if err := encodes(t, k, 4000); err != nil {
					t.Error(err)
				}
			}
		})
	}
	calls.Wait()
	close(stop)
	wg.Wait()
	if k.Restarts() < 3 {
		t.Errorf("%d restarts", k.Restarts())
	}
	k.stop()
	fails(t, encodes(t, k, 4), "the run ends")
}

func TestCompressorErrors(t *testing.T) {
	for name, want := range map[string]string{
		"coder-refuses": "not today",
		"coder-grows":   "8 bytes for 2 elements are no fewer",
		"coder-endless": "a block of 0 elements",
	} {
		_, err := AskCompressor(t.Context(), use(t, name), map[string]any{"block": int64(8)})
		fails(t, err, name, want)
	}
	c, err := AskCompressor(t.Context(), use(t, "coder-changes"), map[string]any{"block": int64(8)})
	if err != nil {
		t.Fatal(err)
	}
	k, err := NewCoder(CoderConfig{Compressor: c, Elements: 10})
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	fails(t, k.Start(t.Context()), "the same settings must give the same layout")
}

package plugin

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unsafe"

	"starling/core/tensor/detmath"
	"starling/sdk"
	"starling/sdk/vec"
)

// The test binary plays every plugin of these tests: copied under a plugin's name and started by a host, it serves it.
func TestMain(m *testing.M) {
	if os.Getenv(sdk.CookieKey) == sdk.CookieValue {
		name := filepath.Base(os.Args[0])
		switch name {
		case "chatty":
			fmt.Println("hello, world")
		case "deaf":
			time.Sleep(time.Hour)
		case "future":
			fmt.Println("1|7|unix|/nowhere|grpc|")
			time.Sleep(time.Hour)
		case "mute":
			fmt.Fprintln(os.Stderr, "something is missing")
			os.Exit(3)
		}
		if strings.HasPrefix(name, "clock") {
			sdk.Serve(&clock{name: name})
		}
		if strings.HasPrefix(name, "coder") {
			sdk.Serve(&signs{name: name})
		}
		sdk.Serve(&faulty{name: name})
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// faulty is AdamW. Under some names it misbehaves: the first part of the name says how, in the third step. What it did lies in
// no memory of its own but in the folder where the program lies, because it may be killed.
type faulty struct {
	name  string
	betas []float64
	eps   float64
	decay float64
}

func (f *faulty) Manifest() sdk.Manifest {
	m := sdk.Manifest{Name: f.name, Version: "1.2.3", Doc: "AdamW, at times", Hypers: []sdk.Hyper{
		sdk.Floats("betas", []float64{0.9, 0.999}, "").AtLeast(0).Below(1),
		sdk.Float("eps", 1e-8, "").AtLeast(0),
		sdk.Float("weight_decay", 0.01, "").AtLeast(0),
		sdk.Int("count", 3, "").AtLeast(1).AtMost(5),
		sdk.String("mode", "a", "").OneOf("a", "b"),
		sdk.Bool("on", true, ""),
	}, Optimizer: &sdk.OptimizerInfo{Granularity: sdk.Elementwise, State: []sdk.Slot{sdk.State("m", 0), sdk.State("v", 0)}}}
	if strings.HasPrefix(f.name, "whole") {
		m.Optimizer.Granularity = sdk.Whole
	}
	if f.name == "misnamed" {
		m.Name = "other"
	}
	return m
}

func (f *faulty) Setup(h sdk.Hypers) error {
	f.betas, f.eps, f.decay = h.Floats("betas"), h.Float("eps"), h.Float("weight_decay")
	if f.name == "unwilling" {
		return errors.New("it is Sunday")
	}
	return nil
}

// marked reports whether this program has been here before, and remembers it.
func marked(what string) bool {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	file, err := os.OpenFile(self+"."+what, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return true
	}
	file.Close()
	return false
}

func (f *faulty) Step(t *sdk.Tensor) error {
	if strings.HasPrefix(f.name, "slow") {
		time.Sleep(200 * time.Microsecond)
	}
	if t.Step == 2 && t.From >= 2*taskElements && t.Name == "b.weight" {
		kind, rest, _ := strings.Cut(f.name, "-")
		if rest == "always" || !marked("done") {
			switch kind {
			case "panic":
				var list []int
				_ = list[t.Step]
			case "fail":
				return errors.New("no more ideas")
			case "exit":
				fmt.Fprintln(os.Stderr, "leaving early")
				os.Exit(4)
			case "hang":
				time.Sleep(time.Hour)
			case "nan":
				t.Param[7] = float32(math.NaN())
				return nil
			case "infstate":
				t.State[1][3] = float32(math.Inf(1))
				return nil
			case "stray":
				p := (*[1 << 30]float32)(unsafe.Pointer(unsafe.SliceData(t.Param)))
				p[3*(t.To-t.From)] = 1 // right behind the slot, which holds parameter, m and v
			}
		}
	}
	adamW(t, f.betas, f.eps, f.decay)
	return nil
}

// adamW is one step of the SDK's kernel, as the built-in optimizer makes it.
func adamW(t *sdk.Tensor, betas []float64, eps, decay float64) {
	if len(t.Shape) < 2 {
		decay = 0
	}
	vec.AdamW(t.Param, t.Grad, t.State[0], t.State[1], vec.AdamWParams{LR: t.Rate, Beta1: betas[0], Beta2: betas[1], Eps: eps, WeightDecay: decay,
		C1: 1 - detmath.PowInt(betas[0], t.Step+1), C2: 1 - detmath.PowInt(betas[1], t.Step+1), GradScale: 1})
}

// install copies the test binary into a folder under a plugin's name.
func install(t testing.TB, dir, name string) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, name)
	if err := os.Link(self, path); err == nil {
		return path
	}
	b, err := os.ReadFile(self)
	if err == nil {
		err = os.WriteFile(path, b, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// use installs a plugin and describes it as it is, without starting it.
func use(t testing.TB, name string) *Use {
	t.Helper()
	name, _, ring := strings.Cut(name, " by ring")
	f, err := Open(install(t, t.TempDir(), name))
	if err != nil {
		t.Fatal(err)
	}
	sha, err := f.Hash()
	if err != nil {
		t.Fatal(err)
	}
	m, err := Describe(t.Context(), f)
	if err != nil {
		t.Fatal(err)
	}
	if ring {
		m.Optimizer.Journal = false
	}
	return &Use{Found: f, Manifest: m, SHA256: sha}
}

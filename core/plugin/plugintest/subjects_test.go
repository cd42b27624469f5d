package plugintest

import (
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"

	"starling/sdk"
)

// served is the plugin that the test binary plays: the first part of its name says of which kind, the rest what it does wrong.
func served() sdk.Plugin {
	name := filepath.Base(os.Args[0])
	switch kind, _, _ := strings.Cut(name, "-"); kind {
	case "coder":
		return &coder{name: name}
	case "clock":
		return &clock{name: name}
	case "drain":
		return &drain{name: name}
	case "mover":
		return &mover{subject{name: name}, filepath.Base(filepath.Dir(os.Args[0]))}
	}
	return &subject{name: name}
}

// mover is an optimizer whose second version keeps its state otherwise. The folder in which it lies says which version it is, and how the
// second goes wrong.
type mover struct {
	subject
	version string
}

func (m *mover) Manifest() sdk.Manifest {
	x := m.subject.Manifest()
	if m.version != "first" {
		x.Version, x.Optimizer.UpgradesFrom = "2.0.0", []string{"1.0.0"}
		x.Optimizer.State[0].Name = "double"
	}
	return x
}

func (m *mover) Upgrade(u *sdk.Upgrade) error {
	for i, v := range u.Old["m"] {
		u.State[0][i] = 2 * v
	}
	switch m.version {
	case "cuts": // depends on the range that is looked at
		for i := range u.State[0] {
			u.State[0][i] += float32(i)
		}
	case "draws":
		for i := range u.State[0] {
			u.State[0][i] += rand.Float32()
		}
	case "nan":
		for i := range u.State[0] {
			u.State[0][i] = float32(math.NaN())
		}
	case "short":
		u.State[0] = u.State[0][:len(u.State[0])/2]
	case "fails":
		return errors.New("I cannot read that")
	case "panics":
		panic("what is this")
	}
	return nil
}

// coder sends a 16-bit half of each float32.
type coder struct {
	name  string
	calls int
}

func (c *coder) Manifest() sdk.Manifest { return sdk.Manifest{Name: c.name, Version: "1.0.0"} }

func (c *coder) Setup(sdk.Hypers) (sdk.Layout, error) {
	if c.name == "coder-swells" {
		return sdk.Layout{Head: os.Getpid(), Block: 1, BlockBytes: 2}, nil
	}
	return sdk.Layout{Block: 1, BlockBytes: 2}, nil
}

func (c *coder) Encode(dst []byte, x []float32) error {
	c.calls++
	for i, v := range x {
		bits := math.Float32bits(v)
		switch c.name {
		case "coder-remembers":
			bits ^= uint32(c.calls&1) << 16
		case "coder-ages":
			bits ^= uint32(min(c.calls/1000, 1)) << 16
		case "coder-draws":
			bits ^= rand.Uint32() & (1 << 16)
		case "coder-mute":
			bits = 0
		}
		dst[2*i], dst[2*i+1] = byte(bits>>16), byte(bits>>24)
	}
	if c.name == "coder-greedy" {
		dst = append(dst, 1) // of the layout's size, and no longer
		_ = dst[:len(x)*2+100][len(x)*2+99]
	}
	return nil
}

func (c *coder) Decode(dst []float32, src []byte) error {
	for i := range dst {
		dst[i] = math.Float32frombits(uint32(src[2*i])<<16 | uint32(src[2*i+1])<<24)
		if dst[i]-dst[i] != 0 {
			if c.name == "coder-fragile" {
				panic("that is no encoding")
			}
			return errors.New("not finite")
		}
	}
	return nil
}

// clock is a schedule.
type clock struct {
	name  string
	asked int
}

func (c *clock) Manifest() sdk.Manifest { return sdk.Manifest{Name: c.name, Version: "1.0.0"} }

func (c *clock) Begin(sdk.Hypers, int) error { return nil }

func (c *clock) Rate(step int) float64 {
	c.asked++
	switch c.name {
	case "clock-counts": // calls, not steps
		return float64(c.asked)
	case "clock-draws":
		return rand.Float64()
	case "clock-nan":
		return math.NaN()
	}
	return float64(step)
}

// drain is a sink.
type drain struct {
	name   string
	folder string
}

func (d *drain) Manifest() sdk.Manifest { return sdk.Manifest{Name: d.name, Version: "1.0.0"} }

func (d *drain) Open(r sdk.Run) error {
	d.folder = r.Folder
	if d.name == "drain-once" && r.Step > 0 {
		return errors.New("I have been here before")
	}
	return nil
}

func (d *drain) Write(r []sdk.Record) error {
	switch d.name {
	case "drain-fails":
		return errors.New("the disk is full")
	case "drain-mute":
		return nil
	}
	return os.WriteFile(filepath.Join(d.folder, "figures"), []byte(r[0].Kind), 0o644)
}

func (d *drain) Close() error {
	if d.name == "drain-leaks" {
		return errors.New("half of it is not on disk")
	}
	return nil
}

package cpu

import (
	"math/rand/v2"
	"strings"
	"testing"
	"unsafe"

	"starling/core/device"
	"starling/core/graph"
	"starling/core/tensor"
	"starling/sdk/vec"
)

func TestOpenRefusesWhatItCannotDo(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		want string
	}{
		{Config{Threads: -1}, "cannot be negative"},
		{Config{Ranks: -2}, "cannot be negative"},
		{Config{Kernels: "sse9"}, `unknown kernel set "sse9"`},
	} {
		if _, err := Open(c.cfg); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("Open(%+v): %v, want an error with %q", c.cfg, err, c.want)
		}
	}
}

func TestThreadsAreSharedBetweenRanks(t *testing.T) {
	cores := Cores()
	if d := open(t, Config{}); d.Threads() != cores {
		t.Errorf("%d threads on %d cores", d.Threads(), cores)
	}
	d := open(t, Config{Ranks: 2 * cores})
	if d.Threads() != 1 {
		t.Errorf("%d threads for a rank with half a core", d.Threads())
	}
	if d := open(t, Config{Threads: cores, Ranks: 2}); d.pool.spin != 0 {
		t.Error("idle threads spin although ranks share cores")
	}
}

func TestKernelSetIsTheOneInUse(t *testing.T) {
	defer use(t, vec.Active())()
	for _, set := range vec.Sets() {
		if d := open(t, Config{Kernels: set}); d.KernelSet() != set {
			t.Errorf("opened with %s, runs %s", set, d.KernelSet())
		}
	}
}

func TestArenas(t *testing.T) {
	d := open(t, Config{})
	for _, size := range []int64{0, 1, 64, 4097, hugeFrom, hugeFrom + 12345} {
		a, err := d.Alloc("test", size)
		if err != nil {
			t.Fatal(err)
		}
		mem := a.Bytes()
		if a.Size() != size || int64(len(mem)) != size {
			t.Errorf("%d bytes asked, size %d, %d bytes of memory", size, a.Size(), len(mem))
		}
		if size > 0 && uintptr(unsafe.Pointer(&mem[0]))%device.Align != 0 {
			t.Errorf("arena of %d bytes is not aligned", size)
		}
		for i, v := range mem {
			if v != 0 {
				t.Fatalf("byte %d of a new arena is %d", i, v)
			}
		}
		fill(mem, 1)
		a.Free()
	}
	if _, err := d.Alloc("work", 1<<62); err == nil || !strings.Contains(err.Error(), "arena work") {
		t.Errorf("an impossible arena: %v", err)
	}
}

func TestUnknownKernels(t *testing.T) {
	d := open(t, Config{})
	a, err := d.Alloc("test", 64)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Free()
	i32 := device.Tensor{Type: graph.Type{DType: tensor.I32, Shape: tensor.Shape{4}}, Arena: a}
	f32 := device.Tensor{Type: graph.Type{DType: tensor.F32, Shape: tensor.Shape{4}}, Arena: a}
	for _, c := range []struct {
		call device.Call
		want string
	}{
		{device.Call{Op: &graph.Op{Name: "hologram"}, In: []device.Tensor{f32}}, "no kernel for hologram(f32): the device has no kernel for that operation"},
		{device.Call{Op: graph.OpAdd, In: []device.Tensor{f32, i32}}, "no kernel for add(f32 i32): the device takes (f32 f32)"},
		{device.Call{Op: graph.OpLinear, In: []device.Tensor{f32}}, "takes (f32 f32) or (f32 f32 f32)"},
		{device.Call{Op: graph.OpScale, In: []device.Tensor{f32}, Out: []device.Tensor{f32}}, "attributes"},
		{device.Call{Op: graph.OpAdd, In: []device.Tensor{f32, f32}, Out: []device.Tensor{f32}, Accum: true}, "cannot accumulate"},
	} {
		if _, err := d.Bind(c.call); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want an error with %q", err, c.want)
		}
	}
}

// Running bound kernels allocates nothing, on one thread or several.
func TestRunningAllocatesNothing(t *testing.T) {
	for _, threads := range []int{1, 2} {
		d := open(t, Config{Threads: threads})
		for _, s := range samples {
			b := s.lay(t, d)
			run, err := d.Bind(b.call)
			if err != nil {
				t.Fatal(err)
			}
			if n := min(testing.AllocsPerRun(3, run), testing.AllocsPerRun(3, run)); n != 0 {
				t.Errorf("%s on %d threads: %v allocations", s.name(), threads, n)
			}
		}
	}
}

func TestScratchIsCounted(t *testing.T) {
	s := sample{op: "linear", in: []operand{fs(64, 300), fs(300, 300)}}
	one, two := open(t, Config{Threads: 1}), open(t, Config{Threads: 2})
	for _, d := range []*Device{one, two} {
		if n := d.ScratchBytes(); n != 0 {
			t.Errorf("%d bytes of scratch memory before any kernel", n)
		}
		if _, err := d.Bind(s.lay(t, d).call); err != nil {
			t.Fatal(err)
		}
	}
	if a, b := one.ScratchBytes(), two.ScratchBytes(); a < 300*300*4 || b != 2*a {
		t.Errorf("scratch memory: %d bytes with one thread, %d with two", a, b)
	}
}

// The high-water mark of an arena is the end of the last result that a kernel wrote there, not what was bound or read.
func TestHighWater(t *testing.T) {
	d := open(t, Config{TrackWrites: true})
	a, err := d.Alloc("work", 4096)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Free()
	at := func(offset int64) device.Tensor {
		return device.Tensor{Type: graph.Type{DType: tensor.F32, Shape: tensor.Shape{16}}, Arena: a, Offset: offset}
	}
	near, err := d.Bind(device.Call{Op: graph.OpNeg, In: []device.Tensor{at(2048)}, Out: []device.Tensor{at(128)}})
	if err != nil {
		t.Fatal(err)
	}
	far, err := d.Bind(device.Call{Op: graph.OpNeg, In: []device.Tensor{at(0)}, Out: []device.Tensor{at(1024)}})
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		run  func()
		want int64
	}{{func() {}, 0}, {near, 192}, {far, 1088}, {near, 1088}} {
		step.run()
		if got := HighWater(a); got != step.want {
			t.Errorf("high-water mark %d, want %d", got, step.want)
		}
	}
}

// A walk visits every element once, with the offsets that the strides say.
func TestWalk(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 300 {
		shape := make(tensor.Shape, r.IntN(5))
		from := make(tensor.Shape, len(shape))
		for i := range shape {
			shape[i] = 1 + r.IntN(4)
			from[i] = shape[i]
			if r.IntN(3) == 0 {
				from[i] = 1
			}
		}
		own, read := shape.Strides(), stretch(from, shape)
		w := newWalk(shape, own, read)
		c := w.seek(0)
		for i := range shape.Numel() {
			want := 0
			for k, s := range own {
				want += i / s % shape[k] * read[k]
			}
			if got := w.element(i); got[0] != i || got[1] != want {
				t.Fatalf("%v read as %v: element %d at %v, want [%d %d]", from, shape, i, got, i, want)
			}
			if k := i % w.inner; c.off[0]+k*w.step[0] != i || c.off[1]+k*w.step[1] != want {
				t.Fatalf("%v read as %v: the cursor is lost at element %d", from, shape, i)
			}
			if i%w.inner == w.inner-1 {
				c.next()
			}
		}
	}
}

// Memory that somebody else has allocated counts as the device's while an arena is made of it, and goes back once.
func TestAdopt(t *testing.T) {
	d, err := Open(Config{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	own, err := d.Alloc("own", 4096)
	if err != nil {
		t.Fatal(err)
	}
	defer own.Free()
	freed := 0
	a, err := d.Adopt("adopted", own.Bytes()[:1024], func() { freed++ })
	if err != nil {
		t.Fatal(err)
	}
	if held, _ := d.Held(); a.Size() != 1024 || &a.Bytes()[0] != &own.Bytes()[0] || held != 4096+1024 {
		t.Errorf("an arena of %d bytes, %d held", a.Size(), held)
	}
	a.Free()
	if held, _ := d.Held(); freed != 1 || held != 4096 {
		t.Errorf("freed %d times, %d bytes held", freed, held)
	}
	if _, err := d.Adopt("crooked", own.Bytes()[4:], func() {}); err == nil || !strings.Contains(err.Error(), "crooked") {
		t.Errorf("memory that is not aligned: %v", err)
	}
}

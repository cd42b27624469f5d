//go:build unix

package plugin

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"starling/sdk"
	"starling/sdk/shm"
	"starling/sdk/vec"
)

// world is the memory of a rank with a few parameters, and the same again for the expected result.
type world struct {
	cfg    UpdaterConfig
	arenas [3][]float32 // parameters, state, gradients
	want   [3][]float32
	sizes  []int
	shapes [][]int
	names  []string
	at     []int // of each parameter, in elements
	state  [][2]int
}

func newWorld(t testing.TB, u *Use) *world {
	t.Helper()
	w := &world{names: []string{"a.bias", "b.weight", "c.empty", "d.weight"}, shapes: [][]int{{5}, {257, 311}, {0, 4}, {64, 32}}}
	n := 0
	for _, s := range w.shapes {
		size := 1
		for _, d := range s {
			size *= d
		}
		w.sizes, w.at = append(w.sizes, size), append(w.at, n)
		n += (size + 15) / 16 * 16
	}
	random := rand.New(rand.NewPCG(1, 2))
	var mem []Memory
	for i, elements := range []int{n, 2 * n, n} {
		f, err := shm.Create("test", int64(4*elements))
		if err != nil {
			t.Fatal(err)
		}
		m, err := shm.Map(f.Fd(), 0, int64(4*elements), true)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { m.Unmap(); f.Close() })
		mem = append(mem, Memory{m.Bytes, f})
		w.arenas[i] = Floats(m.Bytes)
		if i != 1 {
			for k := range w.arenas[i] {
				w.arenas[i][k] = random.Float32() - 0.5
			}
		}
		w.want[i] = append([]float32(nil), w.arenas[i]...)
	}
	w.cfg = UpdaterConfig{Use: u, Memories: mem, Threads: 2, Timeout: 20 * time.Second,
		Hypers: map[string]any{"betas": []float64{0.9, 0.95}, "eps": 1e-8, "weight_decay": 0.1, "count": int64(3), "mode": "a", "on": true}}
	for i, name := range w.names {
		w.state = append(w.state, [2]int{w.at[i], n + w.at[i]})
		place := func(mem, at int) Place { return Place{mem, int64(4 * at), w.sizes[i]} }
		w.cfg.Ranges = append(w.cfg.Ranges, Range{Name: name, Shape: w.shapes[i], Group: i % 2, To: w.sizes[i],
			Value: place(0, w.at[i]), Gradient: place(2, w.at[i]), State: []Place{place(1, w.state[i][0]), place(1, w.state[i][1])}})
	}
	return w
}

func (w *world) updater(t testing.TB) *Updater {
	t.Helper()
	u, err := NewUpdater(w.cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(u.Close)
	if said := ScratchBytes(w.cfg); said != u.ScratchBytes() {
		t.Errorf("the plan says %d bytes of scratch memory, it is %d", said, u.ScratchBytes())
	}
	return u
}

var testRates = []float64{3e-3, 1e-3}

// expect makes the same step in this process, with the gradient scaled in the kernel as the built-in optimizer does.
func (w *world) expect(step int, scale float64) {
	for i := range w.names {
		cut := func(a int, at int) []float32 { return w.want[a][at : at+w.sizes[i]] }
		decay := 0.1
		if len(w.shapes[i]) < 2 {
			decay = 0
		}
		b1, b2 := 1.0, 1.0
		for range step + 1 {
			b1, b2 = b1*0.9, b2*0.95
		}
		vec.AdamW(cut(0, w.at[i]), cut(2, w.at[i]), cut(1, w.state[i][0]), cut(1, w.state[i][1]), vec.AdamWParams{LR: testRates[i%2],
			Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: decay, C1: 1 - b1, C2: 1 - b2, GradScale: scale})
	}
}

func (w *world) compare(t *testing.T) {
	t.Helper()
	for a := range w.arenas {
		for k := range w.arenas[a] {
			if w.arenas[a][k] != w.want[a][k] {
				t.Fatalf("memory %d, element %d: %v, want %v", a, k, w.arenas[a][k], w.want[a][k])
			}
		}
	}
}

func scaleOf(step int) float64 { return 1 / float64(step+1) }

func TestSameBitsAsInProcess(t *testing.T) {
	defer goleak.VerifyNone(t)
	for _, name := range []string{"adamw", "adamw by ring", "whole"} {
		w := newWorld(t, use(t, name))
		u := w.updater(t)
		for step := range 5 {
			if err := u.Step(t.Context(), step, scaleOf(step), testRates); err != nil {
				t.Fatal(err)
			}
			w.expect(step, scaleOf(step))
			w.compare(t)
		}
		if u.Restarts != 0 {
			t.Errorf("%s was started again %d times", name, u.Restarts)
		}
		u.Close()
	}
}

// A plugin that is killed between steps or in the middle of one changes nothing of the result.
func TestKilledAtRandom(t *testing.T) {
	t.Run("journal", func(t *testing.T) { killedAtRandom(t, "slow") })
	t.Run("ring", func(t *testing.T) { killedAtRandom(t, "slow by ring") })
}

func killedAtRandom(t *testing.T, name string) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	w := newWorld(t, use(t, name))
	var log []string
	w.cfg.Log = func(_, line string) { log = append(log, line) }
	u := w.updater(t)
	if err := u.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	kills := 0
	for step := range 24 {
		pid := u.PID()
		killed := make(chan struct{})
		switch {
		case step%3 == 0: // between steps
			_ = syscall.Kill(pid, syscall.SIGKILL)
			kills++
			close(killed)
		case step%6 != 1:
			delay := time.Duration(random.IntN(1500)) * time.Microsecond
			kills++
			go func() {
				time.Sleep(delay)
				_ = syscall.Kill(pid, syscall.SIGKILL)
				close(killed)
			}()
		default:
			close(killed)
		}
		if err := u.Step(t.Context(), step, scaleOf(step), testRates); err != nil {
			t.Fatal(err)
		}
		<-killed
		w.expect(step, scaleOf(step))
		w.compare(t)
	}
	if kills < 20 || u.Restarts < 12 {
		t.Errorf("%d kills, %d restarts: too few to mean anything", kills, u.Restarts)
	}
	if !strings.Contains(strings.Join(log, "\n"), "started again") {
		t.Error("the log does not tell of restarts")
	}
}

// What goes wrong once is repaired by running the rest of the step again; the log says what it was.
func TestFailsOnce(t *testing.T) {
	for name, want := range map[string]string{
		"panic":    "Step for b.weight[16384:%d] panicked: runtime error: index out of range",
		"fail":     "no more ideas",
		"exit":     "exit status 4",
		"hang":     "did not finish b.weight[16384:%d] within",
		"nan":      "computed NaN for element 16391 of parameter b.weight",
		"infstate": "computed +Inf for element 16387 of state b.weight/v",
		"stray":    "touched memory that is not its own",
	} {
		for _, how := range []string{"", " by ring"} {
			t.Run(name+how, func(t *testing.T) { failsOnce(t, name, how, want) })
		}
	}
}

func failsOnce(t *testing.T, name, how, want string) {
	want = strings.Replace(want, "%d", strconv.Itoa(16384+taskElements), 1)
	w := newWorld(t, use(t, name+how))
	w.cfg.Threads = 1 // one task at a time, so that one process is the first to fail
	if name == "hang" {
		w.cfg.Timeout = 300 * time.Millisecond
	}
	var log []string
	w.cfg.Log = func(_, line string) { log = append(log, line) }
	u := w.updater(t)
	for step := range 4 {
		if err := u.Step(t.Context(), step, 1, testRates); err != nil {
			t.Fatal(err)
		}
		w.expect(step, 1)
		w.compare(t)
	}
	if u.Restarts != 1 {
		t.Errorf("started again %d times, want 1", u.Restarts)
	}
	if all := strings.Join(log, "\n"); !strings.Contains(all, want) {
		t.Errorf("%q is missing from the log:\n%s", want, all)
	}
}

// Past the limit the error names what happened and quotes the plugin; what has happened of the step is known, and a mended plugin goes on with the rest.
func TestFailsAlways(t *testing.T) {
	for _, name := range []string{"nan-always", "exit-always"} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, use(t, name))
			w.cfg.Retries = 2
			u := w.updater(t)
			for step := range 2 {
				if err := u.Step(t.Context(), step, 1, testRates); err != nil {
					t.Fatal(err)
				}
				w.expect(step, 1)
			}
			err := u.Step(t.Context(), 2, 1, testRates)
			var gaveUp *GaveUp
			if !errors.As(err, &gaveUp) || gaveUp.Tries != 3 {
				t.Fatalf("%v, want a GaveUp after 3 tries", err)
			}
			if name == "exit-always" && !strings.Contains(err.Error(), "leaving early") {
				t.Errorf("the error does not quote the plugin's last output: %v", err)
			}
			partly, happened := u.Pending()
			if !partly || len(happened["b.weight"]) == 0 {
				t.Fatalf("pending: %v %v", partly, happened)
			}
			w.expect(2, 1)
			// Each element is as before or as after the step, and Pending tells which.
			done := make([]bool, w.sizes[1])
			for _, r := range happened["b.weight"] {
				for i := r[0]; i < r[1]; i++ {
					done[i] = true
				}
			}
			for i, d := range done {
				if at := w.at[1] + i; d != (w.arenas[0][at] == w.want[0][at]) {
					t.Fatalf("element %d: happened is %v, value %v, after the step %v", i, d, w.arenas[0][at], w.want[0][at])
				}
			}
			u.cfg.Use = use(t, "adamw")
			if err := u.Step(t.Context(), 2, 1, testRates); err != nil {
				t.Fatal(err)
			}
			w.compare(t)
		})
	}
}

func TestChangedProgramIsNotStarted(t *testing.T) {
	x := use(t, "adamw")
	x.SHA256 = strings.Repeat("0", 64)
	u := newWorld(t, x).updater(t)
	if err := u.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "was changed since the run began") {
		t.Errorf("%v", err)
	}
}

func TestSetupErrors(t *testing.T) {
	u := newWorld(t, use(t, "unwilling")).updater(t)
	if err := u.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "it is Sunday") {
		t.Errorf("%v", err)
	}
}

func TestCancelledStepLeavesNoProcess(t *testing.T) {
	w := newWorld(t, use(t, "hang-always"))
	u := w.updater(t)
	for step := range 2 {
		if err := u.Step(t.Context(), step, 1, testRates); err != nil {
			t.Fatal(err)
		}
	}
	pid := u.PID()
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(100*time.Millisecond, func() { cancel(errors.New("enough")) })
	if err := u.Step(ctx, 2, 1, testRates); err == nil || err.Error() != "enough" {
		t.Errorf("%v", err)
	}
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("process %d is still there: %v", pid, err)
	}
}

// The plugin sees none of the host's environment but what it needs, and the memory of parameters, gradients and state is read-only to it.
func TestWhatAPluginSees(t *testing.T) {
	t.Setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
	t.Run("journal", func(t *testing.T) { whatAPluginSees(t, "adamw", 1) })
	t.Run("ring", func(t *testing.T) { whatAPluginSees(t, "adamw by ring", 3) })
}

// whatAPluginSees counts on the gradients, and without a journal on everything, being read-only.
func whatAPluginSees(t *testing.T, name string, protected int) {
	u := newWorld(t, use(t, name)).updater(t)
	if err := u.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	proc := filepath.Join("/proc", u.process.child.ID())
	env, err := os.ReadFile(filepath.Join(proc, "environ"))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(env), "hunter2") || !strings.Contains(string(env), sdk.CookieKey) {
		t.Errorf("environment: %q", env)
	}
	maps, err := os.ReadFile(filepath.Join(proc, "maps"))
	if err != nil {
		t.Fatal(err)
	}
	shared, readOnly := 0, 0
	for line := range strings.Lines(string(maps)) {
		if strings.Contains(line, "memfd:starling-test") {
			shared++
			if strings.Contains(line, " r--s ") {
				readOnly++
			}
		}
	}
	if shared != 3 || readOnly != protected {
		t.Errorf("%d memories are mapped, %d of them read-only, want 3 and %d:\n%s", shared, readOnly, protected, maps)
	}
	for fd := FirstFile + 3 - protected; fd < FirstFile+3; fd++ {
		info, err := os.ReadFile(filepath.Join(proc, "fdinfo", strconv.Itoa(fd)))
		if err != nil {
			t.Fatal(err)
		}
		_, flags, _ := strings.Cut(string(info), "flags:\t")
		flags, _, _ = strings.Cut(flags, "\n")
		if bits, err := strconv.ParseInt(flags, 8, 64); err != nil || bits&syscall.O_ACCMODE != syscall.O_RDONLY {
			t.Errorf("descriptor %d can be written (flags %s, %v)", fd, flags, err)
		}
	}
}

// A plugin that hands over another number of elements than it was given is caught before anything is stored.
func TestWrongSize(t *testing.T) {
	w := newWorld(t, use(t, "adamw by ring"))
	u := w.updater(t)
	u.ring.Reset(0)
	u.ring.Ready(0, 4) // of five
	var stopped atomic.Bool
	fails(t, u.take(0, &stopped), "it handed over 4 elements for a.bias[0:5], which has 5")
	w.compare(t)
	if u.happened(0) {
		t.Error("the task counts as happened")
	}
}

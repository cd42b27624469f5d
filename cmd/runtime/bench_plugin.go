package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"starling/core/plugin"
	"starling/core/tensor/detmath"
	"starling/sdk/shm"
	"starling/sdk/vec"
)

// pluginFigures is what bench plugin measures. Times are medians of rounds in which the sides take turns.
type pluginFigures struct {
	Elements int `json:"elements"`
	Tensors  int `json:"tensors"`
	Threads  int `json:"threads"`
	// IdleMS is a step of a plugin that does nothing; ControlMS what is left of it without the copies that its tasks take, here
	// and there: the cost of control.
	IdleMS    float64 `json:"idle_ms"`
	CopiesMS  float64 `json:"copies_ms"`
	ControlMS float64 `json:"control_ms"`
	// BuiltInMS and PluginMS are AdamW's update in the program and in a plugin.
	BuiltInMS float64 `json:"adamw_built_in_ms"`
	PluginMS  float64 `json:"adamw_plugin_ms"`
	// Ratio is the plugin's time over the built-in's, of the update alone.
	Ratio float64 `json:"ratio"`
	// StartMS is the time from nothing to a plugin that is set up.
	StartMS float64 `json:"start_ms"`
	// Models are whole training steps.
	Models []pluginSteps `json:"models"`
}

func newBenchPlugin(started time.Time) *cobra.Command {
	var millions float64
	var tensors, rounds, threads, turns int
	var models []string
	c := &cobra.Command{
		Use:   "plugin",
		Short: "Measure what an optimizer costs more as a plugin",
		Long: `Measure the update of AdamW in this program and in a plugin, by turns, on parameters of the given total size; a plugin that does
nothing, which leaves the cost of control; and whole training steps of recipes that use AdamW, with it built in and as a plugin, by turns.`,
		Args: cobra.NoArgs,
		RunE: stoppable(func(c *cobra.Command, _ []string) error {
			if !(millions > 0) || tensors < 1 || rounds < 1 || turns < 1 {
				return &exitError{2, errors.New("--elements must be above 0, --tensors, --rounds and --turns at least 1")}
			}
			if threads == 0 {
				threads = usableThreads()
			}
			f, err := benchPlugin(c.Context(), int(millions*1e6), tensors, threads, rounds)
			if err != nil {
				return err
			}
			for _, m := range models {
				x, err := benchPluginSteps(c.Context(), m, turns, started)
				if err != nil {
					return fmt.Errorf("--models %s: %w", m, err)
				}
				f.Models = append(f.Models, *x)
			}
			if asJSON, _ := c.Flags().GetBool("json"); asJSON {
				b, err := json.MarshalIndent(f, "", "  ")
				if err != nil {
					return err
				}
				_, err = fmt.Fprintln(c.OutOrStdout(), string(b))
				return err
			}
			ms := func(v float64) string { return fmt.Sprintf("%.3f ms", v) }
			rows := [][2]string{
				{"start and setup", ms(f.StartMS)},
				{"a plugin that does nothing", ms(f.IdleMS)},
				{"  its copies alone", ms(f.CopiesMS)},
				{"  control", ms(f.ControlMS)},
				{"AdamW, built in", ms(f.BuiltInMS)},
				{"AdamW, plugin", fmt.Sprintf("%s, %.2f times", ms(f.PluginMS), f.Ratio)},
			}
			for _, m := range f.Models {
				rows = append(rows, [2]string{m.Recipe + ", a step", fmt.Sprintf("%.2f ms built in, %.2f ms as a plugin: %.3f times (medians of %d steps)", m.BuiltInMS, m.PluginMS, m.Ratio, m.Steps)})
			}
			_, err = io.WriteString(c.OutOrStdout(), fmt.Sprintf("%s elements in %d tensors, %d threads, kernels %s\n", count(int64(f.Elements)), f.Tensors, f.Threads, vec.Active())+table(rows))
			return err
		}),
	}
	c.Flags().Float64Var(&millions, "elements", 10, "parameters in `millions`")
	c.Flags().IntVar(&tensors, "tensors", 50, "into how many tensors they are cut")
	c.Flags().IntVar(&rounds, "rounds", 9, "measurements of each side; the median counts")
	c.Flags().StringSliceVar(&models, "models", []string{"quickstart", "gpt2_124m"}, "the `models` whose steps are timed: quickstart, gpt2_124m or paths of recipes that use optim.adamw; empty for none")
	c.Flags().IntVar(&turns, "turns", 5, "runs of each side of a model, by turns")
	c.Flags().IntVar(&threads, "threads", 0, "threads of each side (default: the usable cores)")
	return c
}

// pluginBench is the memory of a rank for measurements.
type pluginBench struct {
	memories []plugin.Memory
	mem      [3][]float32
	ranges   func(state int) []plugin.Range
	free     []func()
}

func newPluginBench(elements, tensors int) (*pluginBench, error) {
	b := &pluginBench{}
	each := (elements/tensors + 15) / 16 * 16
	n := each * tensors
	for i, size := range []int{n, 2 * n, n} {
		f, err := shm.Create("bench", int64(4*size))
		if err != nil {
			return nil, err
		}
		m, err := shm.Map(f.Fd(), 0, int64(4*size), true)
		if err != nil {
			return nil, err
		}
		m.HugePages()
		b.free = append(b.free, func() { m.Unmap(); f.Close() })
		b.memories = append(b.memories, plugin.Memory{Bytes: m.Bytes, File: f})
		b.mem[i] = plugin.Floats(m.Bytes)
		for k := range b.mem[i] {
			b.mem[i][k] = rand.Float32()
		}
	}
	b.ranges = func(state int) []plugin.Range {
		var out []plugin.Range
		for i := range tensors {
			place := func(mem, at int) plugin.Place {
				return plugin.Place{Memory: mem, Offset: int64(4 * at), Elements: each}
			}
			r := plugin.Range{Name: fmt.Sprintf("p%d", i), Shape: []int{each / 16, 16}, To: each, Value: place(0, i*each), Gradient: place(2, i*each)}
			for s := range state {
				r.State = append(r.State, place(1, s*n+i*each))
			}
			out = append(out, r)
		}
		return out
	}
	return b, nil
}

func (b *pluginBench) close() {
	for _, f := range b.free {
		f()
	}
}

// reference finds this program under the name of one of its own plugins.
func reference(ctx context.Context, dir, name string) (*plugin.Use, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, name)
	if os.Link(self, path) != nil {
		if err := copyFile(path, self, 0o755); err != nil {
			return nil, err
		}
	}
	f, err := plugin.Open(path)
	if err != nil {
		return nil, err
	}
	sha, err := f.Hash()
	if err != nil {
		return nil, err
	}
	m, err := plugin.Describe(ctx, f)
	if err != nil {
		return nil, err
	}
	return &plugin.Use{Found: f, Manifest: m, SHA256: sha}, nil
}

func benchPlugin(ctx context.Context, elements, tensors, threads, rounds int) (*pluginFigures, error) {
	dir, err := os.MkdirTemp("", "starling-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	b, err := newPluginBench(elements, tensors)
	if err != nil {
		return nil, err
	}
	defer b.close()
	f := &pluginFigures{Elements: len(b.mem[0]), Tensors: tensors, Threads: threads}
	open := func(name string, state int) (*plugin.Updater, error) {
		use, err := reference(ctx, dir, name)
		if err != nil {
			return nil, err
		}
		hypers := map[string]any{}
		for _, h := range use.Manifest.Hypers {
			hypers[h.Name] = h.Default
		}
		return plugin.NewUpdater(plugin.UpdaterConfig{Use: use, Hypers: hypers, Memories: b.memories, Ranges: b.ranges(state), Threads: threads})
	}
	nothing, err := open(referencePrefix+"idle", 0)
	if err != nil {
		return nil, err
	}
	defer nothing.Close()
	adamw, err := open(referencePrefix+"adamw", 2)
	if err != nil {
		return nil, err
	}
	defer adamw.Close()
	t0 := time.Now()
	if err := nothing.Start(ctx); err != nil {
		return nil, err
	}
	f.StartMS = time.Since(t0).Seconds() * 1e3
	if err := adamw.Start(ctx); err != nil {
		return nil, err
	}
	var idles, copies, builtIn, inPlugin []float64
	timed := func(list *[]float64, warm bool, run func() error) error {
		t0 := time.Now()
		err := run()
		if !warm {
			*list = append(*list, time.Since(t0).Seconds()*1e3)
		}
		return err
	}
	for i := range rounds + 2 {
		warm := i < 2
		err := errors.Join(
			timed(&idles, warm, func() error { return nothing.Step(ctx, i, 1, []float64{1e-3}) }),
			timed(&copies, warm, func() error { b.copies(threads); return nil }),
			timed(&builtIn, warm, func() error { b.adamW(i, threads); return nil }),
			timed(&inPlugin, warm, func() error { return adamw.Step(ctx, i, 1, []float64{1e-3}) }),
		)
		if err != nil {
			return nil, err
		}
	}
	f.IdleMS, f.CopiesMS, f.BuiltInMS, f.PluginMS = middle(idles), middle(copies), middle(builtIn), middle(inPlugin)
	f.ControlMS, f.Ratio = max(0, f.IdleMS-f.CopiesMS), f.PluginMS/f.BuiltInMS
	return f, nil
}

func middle(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}

// blockElements is about as much as a plugin computes at a time.
const blockElements = 8 << 10

// blocks runs f over all elements in blocks, on threads.
func (b *pluginBench) blocks(threads int, f func(lo, hi int)) {
	const size = blockElements
	var wg sync.WaitGroup
	n := len(b.mem[0])
	for t := range threads {
		wg.Go(func() {
			for lo := t * size; lo < n; lo += threads * size {
				f(lo, min(n, lo+size))
			}
		})
	}
	wg.Wait()
}

// copies does what surrounds a task that does nothing: parameter and gradient into scratch memory, the look at the result, and the
// copy back.
func (b *pluginBench) copies(threads int) {
	room := sync.Pool{New: func() any { s := make([]float32, 2*blockElements); return &s }}
	b.blocks(threads, func(lo, hi int) {
		s := *room.Get().(*[]float32)
		slot := [][]float32{s[:hi-lo], s[blockElements:][:hi-lo]}
		at := [][]float32{b.mem[0][lo:hi], b.mem[2][lo:hi]}
		vec.CopyEach(slot, at)
		if vec.AllFinite(slot[0]) {
			vec.CopyEach(at[:1], slot[:1])
		}
		room.Put(&s)
	})
}

func (b *pluginBench) adamW(step, threads int) {
	n := len(b.mem[0])
	b.blocks(threads, func(lo, hi int) {
		vec.AdamW(b.mem[0][lo:hi], b.mem[2][lo:hi], b.mem[1][lo:hi], b.mem[1][n+lo:n+hi], vec.AdamWParams{LR: 1e-3, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, WeightDecay: 0.01,
			C1: 1 - detmath.PowInt(0.9, step+1), C2: 1 - detmath.PowInt(0.999, step+1), GradScale: 1})
	})
}

package plugintest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"starling/core/plugin"
	"starling/sdk/shm"
)

// rank is the memory of a rank: parameters, state and gradients of a made-up model.
type rank struct {
	use     *plugin.Use
	hypers  map[string]any
	names   []string
	shapes  [][]int
	sizes   []int
	values  []int // where each parameter lies, in elements
	states  [][]int
	lengths [][]int // of each piece of state

	mem      [3][]float32
	memories []plugin.Memory
	free     []func()
	random   *rand.Rand
}

// shapesFor lists shapes that an optimizer takes: small and large, with and without elements.
func shapesFor(u *plugin.Use) [][]int {
	all := [][]int{{1}, {7}, {1000}, {0}, {3, 0}, {1, 1}, {5, 3}, {257, 129}, {129, 257}, {64, 64}, {8, 3, 3, 3}, {2, 2, 2, 2, 2}}
	var out [][]int
	for _, s := range all {
		if u.Manifest.Optimizer.Takes(len(s)) {
			out = append(out, s)
		}
	}
	if len(out) == 0 {
		s := make([]int, max(1, u.Manifest.Optimizer.MinDims))
		for i := range s {
			s[i] = 3
		}
		out = append(out, s)
	}
	return out
}

const (
	memParams = iota
	memState
	memGrads
)

func newRank(use *plugin.Use, hypers map[string]any, shapes [][]int) (*rank, error) {
	r := &rank{use: use, hypers: hypers, shapes: shapes, random: rand.New(rand.NewPCG(11, 13))}
	n, state := 0, 0
	type initial struct {
		at, n int
		v     float32
	}
	var inits []initial
	for i, s := range shapes {
		size := elements(s)
		r.names = append(r.names, fmt.Sprintf("p%d.weight", i))
		r.sizes, r.values = append(r.sizes, size), append(r.values, n)
		n += padded(size)
		var at, lengths []int
		for _, slot := range use.Manifest.Optimizer.State {
			l := elements(slot.ShapeFor(s))
			at, lengths = append(at, state), append(lengths, l)
			inits = append(inits, initial{state, l, slot.Init})
			state += padded(l)
		}
		r.states, r.lengths = append(r.states, at), append(r.lengths, lengths)
	}
	for i, size := range []int{n, state, n} {
		f, err := shm.Create("rank", int64(4*size))
		if err != nil {
			r.close()
			return nil, err
		}
		m, err := shm.Map(f.Fd(), 0, int64(4*size), true)
		if err != nil {
			f.Close()
			r.close()
			return nil, err
		}
		r.free = append(r.free, func() { m.Unmap(); f.Close() })
		r.memories = append(r.memories, plugin.Memory{Bytes: m.Bytes, File: f})
		r.mem[i] = plugin.Floats(m.Bytes)
	}
	for i := range r.mem[memParams] {
		r.mem[memParams][i] = float32(r.random.NormFloat64()) * 0.1
	}
	for _, x := range inits {
		for k := range x.n {
			r.mem[memState][x.at+k] = x.v
		}
	}
	return r, nil
}

func elements(shape []int) int {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return n
}

func padded(n int) int { return (n + 15) / 16 * 16 }

func (r *rank) close() {
	for _, f := range r.free {
		f()
	}
}

// gradients draws the gradients of a step: the same in every rank of one seed, whatever was drawn before.
func (r *rank) gradients(step int) {
	random := rand.New(rand.NewPCG(uint64(step), 17))
	for i := range r.mem[memGrads] {
		r.mem[memGrads][i] = float32(random.NormFloat64())
	}
}

// ranges describes every parameter as one range, or cut at random places.
func (r *rank) ranges(cut func(n int) []int) []plugin.Range {
	var out []plugin.Range
	for i, n := range r.sizes {
		cuts := []int{0, n}
		if cut != nil {
			cuts = cut(n)
		}
		for k := 1; k < len(cuts); k++ {
			lo, hi := cuts[k-1], cuts[k]
			x := plugin.Range{Name: r.names[i], Shape: r.shapes[i], From: lo, To: hi,
				Value:    plugin.Place{Memory: memParams, Offset: int64(4 * (r.values[i] + lo)), Elements: hi - lo},
				Gradient: plugin.Place{Memory: memGrads, Offset: int64(4 * (r.values[i] + lo)), Elements: hi - lo}}
			for s, at := range r.states[i] {
				p := plugin.Place{Memory: memState, Offset: int64(4 * at), Elements: r.lengths[i][s]}
				if len(cuts) > 2 {
					p.Offset, p.Elements = p.Offset+int64(4*lo), hi-lo
				}
				x.State = append(x.State, p)
			}
			out = append(out, x)
		}
	}
	return out
}

// options of a run.
type options struct {
	threads int
	task    int
	cut     func(n int) []int
	// before is called before each step, with the plugin's process.
	before func(step int, u *plugin.Updater)
	log    plugin.Log
}

// run takes steps from one on.
func (r *rank) run(ctx context.Context, from, to int, o options) (*plugin.Updater, error) {
	u, err := plugin.NewUpdater(plugin.UpdaterConfig{Use: r.use, Hypers: r.hypers, Memories: r.memories, Ranges: r.ranges(o.cut),
		Threads: max(1, o.threads), TaskElements: o.task, Retries: 8, Log: o.log})
	if err != nil {
		return nil, err
	}
	defer u.Close()
	if err := u.Start(ctx); err != nil {
		return u, err
	}
	for step := from; step < to; step++ {
		r.gradients(step)
		if o.before != nil {
			o.before(step, u)
		}
		if err := u.Step(ctx, step, 0.5, []float64{0.01}); err != nil {
			return u, err
		}
	}
	return u, nil
}

// difference is what two ranks differ in, in contrast to a failure of one of them.
type difference struct{ error }

func different(format string, args ...any) error { return &difference{fmt.Errorf(format, args...)} }

// means adds what a difference means to it. Other errors stay as they are.
func means(err error, format string, args ...any) error {
	var d *difference
	if !errors.As(err, &d) {
		return err
	}
	return fmt.Errorf(format, append(args, err)...)
}

// differs names the first place at which two ranks differ.
func (r *rank) differs(o *rank) error {
	for i, n := range r.sizes {
		a, b := r.mem[memParams][r.values[i]:][:n], o.mem[memParams][o.values[i]:][:n]
		for k := range a {
			if a[k] != b[k] {
				return different("parameter of shape %v, element %d: %v and %v", r.shapes[i], k, a[k], b[k])
			}
		}
		for s, at := range r.states[i] {
			a, b := r.mem[memState][at:][:r.lengths[i][s]], o.mem[memState][o.states[i][s]:][:r.lengths[i][s]]
			for k := range a {
				if a[k] != b[k] {
					return different("state %s of a parameter of shape %v, element %d: %v and %v", r.use.Manifest.Optimizer.State[s].Name, r.shapes[i], k, a[k], b[k])
				}
			}
		}
	}
	return nil
}

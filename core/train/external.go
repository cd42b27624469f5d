package train

import (
	"context"
	"fmt"
	"os"
	"time"

	"starling/core/device"
	"starling/core/graph"
	"starling/core/plan"
	"starling/core/plugin"
	"starling/sdk"
)

// sharer is a device whose memory other processes can map.
type sharer interface {
	AllocShared(name string, bytes int64) (device.Arena, *os.File, error)
}

// externals runs the optimizers that live in plugins. They renew what this rank owns of their parameters before the update
// segment renews the others.
type externals struct {
	names    []string
	updaters []*plugin.Updater
	rates    []float64 // of each group
	ranges   [][]plugin.Range
	finished int // how many updaters have finished the step
}

// usesPlugins reports whether the plan leaves some parameters to plugins.
func usesPlugins(p *plan.Plan) bool {
	for i := range p.Params {
		if p.Params[i].External() {
			return true
		}
	}
	return false
}

// alloc makes an arena, in memory that plugins can map where they have to.
func (e *engine) alloc(name string, bytes int64, shared bool) (device.Arena, error) {
	if !shared {
		return e.dev.Alloc(name, bytes)
	}
	s, ok := e.dev.(sharer)
	if !ok {
		return nil, fmt.Errorf("optimizer plugins need memory that two processes share, which device %s does not have", e.dev.Name())
	}
	a, f, err := s.AllocShared(name, bytes)
	if err != nil {
		return nil, err
	}
	e.files[a] = f
	return a, nil
}

// adopter is a device that computes in memory which somebody else has allocated.
type adopter interface {
	Adopt(name string, mem []byte, free func()) (device.Arena, error)
}

// allocSummed makes an arena of vectors that are summed over the ranks: where plugins need not map it, in memory that the ranks of
// this host have mapped if there is such, so that sums are added in place.
func (e *engine) allocSummed(name string, bytes int64, shared bool) (device.Arena, error) {
	d, ok := e.dev.(adopter)
	if shared || !ok || e.env.Group == nil || bytes == 0 {
		return e.alloc(name, bytes, shared)
	}
	m, err := e.env.Group.Allocate(int(bytes))
	if err != nil {
		e.env.Observe(Event{Kind: EventNote, Text: fmt.Sprintf("%s lie in this rank's own memory and are copied to be summed: %v", name, err)})
	}
	if m == nil {
		return e.alloc(name, bytes, false)
	}
	a, err := d.Adopt(name, m.Bytes(), m.Free)
	if err != nil {
		m.Free()
	}
	return a, err
}

// newExternals describes the plan's memory to the plugins. It starts nothing. What has happened already, by parameter, is
// left out.
func newExternals(e *engine, happened map[string][][2]int) (*externals, error) {
	x := &externals{rates: make([]float64, e.plan.Groups)}
	var memories []plugin.Memory
	index := map[device.Arena]int{}
	mem := e.memory(0)
	for _, a := range mem.Arenas {
		if f := e.files[a]; a != nil && f != nil {
			index[a] = len(memories)
			memories = append(memories, plugin.Memory{Bytes: a.Bytes(), File: f})
		}
	}
	place := func(o device.Operand) plugin.Place {
		return plugin.Place{Memory: index[mem.Arenas[o.Space]], Offset: o.Offset, Elements: o.Shape.Numel()}
	}
	order, ranges := e.spec.pluginRanges(e.plan, place, happened)
	for _, o := range order {
		name := o.Use.Name
		u, err := plugin.NewUpdater(plugin.UpdaterConfig{Use: o.Use, Hypers: o.Hypers, Memories: memories, Ranges: ranges[o],
			Threads: e.env.Threads, Timeout: e.spec.pluginTimeout(), Log: e.pluginLog(name)})
		if err != nil {
			x.close()
			return nil, fmt.Errorf("optimizer plugin %s: %w", name, err)
		}
		x.names, x.updaters, x.ranges = append(x.names, name), append(x.updaters, u), append(x.ranges, ranges[o])
	}
	return x, nil
}

// pluginRanges lists the plugins that renew parameters on the plan's rank, in the order of their first, and what each of them
// renews. What has happened already, by parameter, is left out.
func (s *Spec) pluginRanges(p *plan.Plan, place func(device.Operand) plugin.Place, happened map[string][][2]int) (order []*plugin.Optimizer, ranges map[*plugin.Optimizer][]plugin.Range) {
	ranges = map[*plugin.Optimizer][]plugin.Range{}
	for i := range p.Params {
		q := &p.Params[i]
		if !q.External() || q.Owned.Len() == 0 {
			continue
		}
		o, ok := s.Optimizer.Update(q.ParamAttrs).External.(*plugin.Optimizer)
		if !ok {
			continue
		}
		r := plugin.Range{Name: q.Name, Shape: q.Shape.Slice(), Group: q.Group, From: q.Owned.Lo, To: q.Owned.Hi, Value: place(q.Exact), Gradient: place(q.Reduced[0])}
		for _, s := range q.Slots {
			r.State = append(r.State, place(s.Place))
		}
		left := without(r, happened[q.Name])
		if len(left) > 0 && ranges[o] == nil {
			order = append(order, o)
		}
		ranges[o] = append(ranges[o], left...)
	}
	return order, ranges
}

// PluginShare is what an optimizer plugin renews on one rank.
type PluginShare struct {
	Name, Version string
	// Whole says that it gets whole tensors.
	Whole bool
	// Tensors names the parameters of which this rank renews something, in their order, Elements counts what it renews.
	Tensors  []string
	Elements int64
	// Largest is the tensor that most scratch memory is needed for.
	Largest string
	// ScratchBytes is the memory for results that are on their way: for whole tensors one tensor with its state.
	ScratchBytes int64
}

// PluginShares tells what the plugins of a run do on the plan's rank, and what memory they take there. threads are the rank's.
func PluginShares(s *Spec, p *plan.Plan, threads int) (out []PluginShare) {
	order, ranges := s.pluginRanges(p, func(o device.Operand) plugin.Place { return plugin.Place{Elements: o.Shape.Numel()} }, nil)
	for _, o := range order {
		m := o.Use.Manifest
		x := PluginShare{Name: m.Name, Version: m.Version, Whole: m.Optimizer.Granularity == sdk.Whole}
		cfg := plugin.UpdaterConfig{Use: o.Use, Ranges: ranges[o], Threads: threads}
		x.ScratchBytes = plugin.ScratchBytes(cfg)
		most := -1
		for _, r := range ranges[o] {
			n := r.To - r.From
			x.Tensors, x.Elements = append(x.Tensors, r.Name), x.Elements+int64(n)
			for _, s := range r.State {
				n += s.Elements
			}
			if n > most {
				most, x.Largest = n, r.Name
			}
		}
		out = append(out, x)
	}
	return out
}

// pluginTimeout is how long a plugin may take for one task: a fifth of what the other ranks wait for this one, so that a plugin can
// hang in each of its four tries and the others still hear of it.
func (s *Spec) pluginTimeout() time.Duration {
	return time.Duration(s.Mesh.TimeoutSec / 5 * float64(time.Second))
}

// pluginLog takes what a plugin prints.
func (e *engine) pluginLog(name string) plugin.Log {
	return func(level, line string) {
		kind := EventNote
		if level == "warn" || level == "error" {
			kind = EventWarning
		}
		e.env.Observe(Event{Kind: kind, Text: "plugin " + name + ": " + line})
	}
}

// start starts the plugins, so that mistakes show before the first step.
func (x *externals) start(ctx context.Context) error {
	for _, u := range x.updaters {
		if err := u.Start(ctx); err != nil {
			return err
		}
	}
	return nil
}

// step renews the parameters of all plugins.
func (x *externals) step(ctx context.Context, step int, gradScale float64, hyper [][]float64) error {
	for g, row := range hyper {
		x.rates[g] = row[graph.HyperLR]
	}
	for x.finished = 0; x.finished < len(x.updaters); x.finished++ {
		if err := x.updaters[x.finished].Step(ctx, step, gradScale, x.rates); err != nil {
			return err
		}
	}
	return nil
}

// scratchBytes is the memory for results that are on their way.
func (x *externals) scratchBytes() (n int64) {
	for _, u := range x.updaters {
		n += u.ScratchBytes()
	}
	return n
}

func (x *externals) close() {
	for _, u := range x.updaters {
		u.Close()
	}
}

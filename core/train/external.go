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

// newExternals describes the plan's memory to the plugins. It starts nothing.
func newExternals(e *engine) (*externals, error) {
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
	ranges := map[*plugin.Optimizer][]plugin.Range{}
	var order []*plugin.Optimizer
	for i := range e.plan.Params {
		q := &e.plan.Params[i]
		o, ok := e.spec.Optimizer.Update(q.ParamAttrs).External.(*plugin.Optimizer)
		if !ok || !q.External() || q.Owned.Len() == 0 {
			continue
		}
		if ranges[o] == nil {
			order = append(order, o)
		}
		r := plugin.Range{Name: q.Name, Shape: q.Shape.Slice(), Group: q.Group, From: q.Owned.Lo, To: q.Owned.Hi, Value: place(q.OwnedPlace()), Gradient: place(q.Reduced[0])}
		for _, s := range q.Slots {
			r.State = append(r.State, place(s.Place))
		}
		ranges[o] = append(ranges[o], r)
	}
	for _, o := range order {
		name := o.Use.Name
		u, err := plugin.NewUpdater(plugin.UpdaterConfig{Use: o.Use, Hypers: o.Hypers, Memories: memories, Ranges: ranges[o],
			Threads: e.env.Threads, Timeout: e.spec.pluginTimeout(), Log: func(level, line string) {
				kind := EventNote
				if level == "warn" || level == "error" {
					kind = EventWarning
				}
				e.env.Observe(Event{Kind: kind, Text: "plugin " + name + ": " + line})
			}})
		if err != nil {
			x.close()
			return nil, fmt.Errorf("optimizer plugin %s: %w", name, err)
		}
		x.names, x.updaters = append(x.names, name), append(x.updaters, u)
	}
	return x, nil
}

// pluginTimeout is how long a plugin may take for one task: a third of what the other ranks wait for this one.
func (s *Spec) pluginTimeout() time.Duration {
	return time.Duration(s.Mesh.TimeoutSec / 3 * float64(time.Second))
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
	for _, u := range x.updaters {
		if err := u.Step(ctx, step, gradScale, x.rates); err != nil {
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

package train

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"starling/core/checkpoint"
	"starling/core/device"
	"starling/core/plan"
	"starling/core/plugin"
	"starling/core/tensor"
)

// upgrades compares the digest of a checkpoint with the recipe's. They may differ by the versions of optimizer plugins, if the plugins
// say that they can upgrade the state: it returns the manifests of the versions that wrote it.
func (l *loop) upgrades(st *State) (plugin.Versions, error) {
	if st.Digest == l.state.Digest {
		return nil, nil
	}
	changed := st.Plugins.Changed(l.state.Plugins)
	other := fmt.Errorf("the checkpoint is of another recipe or other parameters (digest %.12s, now %.12s); "+
		"only placement (ranks, threads, buckets) may differ. Give the run's own --set values, or start a new run", st.Digest, l.state.Digest)
	if len(changed) == 0 || l.env.DigestAs == nil {
		return nil, other
	}
	switch as, err := l.env.DigestAs(st.Plugins); {
	case err != nil:
		return nil, err
	case as != st.Digest:
		return nil, fmt.Errorf("%w\n    plugins have changed as well (%s), but that is not all: a hyper-parameter may have another default now", other, strings.Join(changed, ", "))
	}
	if err := st.Plugins.Upgradable(l.state.Plugins); err != nil {
		return nil, err
	}
	if st.Unfinished != nil {
		return nil, fmt.Errorf("the checkpoint lies in the middle of a step, which plugins of the same versions must finish first (%s since)", strings.Join(changed, ", "))
	}
	out := plugin.Versions{}
	for name, m := range st.Plugins {
		if now, ok := l.state.Plugins[name]; ok && now.Version != m.Version {
			out[name] = m
		}
	}
	if l.env.Rank == 0 {
		l.env.Observe(Event{Kind: EventNote, Step: st.Step, Text: "the optimizer's state is upgraded: " + strings.Join(changed, ", ")})
	}
	return out, nil
}

// pluginOf is the plugin that renews a parameter, if it is one of those given.
func (e *engine) pluginOf(q *plan.Param, among plugin.Versions) (*plugin.Optimizer, bool) {
	if len(among) == 0 || !q.Optimised() {
		return nil, false
	}
	o, ok := e.spec.Optimizer.Update(q.ParamAttrs).External.(*plugin.Optimizer)
	if ok {
		_, ok = among[o.Use.Name]
	}
	return o, ok
}

// upgradeState lets plugins turn the state of earlier versions of theirs into this rank's part of their own.
func (e *engine) upgradeState(ctx context.Context, c *checkpoint.Checkpoint, upgraded plugin.Versions, taken int) (err error) {
	running := map[*plugin.Optimizer]*plugin.Upgrader{}
	defer func() {
		for _, u := range running {
			u.Close()
		}
	}()
	for i := range e.plan.Params {
		q := &e.plan.Params[i]
		o, ok := e.pluginOf(q, upgraded)
		if !ok || q.Owned.Len() == 0 {
			continue
		}
		u := running[o]
		if u == nil {
			if u, err = plugin.NewUpgrader(ctx, o, upgraded[o.Use.Name], e.env.Threads, e.spec.pluginTimeout(), e.pluginLog(o.Use.Name)); err != nil {
				return e.spec.place("optimizer", err)
			}
			running[o] = u
		}
		param := make([]float32, q.Owned.Len())
		if err := c.ReadRange(q.Name, int64(q.Owned.Lo), tensor.Bytes(param)); err != nil {
			return err
		}
		var state [][]float32
		for _, s := range q.Slots {
			state = append(state, device.View[float32](e.mem, s.Place))
		}
		stored := func(slot string, shape []int, offset, n int) ([]float32, error) {
			key := q.Name + "/" + slot
			if err := fits(c, key, checkpoint.F32, shape); err != nil {
				return nil, errors.Join(errors.New("the checkpoint does not hold what that version keeps"), err)
			}
			v := make([]float32, n)
			return v, c.ReadRange(key, int64(offset), tensor.Bytes(v))
		}
		r := plugin.Range{Name: q.Name, Shape: q.Whole.Shape, Group: q.Group, From: q.Owned.Lo, To: q.Owned.Hi}
		if err := u.Convert(ctx, r, taken, param, state, stored); err != nil {
			return e.spec.place("optimizer", err)
		}
	}
	return nil
}

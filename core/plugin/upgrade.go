package plugin

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"starling/core/optim"
	"starling/sdk"
	pb "starling/sdk/proto/v1"
	"starling/sdk/vec"
)

// Versions are the manifests, by name, of the optimizer plugins that wrote a run's state.
type Versions map[string]sdk.Manifest

// UnmarshalJSON gives defaults the types that JSON loses.
func (v *Versions) UnmarshalJSON(b []byte) error {
	var m map[string]sdk.Manifest
	if err := json.Unmarshal(b, &m); err != nil {
		return err
	}
	for name := range m {
		m[name] = restored(m[name])
	}
	*v = m
	return nil
}

// VersionsOf lists the plugins of an optimizer; nil if there are none.
func VersionsOf(o optim.Optimizer) Versions {
	var out Versions
	each(o, func(p *Optimizer) *Optimizer {
		if out == nil {
			out = Versions{}
		}
		out[p.Use.Name] = p.Use.Manifest
		return p
	})
	return out
}

// each replaces the plugins of an optimizer.
func each(o optim.Optimizer, f func(*Optimizer) *Optimizer) optim.Optimizer {
	switch o := o.(type) {
	case *Optimizer:
		return f(o)
	case optim.Mix:
		o.Choices = slices.Clone(o.Choices)
		for i := range o.Choices {
			o.Choices[i].Optimizer = each(o.Choices[i].Optimizer, f)
		}
		o.Rest = each(o.Rest, f)
		return o
	}
	return o
}

// As is the optimizer that the same recipe gives with the plugins of other versions, for its canonical form alone. Hyper-parameters that the
// version does not have are left out where they have their default; those that only it has have its default.
func As(o optim.Optimizer, was Versions) optim.Optimizer {
	return each(o, func(p *Optimizer) *Optimizer {
		old, ok := was[p.Use.Name]
		if !ok || old.Version == p.Use.Manifest.Version {
			return p
		}
		has := func(m sdk.Manifest, name string) bool {
			return slices.ContainsFunc(m.Hypers, func(h sdk.Hyper) bool { return h.Name == name })
		}
		q, use := *p, *p.Use
		q.Use, use.Manifest = &use, old
		q.Hypers = maps.Clone(p.Hypers)
		for _, h := range p.Use.Manifest.Hypers {
			if !has(old, h.Name) && fmt.Sprint(p.Hypers[h.Name]) == fmt.Sprint(h.Default) {
				delete(q.Hypers, h.Name)
			}
		}
		for _, h := range old.Hypers {
			if !has(p.Use.Manifest, h.Name) {
				q.Hypers[h.Name] = h.Default
			}
		}
		return &q
	})
}

// Changed lists the plugins that are of another version than was: "lion 1.0.0 to 2.0.0".
func (was Versions) Changed(now Versions) (out []string) {
	for _, name := range slices.Sorted(maps.Keys(now)) {
		if old, ok := was[name]; ok && old.Version != now[name].Version {
			out = append(out, fmt.Sprintf("%s %s to %s", name, old.Version, now[name].Version))
		}
	}
	return out
}

// Upgradable reports a plugin that is of another version than was and does not say that it can upgrade that version's state.
func (was Versions) Upgradable(now Versions) error {
	for _, name := range slices.Sorted(maps.Keys(now)) {
		m := now[name]
		old, ok := was[name]
		if !ok || old.Version == m.Version || m.Optimizer == nil || slices.Contains(m.Optimizer.UpgradesFrom, old.Version) {
			continue
		}
		can := "it says that it upgrades the state of no other version"
		if from := m.Optimizer.UpgradesFrom; len(from) > 0 {
			can = "it upgrades the state of " + strings.Join(from, ", ") + " only"
		}
		return fmt.Errorf("plugin %s is version %s, and the state is of version %s: %s. Go on with version %s, or start a new run", name, m.Version, old.Version, can, old.Version)
	}
	return nil
}

// upgradeElements bounds the elements of one piece of an element-wise upgrade: what fits a message many times over.
const upgradeElements = 1 << 18

// Upgrader is a plugin process that turns an earlier version's state into its own.
type Upgrader struct {
	o       *Optimizer
	old     sdk.Manifest
	process *Process
	timeout time.Duration
}

// NewUpgrader starts the plugin. Each piece may take as long as timeout.
func NewUpgrader(ctx context.Context, o *Optimizer, old sdk.Manifest, threads int, timeout time.Duration, log Log) (*Upgrader, error) {
	if old.Optimizer == nil {
		return nil, fmt.Errorf("plugin %s %s was no optimizer", old.Name, old.Version)
	}
	if err := o.Use.verify(); err != nil {
		return nil, err
	}
	p, err := Start(ctx, o.Use.Found, StartOptions{Threads: threads, Log: log})
	if err != nil {
		return nil, err
	}
	return &Upgrader{o, old, p, timeout}, nil
}

// Close ends the process.
func (u *Upgrader) Close() { u.process.Kill() }

// Stored reads a slot of the earlier version: n elements of the given shape from offset on.
type Stored func(slot string, shape []int, offset, n int) ([]float32, error)

// Convert fills state, in the order of the plugin's slots, for the elements From to To of a parameter whose values are param. Range's places are not used.
func (u *Upgrader) Convert(ctx context.Context, r Range, step int, param []float32, state [][]float32, stored Stored) error {
	size := r.To - r.From
	if u.o.Use.Manifest.Optimizer.Granularity == sdk.Elementwise {
		size = upgradeElements
	}
	for lo := r.From; lo < r.To; lo += size {
		hi := min(r.To, lo+size)
		if err := u.convert(ctx, r, lo, hi, step, param, state, stored); err != nil {
			return fmt.Errorf("plugin %s: upgrading the state of %s from version %s: %w", u.o.Use.Name, r.Name, u.old.Version, err)
		}
	}
	return nil
}

func (u *Upgrader) convert(ctx context.Context, r Range, lo, hi, step int, param []float32, state [][]float32, stored Stored) error {
	q := &pb.UpgradeRequest{Version: u.old.Version, Hypers: map[string]*pb.Value{}, Name: r.Name, From: int64(lo), To: int64(hi), Step: int64(step),
		Param: param[lo-r.From : hi-r.From], Old: map[string]*pb.StateValues{}}
	for k, v := range u.o.Hypers {
		q.Hypers[k] = sdk.ToValue(v)
	}
	for _, d := range r.Shape {
		q.Shape = append(q.Shape, int64(d))
	}
	for _, s := range u.old.Optimizer.State {
		shape, at, n := s.ShapeFor(r.Shape), lo, hi-lo
		if s.Own {
			at, n = 0, 1
			for _, d := range shape {
				n *= d
			}
		}
		v, err := stored(s.Name, shape, at, n)
		if err != nil {
			return err
		}
		q.Old[s.Name] = &pb.StateValues{Values: v}
	}
	slots := u.o.Use.Manifest.Optimizer.State
	part := make([][]float32, len(slots))
	for i, s := range slots {
		if part[i] = state[i]; !s.Own {
			part[i] = state[i][lo-r.From : hi-r.From]
		}
		begin := make([]float32, len(part[i]))
		if old := q.Old[s.Name]; old != nil && len(old.Values) == len(begin) {
			copy(begin, old.Values)
		} else {
			for k := range begin {
				begin[k] = s.Init
			}
		}
		q.State = append(q.State, &pb.StateValues{Values: begin})
	}
	c, cancel := context.WithTimeout(ctx, u.timeout)
	defer cancel()
	answer, err := pb.NewOptimizerClient(u.process.conn).Upgrade(c, q)
	if err != nil {
		u.process.child.settle()
		return fmt.Errorf("%w%s", plain(err), u.process.out.quoted())
	}
	if len(answer.State) != len(part) {
		return fmt.Errorf("it handed over %d pieces of state and has %d", len(answer.State), len(part))
	}
	for i, s := range slots {
		v := answer.State[i].GetValues()
		if len(v) != len(part[i]) {
			return fmt.Errorf("it handed over %d elements of %s for %d", len(v), s.Name, len(part[i]))
		}
		if !vec.AllFinite(v) {
			return fmt.Errorf("what it handed over for %s is not finite", s.Name)
		}
		copy(part[i], v)
	}
	return nil
}

package plugin

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"starling/core/graph"
	"starling/core/optim"
	"starling/sdk"
)

// Optimizer is an optimizer that a plugin computes. It implements optim.Optimizer; the arithmetic runs through an Updater.
type Optimizer struct {
	Use *Use
	// Hypers has every hyper-parameter of the manifest, in its Default's type.
	Hypers   map[string]any
	Schedule optim.Schedule
	// ParamGroups scale the learning rate; weight decay is the plugin's own business.
	ParamGroups []optim.Group
}

var _ optim.Optimizer = (*Optimizer)(nil)

// Update tells what state a parameter needs. It names no operation: the update is external.
func (o *Optimizer) Update(p graph.ParamAttrs) optim.Update {
	u := optim.Update{External: o, Whole: o.Use.Manifest.Optimizer.Granularity == sdk.Whole}
	for i, g := range o.ParamGroups {
		if ok, _ := path.Match(g.Pattern, p.Name); ok {
			u.Group = i + 1
			break
		}
	}
	for _, s := range o.Use.Manifest.Optimizer.State {
		x := optim.Slot{Name: s.Name, Init: float64(s.Init)}
		if s.Own {
			x.Own, x.Shape = true, s.ShapeFor(p.Shape.Slice())
		}
		u.Slots = append(u.Slots, x)
	}
	return u
}

// Takes reports a parameter that the plugin does not take.
func (o *Optimizer) Takes(p graph.ParamAttrs) error {
	i := o.Use.Manifest.Optimizer
	if i.Takes(p.Shape.N) {
		return nil
	}
	want := fmt.Sprintf("%d or more dimensions", i.MinDims)
	switch {
	case i.MinDims == i.MaxDims:
		want = fmt.Sprintf("%d dimensions", i.MinDims)
	case i.MaxDims > 0:
		want = fmt.Sprintf("%d to %d dimensions", i.MinDims, i.MaxDims)
	}
	return fmt.Errorf("plugin %s takes parameters of %s only; give the others to another optimizer with optim.mix(…)", o.Use.Name, want)
}

// Groups is the number of rows.
func (o *Optimizer) Groups() int { return len(o.ParamGroups) + 1 }

// GroupName labels a row.
func (o *Optimizer) GroupName(i int) string {
	if i == 0 {
		return o.Use.Name
	}
	return o.Use.Name + ", " + o.ParamGroups[i-1].Pattern
}

// Decay is what the plugin's weight_decay says, 0 if it has none; what the plugin does with it is its own business.
func (o *Optimizer) Decay(int) float64 {
	d, _ := o.Hypers["weight_decay"].(float64)
	return d
}

// Hyper fills the learning rate and the gradient's scale.
func (o *Optimizer) Hyper(row []float64, group, _ int, rate, gradScale float64) {
	clear(row)
	if group > 0 {
		rate *= o.ParamGroups[group-1].RateScale
	}
	row[graph.HyperLR], row[graph.HyperGradScale] = rate, gradScale
}

// Rate is the scheduled learning rate.
func (o *Optimizer) Rate(step int) float64 { return o.Schedule.At(step) }

// Validate checks the hyper-parameters against the manifest.
func (o *Optimizer) Validate() error {
	if err := CheckHypers(o.Use.Manifest, o.Hypers); err != nil {
		return err
	}
	return o.Schedule.Validate()
}

// CheckHypers reports hyper-parameters that a manifest does not have, lacks, or does not allow.
func CheckHypers(m sdk.Manifest, hypers map[string]any) error {
	for _, name := range slices.Sorted(maps.Keys(hypers)) {
		if !slices.ContainsFunc(m.Hypers, func(h sdk.Hyper) bool { return h.Name == name }) {
			return fmt.Errorf("plugin %s has no hyper-parameter %q", m.Name, name)
		}
	}
	for _, h := range m.Hypers {
		v, ok := hypers[h.Name]
		if !ok {
			return fmt.Errorf("plugin %s needs %s", m.Name, h.Signature())
		}
		if err := h.Check(v); err != nil {
			return fmt.Errorf("plugin %s: %w", m.Name, err)
		}
	}
	return nil
}

// String is the canonical form. The checksum is not part of it, so that a run can go on with a mended plugin of the same version.
func (o *Optimizer) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "plugin %s %s(%v", o.Use.Manifest.Name, o.Use.Manifest.Version, o.Schedule)
	for _, k := range slices.Sorted(maps.Keys(o.Hypers)) {
		fmt.Fprintf(&b, ", %s %v", k, o.Hypers[k])
	}
	for _, g := range o.ParamGroups {
		fmt.Fprintf(&b, ", group %q x%v", g.Pattern, g.RateScale)
	}
	return b.String() + ")"
}

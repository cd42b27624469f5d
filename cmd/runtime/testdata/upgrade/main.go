// Command upgrade is gradient descent with momentum, in several versions: which one is set when it is built. All compute the
// same bits, but keep other state.
package main

import (
	"fmt"
	"math"

	"starling/sdk"
)

// version is 1.0.0: the momentum m. 2.0.0: half of it, and a new hyper-parameter. 3.0.0: as 2.0.0, but it upgrades nothing. 4.0.0: whole
// tensors, a quarter of the momentum and a count of the updates. 5.0.0: an Upgrade that computes rubbish.
var version = "1.0.0"

func main() {
	switch p := (plugin{part: map[string]float32{"1": 1, "2": 0.5, "3": 0.5, "4": 0.25, "5": 1}[version[:1]]}); version {
	case "1.0.0", "3.0.0":
		sdk.Serve(&p)
	default:
		sdk.Serve(&upgrader{p})
	}
}

type plugin struct {
	part, momentum float32 // what is kept of the momentum
}

func (p *plugin) Manifest() sdk.Manifest {
	m := sdk.Manifest{Name: "moving", Version: version, Hypers: []sdk.Hyper{sdk.Float("momentum", 0.9, "")},
		Optimizer: &sdk.OptimizerInfo{Granularity: sdk.Elementwise, State: []sdk.Slot{sdk.State("m", 0)}}}
	o := m.Optimizer
	switch version {
	case "2.0.0":
		m.Hypers = append(m.Hypers, sdk.Bool("more", false, "nothing yet"))
		o.State, o.UpgradesFrom = []sdk.Slot{sdk.State("half", 0)}, []string{"1.0.0"}
	case "3.0.0":
		o.State = []sdk.Slot{sdk.State("half", 0)}
	case "4.0.0":
		o.Granularity = sdk.Whole
		o.State, o.UpgradesFrom = []sdk.Slot{sdk.Scalar("count", 0), sdk.State("half", 0)}, []string{"1.0.0", "2.0.0"}
	case "5.0.0":
		o.UpgradesFrom = []string{"1.0.0"}
	}
	return m
}

func (p *plugin) Setup(h sdk.Hypers) error {
	p.momentum = float32(h.Float("momentum"))
	return nil
}

func (p *plugin) Step(t *sdk.Tensor) error {
	m := t.State[len(t.State)-1]
	if version == "4.0.0" {
		if t.State[0][0] != float32(t.Step) {
			return fmt.Errorf("it counts %v updates in step %d", t.State[0][0], t.Step)
		}
		t.State[0][0]++
	}
	for i, g := range t.Grad {
		v := float32(p.momentum*(m[i]/p.part)) + g
		m[i] = v * p.part
		t.Param[i] -= float32(float32(t.Rate) * v)
	}
	return nil
}

type upgrader struct{ plugin }

func (p *upgrader) Upgrade(u *sdk.Upgrade) error {
	old, was := u.Old["m"], float32(1)
	if u.Version == "2.0.0" {
		old, was = u.Old["half"], 0.5
	}
	if len(u.Param) != u.To-u.From || u.Hypers.Float("momentum") != 0.75 {
		return fmt.Errorf("it was told %d values for %d elements, momentum %v", len(u.Param), u.To-u.From, u.Hypers.Float("momentum"))
	}
	to := u.State[len(u.State)-1]
	for i, v := range old {
		to[i] = v / was * p.part
	}
	switch version {
	case "4.0.0":
		u.State[0][0] = float32(u.Step)
	case "5.0.0":
		to[len(to)-1] = float32(math.NaN())
	}
	return nil
}

package optim

import (
	"errors"
	"fmt"
	"path"
	"strings"

	"starling/core/graph"
)

// Mix gives parameters to different optimizers: each to the first choice whose pattern its name matches and that takes it,
// the others to Rest. Each has its own schedule.
type Mix struct {
	Choices []Choice
	Rest    Optimizer
}

// Choice is an optimizer for the parameters whose name matches Pattern, a glob in which * crosses dots.
type Choice struct {
	Pattern   string
	Optimizer Optimizer
}

// Taker is implemented by optimizers that are not for every parameter.
type Taker interface {
	// Takes reports why a parameter is not for this optimizer.
	Takes(p graph.ParamAttrs) error
}

func takes(o Optimizer, p graph.ParamAttrs) error {
	if t, ok := o.(Taker); ok {
		return t.Takes(p)
	}
	return nil
}

// members are the optimizers in order of their rows, Rest last.
func (o Mix) members() []Optimizer {
	var all []Optimizer
	for _, c := range o.Choices {
		all = append(all, c.Optimizer)
	}
	return append(all, o.Rest)
}

func (o Mix) member(p graph.ParamAttrs) int {
	for i, c := range o.Choices {
		if ok, _ := path.Match(c.Pattern, p.Name); ok && takes(c.Optimizer, p) == nil {
			return i
		}
	}
	return len(o.Choices)
}

// Update is that of the parameter's optimizer.
func (o Mix) Update(p graph.ParamAttrs) Update {
	all := o.members()
	k := o.member(p)
	u := all[k].Update(p)
	for _, m := range all[:k] {
		u.Group += m.Groups()
	}
	return u
}

// Takes is Rest's answer for what no choice takes.
func (o Mix) Takes(p graph.ParamAttrs) error { return takes(o.members()[o.member(p)], p) }

// Groups is the sum of all.
func (o Mix) Groups() int {
	n := 0
	for _, m := range o.members() {
		n += m.Groups()
	}
	return n
}

// of finds the optimizer of a row, and the row in it.
func (o Mix) of(group int) (Optimizer, int) {
	for _, m := range o.members() {
		if group < m.Groups() {
			return m, group
		}
		group -= m.Groups()
	}
	panic(fmt.Sprintf("optim: there is no group %d", group))
}

// GroupName labels a row.
func (o Mix) GroupName(i int) string {
	name := "others: "
	at := i
	for _, c := range o.Choices {
		if at < c.Optimizer.Groups() {
			name = c.Pattern + ": "
			break
		}
		at -= c.Optimizer.Groups()
	}
	m, row := o.of(i)
	return name + m.GroupName(row)
}

// Decay is the weight decay of a row.
func (o Mix) Decay(i int) float64 {
	m, row := o.of(i)
	return m.Decay(row)
}

// Hyper writes a row at its own optimizer's scheduled rate, scaled as rate departs from Rest's.
func (o Mix) Hyper(row []float64, group, step int, rate, gradScale float64) {
	m, k := o.of(group)
	own := m.Rate(step)
	if base := o.Rest.Rate(step); rate != base && base != 0 {
		own *= rate / base
	} else if rate != base {
		own = rate
	}
	m.Hyper(row, k, step, own, gradScale)
}

// Rate is Rest's.
func (o Mix) Rate(step int) float64 { return o.Rest.Rate(step) }

// Validate checks every optimizer and pattern.
func (o Mix) Validate() error {
	var errs []error
	for _, c := range o.Choices {
		if _, err := path.Match(c.Pattern, ""); err != nil {
			errs = append(errs, fmt.Errorf("pattern %q: %w", c.Pattern, err))
		}
	}
	for _, m := range o.members() {
		errs = append(errs, m.Validate())
	}
	return errors.Join(errs...)
}

func (o Mix) String() string {
	var b strings.Builder
	b.WriteString("mix(")
	for _, c := range o.Choices {
		fmt.Fprintf(&b, "%q %v, ", c.Pattern, c.Optimizer)
	}
	fmt.Fprintf(&b, "rest %v)", o.Rest)
	return b.String()
}

package recipe

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"starling/core/graph"
	"starling/core/optim"
	"starling/core/plugin"
)

// patterns lists the globs by which an optimizer tells parameters apart.
func patterns(o optim.Optimizer) []string {
	var out []string
	add := func(groups []optim.Group) {
		for _, g := range groups {
			out = append(out, g.Pattern)
		}
	}
	switch o := o.(type) {
	case optim.AdamW:
		add(o.ParamGroups)
	case optim.SGD:
		add(o.ParamGroups)
	case *plugin.Optimizer:
		add(o.ParamGroups)
	case optim.Mix:
		for _, c := range o.Choices {
			out = append(append(out, c.Pattern), patterns(c.Optimizer)...)
		}
		out = append(out, patterns(o.Rest)...)
	}
	return out
}

// checkGroups refuses a pattern that no parameter of the model matches: it is misspelt, and would do nothing.
func (s *session) checkGroups(o optim.Optimizer, g *graph.Graph) error {
	var names []string
	for _, n := range g.Params() {
		if a := n.Attrs.(graph.ParamAttrs); !a.Buffer {
			names = append(names, a.Name)
		}
	}
	for _, pattern := range patterns(o) {
		if slices.ContainsFunc(names, func(name string) bool { ok, _ := path.Match(pattern, name); return ok }) {
			continue
		}
		at, ok := s.groups[pattern]
		if !ok {
			at = s.spec.Positions["optimizer"]
		}
		return &Error{Pos: at, Msg: fmt.Sprintf("optimizer: no parameter of the model matches %q%s", pattern, nearNames(pattern, names))}
	}
	return nil
}

// nearNames lists the names that are nearest to a pattern.
func nearNames(pattern string, names []string) string {
	if len(names) == 0 {
		return "; it has none"
	}
	fixed := strings.NewReplacer("*", "", "?", "").Replace(pattern)
	far := func(name string) int {
		d := distance(fixed, name)
		if len(fixed) < len(pattern) { // what * stands for costs nothing
			d -= max(0, len(name)-len(fixed))
		}
		return d
	}
	sorted := slices.Clone(names)
	slices.SortStableFunc(sorted, func(a, b string) int { return cmp.Compare(far(a), far(b)) })
	const most = 3
	if len(sorted) <= most {
		return "; it has " + strings.Join(sorted, ", ")
	}
	return "; the nearest of its " + fmt.Sprint(len(sorted)) + " names are " + strings.Join(sorted[:most], ", ")
}

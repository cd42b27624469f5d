package recipe

import (
	"fmt"
	"math"
	"sort"
	"strconv"
	"strings"

	"go.starlark.net/starlark"

	"starling/core/train"
)

// session returns the loading that a builtin is called in; only the top of files has one, traces and hooks have not.
func (c *call) session() (*session, error) {
	if s, ok := c.thread.Local(localSession).(*session); ok && c.thread.Local(localTrace) == nil {
		return s, nil
	}
	return nil, c.errorf("this belongs at the top of the recipe; models and hooks run later, many times")
}

// declareParam is param(name, default, help, placement): a value that can be changed without editing the recipe.
func declareParam(c *call) (starlark.Value, error) {
	var name, help string
	var def starlark.Value
	var placement bool
	if err := c.unpack(&name, &def, &help, &placement); err != nil {
		return nil, err
	}
	s, err := c.session()
	if err != nil {
		return nil, err
	}
	if name == "" || strings.ContainsAny(name, "= \t\n") {
		return nil, c.bad("name", "the name %q must not be empty nor hold spaces or =", name)
	}
	pos := position(c.thread)
	if old, ok := s.declared[name]; ok {
		return nil, c.errorf("param %q is already declared at %v", name, old)
	}
	p := train.Param{Name: name, Help: help, Placement: placement}
	switch d := def.(type) {
	case starlark.Bool:
		p.Default = bool(d)
	case starlark.Int:
		i, ok := d.Int64()
		if !ok {
			return nil, c.bad("default", "default %v is too large", d)
		}
		p.Default = i
	case starlark.Float:
		p.Default = float64(d)
	case starlark.String:
		p.Default = string(d)
	default:
		return nil, c.bad("default", "the default must be an int, a float, a string, True or False, not %s", describe(def))
	}
	p.Value = p.Default
	if text, ok := s.sets[name]; ok {
		if p.Value, err = parseParam(text, p.Default); err != nil {
			return nil, c.errorf("%q: --set %s=%s: %v", name, name, text, err)
		}
	}
	s.declared[name] = pos
	s.params = append(s.params, p)
	switch v := p.Value.(type) {
	case bool:
		return starlark.Bool(v), nil
	case int64:
		return starlark.MakeInt64(v), nil
	case float64:
		return starlark.Float(v), nil
	}
	return starlark.String(p.Value.(string)), nil
}

// parseParam reads a value of the default's type.
func parseParam(text string, def any) (any, error) {
	switch def.(type) {
	case bool:
		switch strings.ToLower(text) {
		case "true", "yes", "1":
			return true, nil
		case "false", "no", "0":
			return false, nil
		}
		return nil, fmt.Errorf("%q is neither true nor false (the default is %v)", text, def)
	case int64:
		v, err := strconv.ParseInt(strings.ReplaceAll(text, "_", ""), 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%q is no int (the default is %v)", text, def)
		}
		return v, nil
	case float64:
		v, err := strconv.ParseFloat(text, 64)
		if err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
			return nil, fmt.Errorf("%q is no finite number (the default is %v)", text, def)
		}
		return v, nil
	}
	return text, nil
}

// unknownSets reports values for params that the recipe does not declare.
func (s *session) unknownSets() error {
	names := make([]string, len(s.params))
	for i, p := range s.params {
		names[i] = p.Name
	}
	var unknown []string
	for name := range s.sets {
		if _, ok := s.declared[name]; !ok {
			unknown = append(unknown, name)
		}
	}
	if len(unknown) == 0 {
		return nil
	}
	sort.Strings(unknown)
	list := "it has none"
	if len(names) > 0 {
		list = "it has " + strings.Join(names, ", ")
	}
	return fmt.Errorf("--set %s=%s: %s has no param %q; %s%s", unknown[0], s.sets[unknown[0]], s.name, unknown[0], list, didYouMean(unknown[0], names))
}

package recipe

import (
	"context"
	"fmt"
	"slices"

	"go.starlark.net/starlark"

	"starling/core/compress"
	"starling/core/optim"
	"starling/core/plugin"
	"starling/sdk"
)

func pluginDeclarations() []declaration {
	return []declaration{
		{"optimizer(name, lr, groups = [], **hypers)", "an optimizer that is a program of its own, found by its name in the folder plugins beside the recipe, the user's folder or --plugin-dir; hypers are its own, runtime plugin info NAME lists them", pluginOptimizer},
		{"schedule(name, total, **settings)", "a learning-rate schedule that a plugin gives, asked for the rates of total steps before the run begins; after them the last one stays; the settings are the plugin's own", pluginSchedule},
		{"compressor(name, **settings)", "gradients made small by a plugin, for parallel.mesh(compress = …); the settings are the plugin's own, runtime plugin info NAME lists them", pluginCompressor},
		{"sink(name, **settings)", "hands the run's figures to a plugin as well; the settings are the plugin's own, runtime plugin info NAME lists them", pluginSink},
	}
}

// split takes the arguments that the signature does not name out of a call.
func (c *call) split() (more []starlark.Tuple) {
	var own []starlark.Tuple
	for _, kv := range c.kwargs {
		if slices.Contains(c.names(), string(kv[0].(starlark.String))) {
			own = append(own, kv)
		} else {
			more = append(more, kv)
		}
	}
	c.kwargs = own
	return more
}

// resolve finds a plugin and checks what kind it is.
func (c *call) resolve(name string, kind sdk.Kind) (*plugin.Use, error) {
	s, err := c.session()
	if err != nil {
		return nil, err
	}
	use, err := s.find(name)
	if err != nil {
		return nil, c.bad("name", "%v", err)
	}
	if is := use.Manifest.Kind(); is != kind {
		return nil, c.bad("name", "plugin %s is no %s: a recipe names it with plugin.%s(%q, …)", name, kind, is, name)
	}
	return use, nil
}

// find finds a plugin.
func (s *session) find(name string) (*plugin.Use, error) {
	if s.options.Plugins == nil {
		return plugin.Resolve(context.Background(), name, s.path)
	}
	return s.options.Plugins.Resolve(context.Background(), name, s.path)
}

// hypers checks a plugin's own arguments against its manifest and fills in the defaults.
func (c *call) hypers(m sdk.Manifest, given []starlark.Tuple) (map[string]any, error) {
	values := map[string]any{}
	var names []string
	for _, h := range m.Hypers {
		names = append(names, h.Name)
		if !h.Needed {
			values[h.Name] = h.Default
		}
	}
	for _, kv := range given {
		name := string(kv[0].(starlark.String))
		i := slices.Index(names, name)
		if i < 0 {
			return nil, c.bad(name, "plugin %s has no hyper-parameter %q%s", m.Name, name, didYouMean(name, names))
		}
		h := m.Hypers[i]
		v, ok := hyperValue(h.Type, kv[1])
		if !ok {
			return nil, c.bad(name, "%s must be %v, not %s (plugin %s: %s)", name, h.Type, describe(kv[1]), m.Name, h.Signature())
		}
		if err := h.Check(v); err != nil {
			return nil, c.bad(name, "%v (plugin %s: %s)", err, m.Name, h.Signature())
		}
		values[name] = v
	}
	if err := plugin.CheckHypers(m, values); err != nil {
		return nil, c.errorf("%v", err)
	}
	return values, nil
}

// hyperValue converts a value to the type of a hyper-parameter.
func hyperValue(t sdk.Type, v starlark.Value) (any, bool) {
	switch t {
	case sdk.TypeFloat:
		f, ok := number(v)
		return f, ok
	case sdk.TypeInt:
		var n int
		want, msg := store(&n, v)
		return int64(n), want == "" && msg == ""
	case sdk.TypeBool:
		b, ok := v.(starlark.Bool)
		return bool(b), ok
	case sdk.TypeString:
		s, ok := starlark.AsString(v)
		return s, ok
	case sdk.TypeFloats:
		seq, ok := v.(starlark.Indexable)
		if !ok {
			return nil, false
		}
		list := []float64{}
		for i := range seq.Len() {
			f, ok := number(seq.Index(i))
			if !ok {
				return nil, false
			}
			list = append(list, f)
		}
		return list, true
	}
	return nil, false
}

func pluginOptimizer(c *call) (starlark.Value, error) {
	more := c.split()
	var name string
	var lr, groups starlark.Value
	if err := c.unpack(&name, &lr, &groups); err != nil {
		return nil, err
	}
	use, err := c.resolve(name, sdk.KindOptimizer)
	if err != nil {
		return nil, err
	}
	o := plugin.Optimizer{Use: use}
	if o.Hypers, err = c.hypers(use.Manifest, more); err != nil {
		return nil, err
	}
	sched, err := c.schedule(lr)
	if err != nil {
		return nil, err
	}
	if o.ParamGroups, err = c.groups(groups); err != nil {
		return nil, err
	}
	for _, g := range o.ParamGroups {
		if g.WeightDecay != nil {
			return nil, c.bad("groups", "optim.group(%q): a plugin's groups scale the learning rate only; what weight decay it has is a hyper-parameter of its own", g.Pattern)
		}
	}
	return c.newOptimizer(func(batch int) (_ optim.Optimizer, err error) {
		o := o
		o.Schedule, err = sched(batch)
		return &o, err
	})
}

func pluginSchedule(c *call) (starlark.Value, error) {
	more := c.split()
	var name string
	var total int
	if err := c.unpack(&name, &total); err != nil {
		return nil, err
	}
	use, err := c.resolve(name, sdk.KindSchedule)
	if err != nil {
		return nil, err
	}
	settings, err := c.hypers(use.Manifest, more)
	if err != nil {
		return nil, err
	}
	s, err := plugin.AskSchedule(context.Background(), use, settings, total)
	if err != nil {
		return nil, c.errorf("%v", err)
	}
	return c.newSchedule(func(int) (optim.Schedule, error) { return s, nil })
}

func pluginCompressor(c *call) (starlark.Value, error) {
	more := c.split()
	var name string
	if err := c.unpack(&name); err != nil {
		return nil, err
	}
	use, err := c.resolve(name, sdk.KindCompressor)
	if err != nil {
		return nil, err
	}
	settings, err := c.hypers(use.Manifest, more)
	if err != nil {
		return nil, err
	}
	z, err := plugin.AskCompressor(context.Background(), use, settings)
	if err != nil {
		return nil, c.errorf("%v", err)
	}
	return c.newSetting("compression", compress.Config{Kind: compress.Foreign, External: z}), nil
}

func pluginSink(c *call) (starlark.Value, error) {
	more := c.split()
	var name string
	if err := c.unpack(&name); err != nil {
		return nil, err
	}
	s, err := c.session()
	if err != nil {
		return nil, err
	}
	use, err := c.resolve(name, sdk.KindSink)
	if err != nil {
		return nil, err
	}
	values, err := c.hypers(use.Manifest, more)
	if err != nil {
		return nil, err
	}
	if len(s.sinks) == 0 {
		s.sinkAt = position(c.thread)
	}
	s.sinks = append(s.sinks, plugin.SinkSpec{Use: use, Settings: values})
	return starlark.None, nil
}

func optimMix(c *call) (starlark.Value, error) {
	var choices starlark.Value
	var rest *setting
	if err := c.unpack(&choices, kindOf{"optimizer", "an optimizer such as optim.adamw(…)", &rest}); err != nil {
		return nil, err
	}
	seq, ok := choices.(starlark.Sequence)
	if !ok {
		return nil, c.bad("choices", "choices must be a list of pairs (pattern, optimizer), not %s", describe(choices))
	}
	type choice struct {
		pattern string
		build   optimizerOf
	}
	var list []choice
	for x := range starlark.Elements(seq) {
		pair, ok := x.(starlark.Indexable)
		if !ok || pair.Len() != 2 {
			return nil, c.bad("choices", "choices must be a list of pairs (pattern, optimizer), it holds %s", describe(x))
		}
		pattern, ok := starlark.AsString(pair.Index(0))
		if !ok {
			return nil, c.bad("choices", "choices: a pattern must be a string such as \"h.*.weight\", not %s", describe(pair.Index(0)))
		}
		o, ok := pair.Index(1).(*setting)
		if !ok || o.kind != "optimizer" {
			return nil, c.bad("choices", "choices: %q must be given an optimizer, not %s", pattern, describe(pair.Index(1)))
		}
		list = append(list, choice{pattern, payload[optimizerOf](o)})
	}
	return c.newOptimizer(func(batch int) (optim.Optimizer, error) {
		var m optim.Mix
		for _, x := range list {
			o, err := x.build(batch)
			if err != nil {
				return nil, fmt.Errorf("%q: %w", x.pattern, err)
			}
			m.Choices = append(m.Choices, optim.Choice{Pattern: x.pattern, Optimizer: o})
		}
		var err error
		m.Rest, err = payload[optimizerOf](rest)(batch)
		return m, err
	})
}

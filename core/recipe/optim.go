package recipe

import (
	"math"

	"go.starlark.net/starlark"

	"starling/core/optim"
)

// rate is a learning rate in a recipe: a number, or one that is scaled to the global batch, which is known only in train().
type rate struct {
	value     float64
	baseBatch int    // 0: not scaled
	rule      string // "linear" or "sqrt"
}

func (r rate) at(globalBatch int) (float64, error) {
	if r.baseBatch == 0 {
		return r.value, nil
	}
	return optim.ScaleByBatch(r.value, r.baseBatch, globalBatch, r.rule)
}

func storeRate(dst *rate, v starlark.Value) (want, msg string) {
	if f, ok := number(v); ok {
		*dst = rate{value: f}
		return "", ""
	}
	if s, ok := v.(*setting); ok && s.kind == "rate" {
		*dst = payload[rate](s)
		return "", ""
	}
	return "a number or schedule.scale_by_batch(…)", ""
}

// scheduleOf and optimizerOf finish a schedule or an optimizer once the global batch is known.
type (
	scheduleOf  func(globalBatch int) (optim.Schedule, error)
	optimizerOf func(globalBatch int) (optim.Optimizer, error)
)

func scheduleDeclarations() []declaration {
	return []declaration{
		{"constant(lr)", "the same learning rate at every step", func(c *call) (starlark.Value, error) {
			var lr rate
			if err := c.unpack(&lr); err != nil {
				return nil, err
			}
			return c.newSchedule(constantRate(lr))
		}},
		{"step(lr, every, gamma = 0.1)", "lr, multiplied by gamma after every so many steps", func(c *call) (starlark.Value, error) {
			var lr rate
			var s optim.Step
			if err := c.unpack(&lr, &s.Every, &s.Gamma); err != nil {
				return nil, err
			}
			return c.newSchedule(func(batch int) (_ optim.Schedule, err error) {
				s := s
				s.Rate, err = lr.at(batch)
				return s, err
			})
		}},
		{"linear(start, end, total)", "a straight line from start at step 0 to end at step total, then end", func(c *call) (starlark.Value, error) {
			var start, end rate
			var total int
			if err := c.unpack(&start, &end, &total); err != nil {
				return nil, err
			}
			return c.newSchedule(func(batch int) (optim.Schedule, error) {
				from, err := start.at(batch)
				if err != nil {
					return nil, err
				}
				to, err := end.at(batch)
				return optim.Linear{From: from, To: to, Total: total}, err
			})
		}},
		{"warmup_cosine(peak, warmup, total, floor = 0.1)", "a linear rise to peak over warmup steps, then half a cosine down to floor * peak at step total", func(c *call) (starlark.Value, error) {
			var peak rate
			var s optim.WarmupCosine
			if err := c.unpack(&peak, &s.Warmup, &s.Total, &s.Floor); err != nil {
				return nil, err
			}
			return c.newSchedule(func(batch int) (_ optim.Schedule, err error) {
				s := s
				s.Peak, err = peak.at(batch)
				return s, err
			})
		}},
		{`scale_by_batch(base_lr, base_batch, rule = "linear")`, `a learning rate found at base_batch, scaled to the recipe's global batch by their ratio ("linear") or its square root ("sqrt"); ` +
			"it stands wherever a learning rate may", scaleByBatch},
	}
}

func constantRate(lr rate) scheduleOf {
	return func(batch int) (optim.Schedule, error) {
		v, err := lr.at(batch)
		return optim.Constant{Rate: v}, err
	}
}

// newSchedule checks a schedule where it is written, at the batch of one sample; scaling does not change what is valid.
func (c *call) newSchedule(build scheduleOf) (starlark.Value, error) {
	s, err := build(1)
	if err == nil {
		err = s.Validate()
	}
	if err != nil {
		return nil, c.errorf("%v", err)
	}
	return c.newSetting("schedule", build), nil
}

func scaleByBatch(c *call) (starlark.Value, error) {
	var r rate
	if err := c.unpack(&r.value, &r.baseBatch, &r.rule); err != nil {
		return nil, err
	}
	if r.baseBatch < 1 {
		return nil, c.bad("base_batch", "base_batch = %d must be at least 1", r.baseBatch)
	}
	if _, err := r.at(1); err != nil {
		return nil, c.errorf("%v", err)
	}
	return c.newSetting("rate", r), nil
}

func optimDeclarations() []declaration {
	return []declaration{
		{"adamw(lr, betas = (0.9, 0.999), eps = 1e-8, weight_decay = 0.01, groups = [], state = \"fp32\")", "Adam with decoupled weight decay; lr is a number or a schedule; one-dimensional parameters get no decay; state is how its moments are kept: \"fp32\", \"bf16\" or \"int8\" (8 bits, scaled block by block)", optimAdamW},
		{"sgd(lr, momentum = 0.0, dampening = 0.0, nesterov = False, weight_decay = 0.0, groups = [])", "stochastic gradient descent; lr is a number or a schedule", optimSGD},
		{"mix(choices, rest)", "several optimizers: choices is a list of pairs (pattern, optimizer), each parameter goes to the first whose pattern matches its name and that takes its shape, the others to rest", optimMix},
		{"group(pattern, lr_scale = 1.0, weight_decay = None)", `other settings for the parameters whose name matches a glob, such as "h.*.bias"; the first group that matches wins`, optimGroup},
	}
}

// schedule reads a number or a schedule.
func (c *call) schedule(v starlark.Value) (scheduleOf, error) {
	if s, ok := v.(*setting); ok && s.kind == "schedule" {
		return payload[scheduleOf](s), nil
	}
	var lr rate
	if want, _ := storeRate(&lr, v); want != "" {
		return nil, c.bad("lr", "lr must be a number or a schedule such as schedule.constant(0.001), not %s", describe(v))
	}
	return constantRate(lr), nil
}

func (c *call) groups(v starlark.Value) ([]optim.Group, error) {
	seq, ok := v.(starlark.Sequence)
	if !ok {
		return nil, c.bad("groups", "groups must be a list of optim.group(…), not %s", describe(v))
	}
	var out []optim.Group
	for x := range starlark.Elements(seq) {
		s, ok := x.(*setting)
		if !ok || s.kind != "group" {
			return nil, c.bad("groups", "groups must be a list of optim.group(…), it holds %s", describe(x))
		}
		out = append(out, payload[optim.Group](s))
	}
	return out, nil
}

// newOptimizer checks an optimizer where it is written.
func (c *call) newOptimizer(build optimizerOf) (starlark.Value, error) {
	o, err := build(1)
	if err == nil {
		err = o.Validate()
	}
	if err != nil {
		return nil, c.errorf("%v", err)
	}
	return c.newSetting("optimizer", build), nil
}

func optimAdamW(c *call) (starlark.Value, error) {
	var lr, betas, groups starlark.Value
	var o optim.AdamW
	if err := c.unpack(&lr, &betas, &o.Eps, &o.WeightDecay, &groups, &o.State); err != nil {
		return nil, err
	}
	if o.State == "fp32" {
		o.State = ""
	}
	pair, ok := betas.(starlark.Indexable)
	if !ok || pair.Len() != 2 {
		return nil, c.bad("betas", "betas must be a pair of numbers, not %s", describe(betas))
	}
	for i, to := range []*float64{&o.Beta1, &o.Beta2} {
		if *to, ok = number(pair.Index(i)); !ok {
			return nil, c.bad("betas", "betas must be a pair of numbers, it holds %s", describe(pair.Index(i)))
		}
	}
	sched, err := c.schedule(lr)
	if err != nil {
		return nil, err
	}
	if o.ParamGroups, err = c.groups(groups); err != nil {
		return nil, err
	}
	return c.newOptimizer(func(batch int) (_ optim.Optimizer, err error) {
		o := o
		o.Schedule, err = sched(batch)
		return o, err
	})
}

func optimSGD(c *call) (starlark.Value, error) {
	var lr, groups starlark.Value
	var o optim.SGD
	if err := c.unpack(&lr, &o.Momentum, &o.Dampening, &o.Nesterov, &o.WeightDecay, &groups); err != nil {
		return nil, err
	}
	sched, err := c.schedule(lr)
	if err != nil {
		return nil, err
	}
	if o.ParamGroups, err = c.groups(groups); err != nil {
		return nil, err
	}
	return c.newOptimizer(func(batch int) (_ optim.Optimizer, err error) {
		o := o
		o.Schedule, err = sched(batch)
		return o, err
	})
}

func optimGroup(c *call) (starlark.Value, error) {
	var g optim.Group
	var decay starlark.Value
	if err := c.unpack(&g.Pattern, &g.RateScale, &decay); err != nil {
		return nil, err
	}
	if decay != nil {
		d, ok := number(decay)
		if !ok {
			return nil, c.bad("weight_decay", "weight_decay must be a number, not %s", describe(decay))
		}
		g.WeightDecay = &d
	}
	if !(g.RateScale >= 0) || math.IsInf(g.RateScale, 0) {
		return nil, c.bad("lr_scale", "lr_scale = %v must be a finite number of at least 0", g.RateScale)
	}
	out := c.newSetting("group", g)
	if s, err := c.session(); err == nil {
		s.groups[g.Pattern] = out.pos
	}
	return out, nil
}

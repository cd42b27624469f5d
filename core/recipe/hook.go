package recipe

import (
	"fmt"
	"math"
	"slices"

	"go.starlark.net/starlark"

	"starling/core/train"
)

// hookSteps bounds the execution of one call of a hook.
const hookSteps = 1_000_000

func actionDeclarations() []declaration {
	positive := func(name string, set func(a *train.Action, v *float64)) func(c *call) (starlark.Value, error) {
		return func(c *call) (starlark.Value, error) {
			var v float64
			if err := c.unpack(&v); err != nil {
				return nil, err
			}
			if !(v >= 0) || math.IsInf(v, 0) {
				return nil, c.bad(name, "%s = %v must be a finite number of at least 0", name, v)
			}
			var a train.Action
			set(&a, &v)
			return c.newSetting("action", a), nil
		}
	}
	plain := func(a train.Action) func(c *call) (starlark.Value, error) {
		return func(c *call) (starlark.Value, error) {
			if err := c.unpack(); err != nil {
				return nil, err
			}
			return c.newSetting("action", a), nil
		}
	}
	return []declaration{
		{"set_lr(lr)", "from the next step on the learning rate is lr, in place of the schedule's", positive("lr", func(a *train.Action, v *float64) { a.LR = v })},
		{"scale_lr(factor)", "from the next step on the schedule's learning rate is multiplied by factor", positive("factor", func(a *train.Action, v *float64) { a.LRScale = v })},
		{"stop()", "end the run after this step", plain(train.Action{Stop: true})},
		{"save()", "write a checkpoint now", plain(train.Action{Save: true})},
	}
}

// metricsKind is the kind of the record that hooks see.
const metricsKind = "metrics"

// wholeMetrics are the metrics that hooks see as ints.
var wholeMetrics = []string{"step", "epoch", "tokens"}

// hook makes the trainer's hook of a function of the recipe. It may be called from several goroutines: functions
// are frozen and each call has its own thread.
func (s *session) hook(name string, fn starlark.Callable) train.Hook {
	if fn == nil {
		return nil
	}
	return func(m train.Metrics) (train.Action, error) {
		arg := newRecord(metricsKind)
		for _, k := range sortedKeys(m) {
			if v := m[k]; slices.Contains(wholeMetrics, k) && v == math.Trunc(v) && math.Abs(v) < 1<<53 {
				arg.set(k, starlark.MakeInt64(int64(v)))
			} else {
				arg.set(k, starlark.Float(v))
			}
		}
		thread := s.thread(hookSteps)
		defer watch(thread)()
		v, err := starlark.Call(thread, fn, starlark.Tuple{arg}, nil)
		if err != nil {
			return train.Action{}, s.explain(err, "")
		}
		var a train.Action
		if !mergeActions(&a, v) {
			return train.Action{}, s.at(fn, fmt.Sprintf("%s must return None, an action such as action.stop(), or a list of actions, not %s", name, describe(v)))
		}
		return a, nil
	}
}

// mergeActions adds what a hook returned; false if it is no action.
func mergeActions(a *train.Action, v starlark.Value) bool {
	switch v := v.(type) {
	case starlark.NoneType:
		return true
	case *setting:
		if v.kind != "action" {
			return false
		}
		b := payload[train.Action](v)
		a.Stop, a.Save = a.Stop || b.Stop, a.Save || b.Save
		if b.LR != nil {
			a.LR = b.LR
		}
		if b.LRScale != nil {
			a.LRScale = b.LRScale
		}
		return true
	case starlark.Sequence:
		for x := range starlark.Elements(v) {
			if s, ok := x.(*setting); !ok || !mergeActions(a, s) {
				return false
			}
		}
		return true
	}
	return false
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

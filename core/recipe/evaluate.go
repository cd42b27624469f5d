package recipe

import (
	"slices"
	"strings"

	"go.starlark.net/starlark"

	"starling/core/train"
)

// reservedMetrics are the names of figures that every run has, in the log and in what hooks see.
var reservedMetrics = []string{"comm_hidden", "comm_s", "comm_window_s", "epoch", "epoch_loss", "eval_loss", "grad_norm", "kind", "loss", "loss_scale", "lr", "sent_bytes", "sent_host_bytes", "sent_memory_bytes", "sent_network_bytes", "skipped", "step", "tokens", "tokens_per_s"}

// evaluation is what evaluate() says, before train() puts it together.
type evaluation struct {
	train.Evaluate
	metrics []metric
}

type metric struct {
	name string
	fn   starlark.Callable
}

func makeEvaluate(c *call) (starlark.Value, error) {
	var source *setting
	var metrics starlark.Value
	var e evaluation
	if err := c.unpack(wantSource(&source), &e.Every, &e.Batches, &e.Best, &e.BestMode, &metrics); err != nil {
		return nil, err
	}
	e.Source = payload[train.Source](source)
	m, ok := metrics.(starlark.IterableMapping)
	if !ok {
		return nil, c.bad("metrics", "metrics must be a dict from names to functions of the batch, not %s", describe(metrics))
	}
	names := []string{"loss"}
	for _, kv := range m.Items() {
		name, ok := starlark.AsString(kv[0])
		if !ok || name == "" || strings.ContainsAny(name, " .=\n") {
			return nil, c.bad("metrics", "metrics: the name %v must be a string without spaces and dots", kv[0])
		}
		if slices.Contains(reservedMetrics, name) {
			return nil, c.bad("metrics", "metrics: %q is a figure that every run has; choose another name (taken are %s)", name, strings.Join(reservedMetrics, ", "))
		}
		fn, ok := kv[1].(starlark.Callable)
		if !ok {
			return nil, c.bad("metrics", "metrics: %q must be a function of the batch, not %s", name, describe(kv[1]))
		}
		if wrong := takesOne(fn, "the batch"); wrong != "" {
			return nil, c.bad("metrics", "metrics: %q: %s", name, wrong)
		}
		e.metrics = append(e.metrics, metric{name, fn})
		names = append(names, name)
	}
	if e.Best != "" {
		known := false
		for _, n := range names {
			known = known || n == e.Best
		}
		if !known {
			return nil, c.bad("best", "best = %q is neither \"loss\" nor a metric%s", e.Best, didYouMean(e.Best, names))
		}
	}
	switch e.BestMode {
	case "":
		e.BestMode = "max"
		if e.Best == "" || e.Best == "loss" {
			e.BestMode = "min"
		}
	case "min", "max":
	default:
		return nil, c.bad("best_mode", "best_mode = %q must be \"min\" or \"max\"", e.BestMode)
	}
	return c.newSetting("evaluation", e), nil
}

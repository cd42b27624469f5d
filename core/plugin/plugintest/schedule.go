package plugintest

import (
	"context"
	"fmt"

	"starling/core/plugin"
)

// Schedule checks a schedule plugin: that it answers, and the same whoever asks.
func Schedule(ctx context.Context, use *plugin.Use, settings map[string]any, report func(Check)) error {
	failed := 0
	check := func(name string, f func() (string, error)) {
		note, err := f()
		if err != nil {
			failed++
		}
		report(Check{Name: name, Err: err, Note: note})
	}
	const total = 1000
	check("gives finite rates of at least 0", func() (string, error) {
		var note string
		for _, n := range []int{1, 2, 7, total} {
			s, err := plugin.AskSchedule(ctx, use, settings, n)
			if err != nil {
				return "", fmt.Errorf("for %d steps: %w", n, err)
			}
			note = fmt.Sprintf("of %d steps: %v, %v in the middle, %v at the end", n, s.At(0), s.At(n/2), s.At(n-1))
		}
		return note, nil
	})
	check("is deterministic: another process", func() (string, error) {
		a, err := plugin.AskSchedule(ctx, use, settings, total)
		if err != nil {
			return "", err
		}
		b, err := plugin.AskSchedule(ctx, use, settings, total)
		if err != nil {
			return "", err
		}
		for step := range total {
			if a.At(step) != b.At(step) {
				return "", fmt.Errorf("step %d: %v, and in another process %v", step, a.At(step), b.At(step))
			}
		}
		return "", nil
	})
	check("has no hidden state: asked for few steps at a time, the last ones first", func() (string, error) {
		a, err := plugin.AskSchedule(ctx, use, settings, total)
		if err != nil {
			return "", err
		}
		b, err := plugin.AskScheduleBackwards(ctx, use, settings, total, 97)
		if err != nil {
			return "", err
		}
		for step := range total {
			if a.At(step) != b[step] {
				return "", fmt.Errorf("step %d: %v in order, and %v if it was asked for later steps before; a rate must depend on the settings and the step alone", step, a.At(step), b[step])
			}
		}
		return "", nil
	})
	if failed > 0 {
		return fmt.Errorf("plugin %s: %d of the checks failed", use.Name, failed)
	}
	return nil
}

package train

import (
	"context"
	"path/filepath"

	"starling/core/plugin"
)

// openSinks starts the spec's sinks, on the rank that keeps the log. A sink that cannot be started is a mistake in the
// recipe or on this machine: it shows before the first step.
func (l *loop) openSinks(ctx context.Context) error {
	folder, err := filepath.Abs(l.env.RunDir)
	if err != nil {
		return err
	}
	for _, s := range l.spec.Sinks {
		name := s.Use.Name
		k, err := plugin.OpenSink(ctx, s, folder, l.spec.Name, l.state.Step, func(level, line string) {
			kind := EventNote
			if level == "warn" || level == "error" {
				kind = EventWarning
			}
			l.env.Observe(Event{Kind: kind, Text: "plugin " + name + ": " + line})
		})
		if err != nil {
			return l.spec.place("sink", err)
		}
		l.log.sinks = append(l.log.sinks, k)
	}
	return nil
}

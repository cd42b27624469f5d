package plugintest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"sync"

	"starling/core/plugin"
)

// Sink checks a sink plugin: it writes a short run, and goes on with it as after a resume.
func Sink(ctx context.Context, use *plugin.Use, settings map[string]any, report func(Check)) error {
	dir, err := os.MkdirTemp("", "starling-sink-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	failed := 0
	for _, c := range []struct {
		name     string
		from, to int
	}{{"takes the figures of a run", 0, 50}, {"goes on after a resume", 25, 60}} {
		var mu sync.Mutex
		var bad []string
		s, err := plugin.OpenSink(ctx, plugin.SinkSpec{Use: use, Settings: settings}, dir, "check.star", c.from, func(level, line string) {
			if level == "warn" || level == "error" {
				mu.Lock()
				bad = append(bad, line)
				mu.Unlock()
			}
		})
		if err == nil {
			for step := c.from + 1; step <= c.to; step++ {
				s.Write("step", step, map[string]float64{"loss": 1 / float64(step), "lr": 1e-3, "grad_norm": math.Sqrt(float64(step))})
				if step%10 == 0 {
					s.Write("eval", step, map[string]float64{"eval_loss": 2 / float64(step)})
				}
			}
			s.Close()
			if len(bad) > 0 {
				err = errors.New(strings.Join(bad, "; "))
			}
		}
		files, rerr := os.ReadDir(dir)
		if err == nil && rerr == nil && len(files) == 0 {
			err = errors.New("it wrote nothing into the run's folder")
		}
		if err != nil {
			failed++
		}
		report(Check{Name: c.name, Err: err, Note: fmt.Sprintf("files in the run's folder: %d", len(files))})
	}
	if failed > 0 {
		return fmt.Errorf("plugin %s: %d of the checks failed", use.Name, failed)
	}
	return nil
}

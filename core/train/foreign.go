package train

import (
	"context"
	"fmt"
	"time"

	"starling/core/plan"
	"starling/core/plugin"
)

// openCoder prepares the plugin that compresses gradients, if one does and there is somebody to send them to.
func (z *compression) openCoder(p *plan.Plan, timeout time.Duration) error {
	c, ok := z.cfg.External.(*plugin.Compressor)
	if !ok || z.env.World == 1 {
		return nil
	}
	most := 0
	for _, b := range p.Buckets {
		if b.Buffers {
			continue
		}
		for _, k := range p.Compressing(b).Chunks {
			most = max(most, k.Len())
		}
	}
	var err error
	z.coder, err = plugin.NewCoder(plugin.CoderConfig{Compressor: c, Elements: most, Threads: z.env.Threads, Timeout: timeout, Log: func(level, line string) {
		kind := EventNote
		if level == "warn" || level == "error" {
			kind = EventWarning
		}
		z.env.Observe(Event{Kind: kind, Text: "plugin " + c.Use.Name + ": " + line})
	}})
	if err != nil {
		return fmt.Errorf("compressor plugin %s: %w", c.Use.Name, err)
	}
	return nil
}

// startPlugin starts the plugin that compresses, so that mistakes show before the first step.
func (z *compression) startPlugin(ctx context.Context) error {
	if z == nil || z.coder == nil {
		return nil
	}
	return z.coder.Start(ctx)
}

func (z *compression) close() {
	if z != nil && z.coder != nil {
		z.coder.Close()
	}
}

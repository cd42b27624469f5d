package train

import (
	"context"
	"errors"
	"fmt"

	"starling/core/checkpoint"
	"starling/core/device"
)

// Generate draws text from a checkpoint of the spec's model, the newest good one in dir or with best the one
// that evaluated best. x replaces the spec's samples; its Forward, Tokenizer and Context come from them.
func Generate(ctx context.Context, s *Spec, dev device.Device, dir string, best bool, x Sample) (text string, step int, err error) {
	c, err := open(ctx, dir, best)
	if err != nil {
		return "", 0, err
	}
	defer c.Close()
	only := *s
	only.Samples, only.Evaluate = []Sample{x}, nil
	p, err := Plan(&only, 1, 0)
	if err != nil {
		return "", 0, err
	}
	e := &engine{spec: &only, plan: p, dev: dev, collect: &collector{}}
	defer e.close()
	for _, space := range []device.Space{device.Params, device.Work, device.IO} {
		if e.mem.Arenas[space], err = dev.Alloc(space.String(), p.ArenaBytes[space]); err != nil {
			return "", 0, fmt.Errorf("allocating %d bytes for %v: %w", p.ArenaBytes[space], space, err)
		}
	}
	if err := e.loadWeights(c); err != nil {
		return "", 0, fmt.Errorf("loading %s: %w", c.Path(), err)
	}
	t, err := newTextSampler(&only.Samples[0], s.Seed, e, e.mem, 0)
	if err != nil {
		return "", 0, err
	}
	text, err = t.draw(ctx, int(c.Step()))
	return text, int(c.Step()), err
}

// open opens the checkpoint to read from.
func open(ctx context.Context, dir string, best bool) (*checkpoint.Checkpoint, error) {
	if best {
		e, err := checkpoint.Best(dir)
		if errors.Is(err, checkpoint.ErrNone) {
			return nil, fmt.Errorf("no checkpoint of %s was marked as best; leave --best out for the newest", dir)
		}
		if err != nil {
			return nil, err
		}
		return checkpoint.Open(e.Path)
	}
	c, _, err := checkpoint.Latest(ctx, dir)
	return c, err
}

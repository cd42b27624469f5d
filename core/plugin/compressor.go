package plugin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"starling/core/compress"
	"starling/sdk"
	pb "starling/sdk/proto/v1"
)

// Compressor is a plugin's way of compressing gradients, with its settings. It implements compress.External; a Coder carries it out.
type Compressor struct {
	Use      *Use
	Settings map[string]any
	Layout   sdk.Layout
}

var _ compress.External = (*Compressor)(nil)

const layoutTimeout = startTimeout

// AskCompressor starts a plugin for the layout of its encodings, and ends it.
func AskCompressor(ctx context.Context, u *Use, settings map[string]any) (*Compressor, error) {
	for try := 1; ; try++ {
		l, err := askLayout(ctx, u, settings)
		var killed *killedError
		if err == nil {
			return &Compressor{u, settings, l}, nil
		}
		if !errors.As(err, &killed) || try == describeTries {
			return nil, err
		}
	}
}

func askLayout(ctx context.Context, u *Use, settings map[string]any) (sdk.Layout, error) {
	if err := u.verify(); err != nil {
		return sdk.Layout{}, err
	}
	p, err := Start(ctx, u.Found, StartOptions{Threads: 1})
	if err != nil {
		return sdk.Layout{}, err
	}
	defer p.Kill()
	ctx, cancel := context.WithTimeout(ctx, layoutTimeout)
	defer cancel()
	return setUpCompressor(ctx, p, &pb.CompressorSetupRequest{Settings: values(settings)})
}

// setUpCompressor tells a process what it is to do.
func setUpCompressor(ctx context.Context, p *Process, r *pb.CompressorSetupRequest) (sdk.Layout, error) {
	answer, err := pb.NewCompressorClient(p.conn).Setup(ctx, r)
	if err != nil {
		p.child.settle()
		return sdk.Layout{}, p.ended(fmt.Errorf("plugin %s: setting it up: %w%s", p.Name, plain(err), p.out.quoted()))
	}
	l := sdk.Layout{Head: int(answer.Head), Block: int(answer.Block), BlockBytes: int(answer.BlockBytes)}
	if err := l.Validate(); err != nil {
		return l, fmt.Errorf("plugin %s: %w", p.Name, err)
	}
	return l, nil
}

func values(settings map[string]any) map[string]*pb.Value {
	out := map[string]*pb.Value{}
	for k, v := range settings {
		out[k] = sdk.ToValue(v)
	}
	return out
}

// Size is the number of bytes of n elements.
func (c *Compressor) Size(n int) int { return c.Layout.Size(n) }

// String is the canonical form. The checksum is not part of it, as with optimizers.
func (c *Compressor) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "plugin %s %s(%d + %d bytes for %d elements", c.Use.Manifest.Name, c.Use.Manifest.Version, c.Layout.Head, c.Layout.BlockBytes, c.Layout.Block)
	for _, k := range slices.Sorted(maps.Keys(c.Settings)) {
		fmt.Fprintf(&b, ", %s %v", k, c.Settings[k])
	}
	return b.String() + ")"
}

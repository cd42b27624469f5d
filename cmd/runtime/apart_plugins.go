package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"starling/core/cluster"
	"starling/core/plugin"
)

// hand gives a rank on another machine the files of a plugin that its machine lacks.
func (j job) hand(w io.Writer, request []byte) error {
	var r plugin.Request
	if err := json.Unmarshal(request, &r); err != nil {
		return fmt.Errorf("what the rank asks for: %w", err)
	}
	if j.local == nil {
		return fmt.Errorf("the launcher has no plugin %q", r.Name)
	}
	return j.local.Pack(w, r)
}

// resolver finds the plugins that the launcher has found: the same files.
func (j job) resolver(seat *cluster.Seat) plugin.Resolver {
	if j.Plugins == nil {
		return nil
	}
	r := &plugin.Receiver{Plugins: j.Plugins}
	if seat != nil {
		r.Fetch = func(ctx context.Context, r plugin.Request) (io.ReadCloser, error) {
			b, err := json.Marshal(r)
			if err != nil {
				return nil, err
			}
			return seat.Fetch(ctx, b)
		}
		host, _ := os.Hostname()
		r.Log = func(text string) { fmt.Fprintf(os.Stderr, "rank %d on host %s: %s\n", seat.Rank(), host, text) }
	}
	return r
}

// attendWithout is attend where the recipe does not load because plugins are missing: process 0 may have them.
func attendWithout(ctx context.Context, stop <-chan struct{}, s *cluster.Started, o execOptions, path string, local *plugin.Local, stderr io.Writer) error {
	names := slices.Sorted(maps.Keys(local.Failed))
	fmt.Fprintf(stderr, "process %d of %d asks process 0 for plugin %s, because of this: %v\n", s.Number, s.World, strings.Join(names, ", "), local.Failed[names[0]])
	return attend(ctx, stop, s, o, s.World, path, "")
}

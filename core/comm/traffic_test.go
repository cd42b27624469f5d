package comm

import (
	"context"
	"fmt"
	"strings"
	"testing"
)

// What a rank sends is counted by the kind of link that takes it and by peer, and all of it is.
func TestTrafficByKind(t *testing.T) {
	const world, n = 4, 4 * ChunkAlign * 100
	host := func(r int) string { return fmt.Sprint("host ", r/2) }
	declared := func(t testing.TB) []Transport {
		var hosts []string
		for r := range world {
			hosts = append(hosts, host(r))
		}
		return NewInProcessOn(hosts)
	}
	for _, c := range []struct {
		name          string
		open          func(t testing.TB) []Transport
		near, farther string // the kinds of link to the neighbour and to the others
	}{
		{"in process", func(t testing.TB) []Transport { return inProcess(t, world) }, "memory", "memory"},
		{"in process, on two hosts", declared, "memory", "network"},
		{"shared memory", func(t testing.TB) []Transport { return sharing(t, world) }, "memory", "memory"},
		{"sockets", func(t testing.TB) []Transport { return meshOf(t, world, ShareNever) }, "host", "host"},
		{"shared memory on two hosts", func(t testing.TB) []Transport { return meshOn(t, world, ShareAuto, host) }, "memory", "network"},
		{"sockets on two hosts", func(t testing.TB) []Transport { return meshOn(t, world, ShareNever, host) }, "host", "network"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ts := c.open(t)
			noErrors(t, onAll(t, ts, Options{}, func(ctx context.Context, g *Group) error {
				for range 3 {
					if err := g.AllReduce(ctx, "sum", make([]float32, n)); err != nil {
						return err
					}
				}
				return g.Barrier(ctx, "end")
			}))
			for r, x := range ts {
				var all Traffic
				for p := range ts {
					if p == r {
						continue
					}
					sent := SentTo(x, p)
					all = all.Add(sent)
					if got, want := sent.Total(), x.Counters(p).PayloadSent; got != want {
						t.Errorf("rank %d to rank %d: %d bytes by kind, %d sent", r, p, got, want)
					}
					want := c.farther
					if p/2 == r/2 {
						want = c.near
					}
					var kinds []string
					for kind, n := range map[string]int64{"memory": sent.Memory, "host": sent.Host, "network": sent.Network} {
						if n > 0 {
							kinds = append(kinds, kind)
						}
					}
					if got := strings.Join(kinds, " "); got != want && (got != "" || c.farther == c.near) {
						t.Errorf("rank %d to rank %d: by %q, want %q (%+v)", r, p, got, want, sent)
					}
				}
				if all != SentByKind(x) || all.Total() == 0 || all.Sub(all) != (Traffic{}) {
					t.Errorf("rank %d: %+v to each, %+v in all", r, all, SentByKind(x))
				}
				if c.farther != c.near && (all.Network == 0 || all.Memory+all.Host == 0) {
					t.Errorf("rank %d: %+v within its host and between hosts", r, all)
				}
			}
		})
	}
}

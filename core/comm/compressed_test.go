package comm

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"starling/core/compress"
)

// TestCompressedHierarchy: between hosts a compressed sum is a fraction of the plain one, inside them nothing is lost, and all
// members get the same.
func TestCompressedHierarchy(t *testing.T) {
	const n, hosts, each, lanes = 4 * ChunkAlign * 500, 2, 2, 8
	world := hosts * each
	red, err := NewReduction(lanes, Assign(lanes, world))
	if err != nil {
		t.Fatal(err)
	}
	values := laneValues(lanes, n)
	want := treeSumOf(values, Tree{lanes}.Root())
	ts := meshOn(t, world, ShareAuto, func(r int) string { return fmt.Sprint("host ", r/each) })
	between := func() (bytes int64) {
		for r := range world {
			for m := range world {
				if r/each != m/each {
					bytes += ts[r].Counters(m).PayloadSent
				}
			}
		}
		return bytes
	}
	var got [4][]float32
	before := int64(0)
	noErrors(t, onAll(t, ts, Options{}, func(ctx context.Context, g *Group) error {
		if g.hosts == nil {
			return errors.New("the group has no hosts")
		}
		at := g.Hosting().Sum(n)
		if at.Contributors != hosts || at.Contributor != g.Rank()/each || at.Len() != n/each || at.Chunk.Len() != n/each/hosts {
			return fmt.Errorf("member %d compresses %+v", g.Rank(), at)
		}
		s := compress.NewStream(compress.Config{Kind: compress.Int8, Block: 64}, at.Len(), at.Chunk.Len())
		own, dst := runFold(red.Fold(g.Rank()), values), make([]float32, n)
		c, err := g.PrepareAllReduceCompressed("gradient", red, own, dst, s)
		if err != nil {
			return err
		}
		if err := g.Barrier(ctx, "start"); err != nil {
			return err
		}
		if g.Rank() == 0 {
			before = between()
		}
		if err := c.Run(ctx); err != nil {
			return err
		}
		got[g.Rank()] = dst
		return nil
	}))
	for r := range got {
		for i := range want {
			if d := got[r][i] - want[i]; got[r][i] != got[0][i] || d > 0.2 || d < -0.2 {
				t.Fatalf("rank %d, element %d: %v, want about %v and as on rank 0, %v", r, i, got[r][i], want[i], got[0][i])
			}
		}
	}
	plain := int64(2 * 2 * (hosts - 1) * 4 * n / 2)
	if crossed := between() - before; crossed > plain*28/100 {
		t.Errorf("%d bytes crossed between hosts, %d would uncompressed", crossed, plain)
	}
}

// liar sends what no codec makes.
type liar struct{ *compress.Stream }

func (l liar) Send(dst []byte, own [][]float32, at int) error {
	err := l.Stream.Send(dst, own, at)
	for i := range dst {
		dst[i] = 0xff
	}
	return err
}

// TestCompressedNonsenseIsRefused: a member that sends nonsense is named, and nobody waits for it.
func TestCompressedNonsenseIsRefused(t *testing.T) {
	red, err := NewReduction(3, Assign(3, 3))
	if err != nil {
		t.Fatal(err)
	}
	for r, err := range onAll(t, inProcess(t, 3), Options{}, func(ctx context.Context, g *Group) error {
		s := compress.NewStream(compress.Config{Kind: compress.TopK, Ratio: 0.1}, 600, 200)
		var z Compressor = s
		if g.Rank() == 1 {
			z = liar{s}
		}
		v := make([]float32, 600)
		c, err := g.PrepareAllReduceCompressed("gradient", red, [][]float32{v}, v, z)
		if err != nil {
			return err
		}
		return c.Run(ctx)
	}) {
		var peer *PeerError
		if !errors.As(err, &peer) || peer.Rank != 1 || !strings.Contains(err.Error(), "compressed gradient") {
			t.Errorf("rank %d: %v, want an error that names rank 1", r, err)
		}
	}
}

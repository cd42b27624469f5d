package comm_test

import (
	"sync"
	"testing"

	"starling/core/comm"
)

// BenchmarkAllReduce sums a 24 MB bucket over two ranks; bytes are those of the bucket. Allocations are those of one rank
// after warm-up.
func BenchmarkAllReduce(b *testing.B) {
	const n = 6 << 20
	for name, open := range map[string]func(b *testing.B) []comm.Transport{
		"inprocess": func(*testing.B) []comm.Transport { return comm.NewInProcess(2) },
		"unix":      func(b *testing.B) []comm.Transport { return mesh(b, 2, unixAddrs(b, 2)) },
		"shm":       func(b *testing.B) []comm.Transport { return sharedMesh(b, 2) },
		"tcp":       func(b *testing.B) []comm.Transport { return mesh(b, 2, tcpAddrs(2)) },
	} {
		b.Run(name, func(b *testing.B) {
			ts := open(b)
			var groups [2]*comm.Group
			var bufs [2][]float32
			for r := range groups {
				g, err := comm.NewGroup(ts[r], "data", []int{0, 1}, comm.Options{})
				if err != nil {
					b.Fatal(err)
				}
				groups[r], bufs[r] = g, make([]float32, n)
			}
			step := func() {
				var wg sync.WaitGroup
				for r, g := range groups {
					wg.Go(func() {
						if err := g.AllReduce(b.Context(), "bucket", bufs[r]); err != nil {
							b.Error(err)
						}
					})
				}
				wg.Wait()
			}
			step()
			b.SetBytes(4 * n)
			b.ReportAllocs()
			b.ResetTimer()
			for b.Loop() {
				step()
			}
			b.StopTimer()
			for r, g := range groups {
				_ = g.Close()
				defer ts[r].Close()
			}
		})
	}
}

// BenchmarkHandOver is what a collective over messages costs besides its messages: a group of one has none. Most of it is the
// hand-over to the group's worker and back.
func BenchmarkHandOver(b *testing.B) {
	g, err := comm.NewGroup(comm.NewInProcess(1)[0], "alone", []int{0}, comm.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer g.Close()
	c, err := g.PrepareAllReduceOf("bucket", make([]byte, 4<<10), comm.Float32, comm.CombineSum)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if err := c.Start().Wait(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

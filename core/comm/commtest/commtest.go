// Package commtest is the conformance suite of core/comm: what every transport must do, and what collectives over it must
// give. A transport runs it with Run in its own tests.
//
// It knows nothing of how a transport works, only how to get one for every rank of a world.
package commtest

import (
	"fmt"
	"sync"
	"testing"

	"starling/core/comm"
)

// Make returns connected transports for a world, one per rank, which the suite closes.
type Make func(t *testing.T, world int) []comm.Transport

// Run runs the whole suite. framed says that the transport has a wire, whose counters exceed those of the payload.
func Run(t *testing.T, open Make, framed bool) {
	with := func(world int, f func(t *testing.T, ts []comm.Transport)) func(*testing.T) {
		return func(t *testing.T) {
			ts := open(t, world)
			t.Cleanup(func() { CloseAll(t, ts) })
			f(t, ts)
		}
	}
	single := func(world int, f func(t *testing.T, ts []comm.Transport)) func(*testing.T) {
		return with(world, func(t *testing.T, ts []comm.Transport) {
			for r := range ts {
				ts[r] = prompt{ts[r]}
			}
			f(t, ts)
		})
	}
	t.Run("message", single(2, message))
	t.Run("lengths", single(2, lengths))
	t.Run("empty", single(2, empty))
	t.Run("many", single(3, many))
	t.Run("address", single(2, address))
	t.Run("notices", single(2, notices))
	t.Run("close", single(3, closing))
	t.Run("fail", single(3, failing))
	t.Run("counters", single(2, func(t *testing.T, ts []comm.Transport) { counters(t, ts, framed) }))
	for _, world := range []int{1, 2, 3, 5} {
		t.Run(fmt.Sprintf("collectives%d", world), with(world, collectives))
		t.Run(fmt.Sprintf("exchanges%d", world), with(world, exchanges))
		t.Run(fmt.Sprintf("compressed%d", world), with(world, compressedSums))
		t.Run(fmt.Sprintf("elements%d", world), with(world, elements))
		t.Run(fmt.Sprintf("typed%d", world), with(world, typedMoves))
	}
	t.Run("types", with(3, types))
	t.Run("lists", with(3, lists))
	t.Run("axes", with(6, axes))
	t.Run("axes at work at once", with(6, axesAtWork))
	t.Run("pairs", with(3, pairs))
	t.Run("groups", with(3, groups))
	t.Run("bytes", with(4, sentBytes))
}

// CloseAll closes the transports at once, as the ranks of a job do.
func CloseAll(t *testing.T, ts []comm.Transport) {
	var wg sync.WaitGroup
	for _, x := range ts {
		wg.Go(func() {
			if err := x.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

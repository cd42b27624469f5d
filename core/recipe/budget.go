package recipe

import (
	"fmt"
	"runtime/metrics"
	"time"

	"go.starlark.net/starlark"
)

// What a recipe may use. Starlark counts steps itself; depth is looked at every checkSteps steps, and memory by a watch beside,
// because a few steps can double a list again and again. One operation may still take what Starlark lets it
// (a repetition of up to 2^30 elements).
const (
	checkSteps = 10_000
	maxDepth   = 1_000     // calls inside calls, give or take what checkSteps add
	maxHeap    = 256 << 20 // bytes of growth
	watchEvery = 2 * time.Millisecond
)

const (
	tooManySteps = "stopped after %d steps; a recipe only describes a run, put the work in ops"
	tooDeep      = "calls are nested too deeply; a function that calls itself needs a case that does not"
	tooLarge     = "stopped because the recipe takes more than %d MB of memory; a recipe only describes a run, put the work in ops"
)

// thread makes a thread with a budget of steps.
func (s *session) thread(steps uint64) *starlark.Thread {
	t := &starlark.Thread{Name: s.name, Load: s.load}
	t.SetLocal(localSession, s)
	t.Print = func(_ *starlark.Thread, msg string) {
		if s.options.Print != nil {
			s.options.Print(visible(msg))
		}
	}
	t.SetMaxExecutionSteps(min(checkSteps, steps))
	t.OnMaxSteps = func(t *starlark.Thread) {
		t.SetMaxExecutionSteps(min(t.ExecutionSteps()+checkSteps, max(steps, t.ExecutionSteps()+1)))
		switch {
		case t.ExecutionSteps() >= steps:
			t.Cancel(fmt.Sprintf(tooManySteps, steps))
		case t.CallStackDepth() > maxDepth:
			t.Cancel(tooDeep)
		}
	}
	return t
}

// watch cancels the thread when the heap grows beyond its bound. The caller calls the result when the thread is done.
func watch(t *starlark.Thread) (stop func()) {
	start := heap()
	done := make(chan struct{})
	go func() {
		tick := time.NewTicker(watchEvery)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				if heap() > start+maxHeap {
					t.Cancel(fmt.Sprintf(tooLarge, maxHeap>>20))
					return
				}
			}
		}
	}()
	return func() { close(done) }
}

// heap is the memory of objects on the Go heap, in bytes.
func heap() uint64 {
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

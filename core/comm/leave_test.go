package comm

import (
	"errors"
	"runtime"
	"testing"
)

// TestAFailingGroupKeepsItsMemory closes groups while a failure is being told: the shared memory must stay until that is done.
// (A touch of unmapped memory kills the test binary.)
func TestAFailingGroupKeepsItsMemory(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(8))
	for range 200 {
		ts := sharing(t, 2)
		var groups []*Group
		for r := range ts {
			g, err := NewGroup(ts[r], "x", []int{0, 1}, Options{})
			if err != nil {
				t.Fatal(err)
			}
			groups = append(groups, g)
		}
		for r := range ts {
			_ = ts[r].Close()
		}
		for _, g := range groups {
			go g.fail(errors.New("lost"), false)
		}
		runtime.Gosched()
		for _, g := range groups {
			_ = g.Close()
		}
	}
}

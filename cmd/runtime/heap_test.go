package main

import (
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"starling/core/device"
	"starling/core/device/cpu"
)

// heapSites is how many objects each place below core/device and sdk/vec has allocated, by the heap profile.
func heapSites() map[string]int64 {
	runtime.GC() // the profile is that of the collection before the last
	runtime.GC()
	var records []runtime.MemProfileRecord
	for n := 1000; ; n *= 2 {
		records = make([]runtime.MemProfileRecord, n)
		if got, ok := runtime.MemProfile(records, true); ok {
			records = records[:got]
			break
		}
	}
	sites := map[string]int64{}
	for _, r := range records {
		frames := runtime.CallersFrames(r.Stack())
		for {
			f, more := frames.Next()
			if f.Function == "runtime.acquireSudog" { // a thread that parked: once in a while, and not in every step
				break
			}
			if strings.HasPrefix(f.Function, "starling/core/device") || strings.HasPrefix(f.Function, "starling/sdk/vec") {
				sites[f.Function] += r.AllocObjects
				break
			}
			if !more {
				break
			}
		}
	}
	return sites
}

// The heap profile of several steps holds nothing of kernels, pool and programs. TestAStepAllocatesNothing counts; this says where.
func TestAStepLeavesTheHeapProfileAlone(t *testing.T) {
	defer func(rate int) { runtime.MemProfileRate = rate }(runtime.MemProfileRate)
	runtime.MemProfileRate = 1 // every object
	for _, precision := range []string{"fp32", "bf16"} {
		t.Run(precision, func(t *testing.T) {
			dev, err := cpu.Open(cpu.Config{Threads: 2})
			if err != nil {
				t.Fatal(err)
			}
			defer dev.Close()
			b, err := bindRecipe(t.Context(), dev, filepath.Join("..", "..", "recipes", "small_gpt.star"), []string{"micro_batch=1", "precision=" + precision})
			if err != nil {
				t.Fatal(err)
			}
			defer b.close()
			env := &device.Env{FirstInLane: true, LastInLane: true, LastOnRank: true}
			before := heapSites()
			if len(before) == 0 {
				t.Fatal("the profile does not even hold what binding the programs allocated")
			}
			const steps = 3
			for range steps {
				for _, p := range b.programs {
					if err := p.Run(env); err != nil {
						t.Fatal(err)
					}
				}
			}
			for site, n := range heapSites() {
				if more := n - before[site]; more >= steps {
					t.Errorf("%d steps allocate %d objects in %s", steps, more, site)
				}
			}
		})
	}
}

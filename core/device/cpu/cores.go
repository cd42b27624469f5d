package cpu

import (
	"math"
	"runtime"
	"sync"
)

// atStart is what the Go runtime found usable (the process's affinity, and control groups as far as it reads them) before anything made
// room for more goroutines.
var atStart = runtime.GOMAXPROCS(0)

// quota is the processors' time that control groups leave this process, in cores; 0 if they set no limit.
var quota = sync.OnceValue(readQuota)

// Cores is how many threads this process can run at once: the processors that it may use, or the part of their time that control groups
// leave it, rounded up.
func Cores() int { return coresOf(atStart, quota()) }

func coresOf(processors int, quota float64) int {
	if quota > 0 {
		return min(processors, max(1, int(math.Ceil(quota))))
	}
	return processors
}

// maySpin reports whether idle threads may wait awake: if every rank's threads have a core each, for all of the time.
func maySpin(threads, ranks, processors int, quota float64) bool {
	wanted := threads * ranks
	return wanted <= processors && (quota <= 0 || float64(wanted) <= quota)
}

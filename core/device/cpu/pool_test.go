package cpu

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Every task of every run happens once and is finished when run returns, for jobs of any size in any
// order, whether idle threads spin or park, and after pauses long enough that they have parked.
func TestPoolRunsEveryTaskOnce(t *testing.T) {
	for _, threads := range []int{1, 2, 3, 8} {
		for _, spin := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d threads, spin %v", threads, spin), func(t *testing.T) {
				p := newPool(threads, spin)
				defer p.close()
				var jobs []*job
				var counts [][]int // plain integers: the race detector sees a missing order
				for _, n := range []int{1, 2, 3, 17, 100} {
					c := make([]int, n)
					counts = append(counts, c)
					jobs = append(jobs, &job{n: int64(n), fn: func(thread, task int) {
						if thread < 0 || thread >= threads {
							t.Errorf("thread %d of %d", thread, threads)
						}
						c[task]++
					}})
				}
				for round := 1; round <= 400; round++ {
					if round%100 == 0 {
						time.Sleep(4 * spinFor)
					}
					for k, j := range jobs {
						p.run(j)
						for task, got := range counts[k] {
							if got != round {
								t.Fatalf("round %d: task %d of job %d ran %d times", round, task, k, got)
							}
						}
					}
				}
			})
		}
	}
}

// A thread's tasks do not overlap: scratch memory by thread number is safe.
func TestPoolThreadsRunOneTaskAtATime(t *testing.T) {
	p := newPool(4, true)
	defer p.close()
	var busy [4]atomic.Bool
	j := &job{n: 64, fn: func(thread, _ int) {
		if busy[thread].Swap(true) {
			t.Error("two tasks at once on one thread")
		}
		runtime.Gosched()
		busy[thread].Store(false)
	}}
	for range 200 {
		p.run(j)
	}
}

// Several pools with more threads than there are cores, as ranks of one process, all make progress.
func TestPoolsSideBySide(t *testing.T) {
	var ranks sync.WaitGroup
	for range 4 {
		ranks.Go(func() {
			p := newPool(3, false)
			defer p.close()
			var sum atomic.Int64
			j := &job{n: 10, fn: func(_, task int) { sum.Add(int64(task)) }}
			for range 500 {
				p.run(j)
			}
			if got := sum.Load(); got != 500*45 {
				t.Errorf("sum %d", got)
			}
		})
	}
	ranks.Wait()
}

func BenchmarkPool(b *testing.B) {
	for _, threads := range []int{1, 2} {
		b.Run(fmt.Sprintf("threads=%d", threads), func(b *testing.B) {
			p := newPool(threads, true)
			defer p.close()
			j := &job{n: 8, fn: func(int, int) {}}
			b.ReportAllocs()
			for b.Loop() {
				p.run(j)
			}
		})
	}
}

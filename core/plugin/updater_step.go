package plugin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "starling/sdk/proto/v1"
	"starling/sdk/shm"
	"starling/sdk/vec"
)

// Step runs the update with the given number of updates before it, the factor of every gradient, and each group's learning
// rate. On error some tasks may have happened and others not; Pending lists those, and Step goes on with them if it is called again.
func (u *Updater) Step(ctx context.Context, step int, gradScale float64, rates []float64) error {
	for try := 0; ; try++ {
		err := u.attempt(ctx, step, gradScale, rates)
		if err == nil {
			u.forget()
			return nil
		}
		text := ""
		if u.process != nil {
			u.process.Kill()
			text = u.process.out.quoted()
			u.process = nil
			u.finishCopies()
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		err = fmt.Errorf("plugin %s failed in step %d: %w", u.cfg.Use.Name, step, err)
		if try == u.cfg.Retries {
			return &GaveUp{Plugin: u.cfg.Use.Name, Tries: try + 1, Err: err, Output: text}
		}
		u.Restarts++
		u.cfg.log("warn", fmt.Sprintf("%v; it is started again (%d of %d) and goes on where it stopped", err, try+1, u.cfg.Retries))
	}
}

// GaveUp is the failure of a plugin that was started again as often as allowed.
type GaveUp struct {
	Plugin string
	Tries  int
	Err    error
	Output string
}

func (e *GaveUp) Error() string {
	return fmt.Sprintf("%v\n    it was tried %d times%s", e.Err, e.Tries, e.Output)
}

func (e *GaveUp) Unwrap() error { return e.Err }

// attempt runs every task that has not happened. Those are one run of numbers, or a few after a failure.
func (u *Updater) attempt(ctx context.Context, step int, gradScale float64, rates []float64) error {
	if u.process == nil {
		if err := u.Start(ctx); err != nil {
			return err
		}
	}
	if u.journal != nil {
		if err := u.runJournal(ctx, &pb.StepRequest{Step: int64(step), GradScale: gradScale, Rates: rates, Last: int64(len(u.tasks))}); err != nil {
			return err
		}
		if n, first := u.progress(); n < len(u.tasks) {
			return fmt.Errorf("it answered without having computed %s", u.tasks[first])
		}
		return nil
	}
	for lo := 0; lo < len(u.tasks); {
		if u.done[lo] {
			lo++
			continue
		}
		hi := lo
		for hi < len(u.tasks) && !u.done[hi] {
			hi++
		}
		if err := u.run(ctx, &pb.StepRequest{Step: int64(step), GradScale: gradScale, Rates: rates, First: int64(lo), Last: int64(hi)}); err != nil {
			return err
		}
		lo = hi
	}
	return nil
}

// runJournal lets the plugin compute and commit every task that has not happened. It fails where none happens for as long as one
// may take.
func (u *Updater) runJournal(ctx context.Context, r *pb.StepRequest) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	answered := make(chan struct{})
	defer close(answered)
	go func() {
		for before, _ := u.progress(); ; {
			select {
			case <-answered:
				return
			case <-time.After(u.cfg.Timeout):
			}
			n, first := u.progress()
			if n == before && first < len(u.tasks) {
				cancel(fmt.Errorf("it did not finish %s within %v", u.tasks[first], u.cfg.Timeout))
				return
			}
			before = n
		}
	}()
	_, err := pb.NewOptimizerClient(u.process.conn).Step(ctx, r)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case status.Code(err) == codes.Unavailable:
		return fmt.Errorf("%w (%s)", plain(err), u.process.child.status())
	}
	return plain(err)
}

// progress counts the tasks that have happened and finds the first that has not.
func (u *Updater) progress() (n, first int) {
	first = len(u.tasks)
	for i := range u.tasks {
		if u.happened(i) {
			n++
		} else {
			first = min(first, i)
		}
	}
	return n, first
}

// finishCopies makes the copies again that a plugin may have left incomplete.
func (u *Updater) finishCopies() {
	if u.journal == nil {
		return
	}
	for i := range u.journal.Slots() {
		if number, ok := u.journal.Pending(i); ok && number >= 0 && number < int64(len(u.tasks)) && !u.journal.Happened(number) {
			t := u.tasks[number]
			slot := u.whole.Bytes[u.first+int64(i)*u.stride:]
			for _, p := range append([]Place{t.at.Value}, t.at.State...) {
				n := 4 * (t.hi - t.lo)
				copy(u.cfg.Memories[p.Memory].Bytes[p.Offset+4*int64(t.lo):][:n], slot[:n])
				slot = slot[aligned(t.hi-t.lo):]
			}
			u.journal.Committed(i, number)
		}
	}
}

// forget begins the next step.
func (u *Updater) forget() {
	if u.journal != nil {
		u.journal.Reset()
	}
	clear(u.done)
}

// happened reports whether a task has happened.
func (u *Updater) happened(i int) bool {
	if u.journal != nil {
		return u.journal.Happened(int64(i))
	}
	return u.done[i]
}

// run lets the plugin compute a run of tasks and takes the results as they come.
func (u *Updater) run(ctx context.Context, r *pb.StepRequest) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	u.ring.Reset(r.First)
	var stopped atomic.Bool
	answer := make(chan error, 1)
	go func() {
		_, err := pb.NewOptimizerClient(u.process.conn).Step(ctx, r)
		if err != nil {
			stopped.Store(true)
		}
		answer <- err
	}()
	var next atomic.Int64
	next.Store(r.First)
	var mu sync.Mutex
	var bad error
	var wg sync.WaitGroup
	for range min(u.cfg.Threads, u.ring.Slots()) {
		wg.Go(func() {
			for t := next.Add(1) - 1; t < r.Last; t = next.Add(1) - 1 {
				if err := u.take(t, &stopped); err != nil {
					if !errors.Is(err, shm.ErrStopped) {
						mu.Lock()
						if bad == nil {
							bad = err
						}
						mu.Unlock()
					}
					stopped.Store(true)
					return
				}
			}
		})
	}
	wg.Wait()
	if bad != nil {
		cancel()
		<-answer
		return bad
	}
	if err := <-answer; err != nil {
		if status.Code(err) == codes.Unavailable {
			return fmt.Errorf("%w (%s)", plain(err), u.process.child.status())
		}
		return plain(err)
	}
	return nil
}

// take waits for the result of a task, checks it and commits it.
func (u *Updater) take(number int64, stopped *atomic.Bool) error {
	t := u.tasks[number]
	elements, err := u.ring.AwaitReady(number, stopped, time.Now().Add(u.cfg.Timeout))
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("it did not finish %s within %v", t, u.cfg.Timeout)
	}
	if err != nil {
		return err
	}
	if elements != uint64(t.hi-t.lo) {
		return fmt.Errorf("it handed over %d elements for %s, which has %d", elements, t, t.hi-t.lo)
	}
	slot := u.whole.Bytes[u.first+int64(u.ring.Slot(number))*u.stride:]
	whole := u.size == 0
	to, from := make([][]float32, 0, 4), make([][]float32, 0, 4)
	cut := func(p Place, n, skip int) []float32 {
		b := u.cfg.Memories[p.Memory].Bytes[p.Offset+4*int64(skip):]
		result := Floats(slot[:4*n])
		slot = slot[aligned(n):]
		to, from = append(to, Floats(b[:4*n])), append(from, result)
		return result
	}
	if v := cut(t.at.Value, t.hi-t.lo, t.lo); !vec.AllFinite(v) {
		return notFinite("parameter "+t.at.Name, t.at.From+t.lo, v)
	}
	for i, s := range t.at.State {
		n, skip := t.hi-t.lo, t.lo
		if whole {
			n, skip = s.Elements, 0
		}
		if v := cut(s, n, skip); !vec.AllFinite(v) {
			return notFinite(fmt.Sprintf("state %s/%s", t.at.Name, u.cfg.Use.Manifest.Optimizer.State[i].Name), skip, v)
		}
	}
	if whole { // state may have other sizes
		for i := range to {
			copy(to[i], from[i])
		}
	} else {
		vec.CopyEach(to, from)
	}
	u.done[number] = true
	u.ring.Free(number)
	return nil
}

func notFinite(what string, from int, v []float32) error {
	for i, x := range v {
		if x-x != 0 {
			return fmt.Errorf("it computed %v for element %d of %s; nothing of it was stored", x, from+i, what)
		}
	}
	return nil
}

// Pending reports whether some tasks of a step have happened and others have not, and lists by parameter the ranges that have.
func (u *Updater) Pending() (partly bool, happened map[string][][2]int) {
	happened = map[string][][2]int{}
	n := 0
	for i, t := range u.tasks {
		if u.happened(i) {
			n++
			list := happened[t.at.Name]
			lo, hi := t.at.From+t.lo, t.at.From+t.hi
			if k := len(list) - 1; k >= 0 && list[k][1] == lo {
				list[k][1] = hi
			} else {
				happened[t.at.Name] = append(list, [2]int{lo, hi})
			}
		}
	}
	return n > 0, happened
}

package sdk

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "starling/sdk/proto/v1"
	"starling/sdk/shm"
	"starling/sdk/vec"
)

// optimizerServer serves an optimizer: it maps the runtime's memory, copies what each task needs into the task's slot, and lets the
// optimizer renew it there.
type optimizerServer struct {
	pb.UnimplementedOptimizerServer
	optimizer Optimizer
	manifest  Manifest

	params  []serverParam
	task    int64 // most elements of a task; 0: whole parameters
	threads int
	ring    *shm.Ring
	journal *shm.Journal // or this
	slots   []*shm.Mapping
	workers []worker
}

// worker is what one goroutine computes with, made once: a step has very many small tasks.
type worker struct {
	grad     []float32
	state    [][]float32
	tensor   Tensor
	slot, at [][]float32 // parameter, each slot of state and, while they are read, the gradient: in the task's slot, and where they belong
}

type serverParam struct {
	name        string
	shape       []int
	group       int
	from        int
	value, grad []float32
	state       [][]float32
	firstTask   int64
}

// ready reports whether Setup has been called.
func (s *optimizerServer) ready() bool { return s.ring != nil || s.journal != nil }

// Setup maps the memory.
func (s *optimizerServer) Setup(_ context.Context, r *pb.SetupRequest) (*pb.SetupResponse, error) {
	if s.ready() {
		return nil, status.Error(codes.FailedPrecondition, "Setup is called once")
	}
	if err := vec.Init(); err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	s.threads = max(1, int(r.Threads))
	runtime.GOMAXPROCS(s.threads + 1) // one for the messages
	if err := s.mapMemory(r); err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	return &pb.SetupResponse{}, guarded("Setup", func() error { return s.optimizer.Setup(hypersOf(r.Hypers)) })
}

func (s *optimizerServer) mapMemory(r *pb.SetupRequest) error {
	var mem [][]byte
	for _, m := range r.Memories {
		x, err := shm.Map(uintptr(m.Fd), 0, m.Bytes, m.Writable)
		if err != nil {
			return err
		}
		mem = append(mem, x.Bytes)
	}
	view := func(p *pb.Place, n int64) ([]float32, error) {
		if int(p.GetMemory()) >= len(mem) {
			return nil, fmt.Errorf("there is no memory %d", p.GetMemory())
		}
		m := mem[p.GetMemory()]
		if p.GetOffset() < 0 || n < 0 || p.GetOffset()+4*n > int64(len(m)) {
			return nil, fmt.Errorf("%d elements at %d lie outside a memory of %d bytes", n, p.GetOffset(), len(m))
		}
		return floats(m[p.GetOffset() : p.GetOffset()+4*n]), nil
	}
	s.task = r.Scratch.GetTaskElements()
	tasks, most := int64(0), int64(0)
	for _, p := range r.Parameters {
		n := p.To - p.From
		x := serverParam{name: p.Name, group: int(p.Group), from: int(p.From), firstTask: tasks}
		for _, d := range p.Shape {
			x.shape = append(x.shape, int(d))
		}
		var err error
		if x.value, err = view(p.Value, n); err != nil {
			return fmt.Errorf("parameter %s: %w", p.Name, err)
		}
		if x.grad, err = view(p.Gradient, n); err != nil {
			return fmt.Errorf("gradient of %s: %w", p.Name, err)
		}
		for i, place := range p.State {
			v, err := view(place, p.StateElements[i])
			if err != nil {
				return fmt.Errorf("state %d of %s: %w", i, p.Name, err)
			}
			x.state = append(x.state, v)
		}
		tasks += taskCount(n, s.task)
		most = max(most, n)
		s.params = append(s.params, x)
	}
	return s.mapScratch(r.Scratch, tasks, most)
}

func (s *optimizerServer) mapScratch(r *pb.Scratch, tasks, most int64) error {
	fd := uintptr(r.GetMemory().GetFd())
	header, err := shm.Map(fd, 0, shm.HeaderBytes, true)
	if err != nil {
		return err
	}
	if r.Done > 0 {
		done, err := shm.Map(fd, r.Done, 4*max(tasks, 1), true)
		if err != nil {
			return err
		}
		if s.journal, err = shm.NewJournal(header.Bytes, int(r.Count), done.Bytes); err != nil {
			return err
		}
	} else if s.ring, err = shm.NewRing(header.Bytes, int(r.Count)); err != nil {
		return err
	}
	for i := range int64(r.Count) {
		m, err := shm.Map(fd, r.First+i*r.Stride, r.Stride, true)
		if err != nil {
			return err
		}
		s.slots = append(s.slots, m)
	}
	workers := min(s.threads, int(r.Count))
	if s.task > 0 {
		most = min(most, s.task)
	} else {
		workers = 1
	}
	for range workers {
		n := len(s.manifest.Optimizer.State)
		s.workers = append(s.workers, worker{grad: make([]float32, most), state: make([][]float32, n), slot: make([][]float32, n+2), at: make([][]float32, n+2)})
	}
	return nil
}

// taskCount is the number of tasks of a range of n elements.
func taskCount(n, task int64) int64 {
	switch {
	case n == 0:
		return 0
	case task == 0:
		return 1
	}
	return (n + task - 1) / task
}

// Step computes tasks on every thread, in order of their numbers.
func (s *optimizerServer) Step(ctx context.Context, r *pb.StepRequest) (*pb.StepResponse, error) {
	if !s.ready() {
		return nil, status.Error(codes.FailedPrecondition, "Step before Setup")
	}
	var stopped atomic.Bool
	defer context.AfterFunc(ctx, func() { stopped.Store(true) })()
	var next atomic.Int64
	next.Store(r.First)
	var once sync.Once
	var failure error
	var wg sync.WaitGroup
	for k := range s.workers {
		wg.Go(func() {
			defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
			for t := next.Add(1) - 1; t < r.Last && !stopped.Load(); t = next.Add(1) - 1 {
				if s.journal != nil && s.journal.Happened(t) {
					continue
				}
				if err := s.compute(t, r, k, &stopped); err != nil {
					once.Do(func() { failure = err })
					stopped.Store(true)
				}
			}
		})
	}
	wg.Wait()
	if failure != nil && !errors.Is(failure, shm.ErrStopped) {
		return nil, failure
	}
	if err := ctx.Err(); err != nil {
		return nil, status.FromContextError(err).Err()
	}
	return &pb.StepResponse{}, nil
}

// compute runs one task through its slot.
func (s *optimizerServer) compute(task int64, r *pb.StepRequest, k int, stopped *atomic.Bool) error {
	i, _ := slices.BinarySearchFunc(s.params, task+1, func(p serverParam, t int64) int { return int(p.firstTask - t) })
	p := &s.params[i-1] // the last that begins at or before the task; those without elements share their number with the next
	lo, hi := 0, len(p.value)
	if s.task > 0 {
		lo = int((task - p.firstTask) * s.task)
		hi = min(hi, lo+int(s.task))
	}
	number := k
	if s.ring != nil {
		if err := s.ring.AwaitTurn(task, stopped); err != nil {
			return err
		}
		number = s.ring.Slot(task)
	}
	slot := s.slots[number].Bytes
	carve := func(n int) []float32 {
		f := floats(slot[: 4*n : 4*n])
		slot = slot[(4*n+63)/64*64:]
		return f
	}
	w := &s.workers[k]
	t := &w.tensor
	*t = Tensor{Name: p.name, Shape: p.shape, Group: p.group, From: p.from + lo, To: p.from + hi, Step: int(r.Step), Threads: s.threads}
	if s.task > 0 {
		t.Threads = 1
	}
	if p.group < len(r.Rates) {
		t.Rate = r.Rates[p.group]
	}
	t.Param, t.Grad, t.State = carve(hi-lo), w.grad[:hi-lo:hi-lo], w.state
	if s.task > 0 {
		for i := range p.state {
			t.State[i] = carve(hi - lo)
		}
		w.stage(p, lo, hi)
	} else {
		copy(t.Param, p.value)
		copy(t.Grad, p.grad)
		for i, x := range p.state {
			t.State[i] = carve(len(x))
			copy(t.State[i], x)
		}
	}
	if r.GradScale != 1 {
		vec.Scale(t.Grad, t.Grad, float32(r.GradScale))
	}
	if err := s.step(t); err != nil {
		return status.Errorf(codes.Aborted, "Step for %s[%d:%d]%s", p.name, p.from+lo, p.from+hi, err)
	}
	if err := s.replaced(t, s.slots[number].Bytes, p, hi-lo); err != nil {
		return status.Errorf(codes.Aborted, "Step for %s[%d:%d]: %v", p.name, p.from+lo, p.from+hi, err)
	}
	if s.ring != nil {
		s.ring.Ready(task, hi-lo)
		return nil
	}
	return s.commit(task, number, w, p, lo, hi)
}

// stage copies a task's values into its slot, and its gradient.
func (w *worker) stage(p *serverParam, lo, hi int) {
	n := len(p.state)
	w.slot[0], w.at[0] = w.tensor.Param, p.value[lo:hi]
	for i, x := range p.state {
		w.slot[i+1], w.at[i+1] = w.tensor.State[i], x[lo:hi]
	}
	w.slot[n+1], w.at[n+1] = w.tensor.Grad, p.grad[lo:hi]
	vec.CopyEach(w.slot, w.at)
}

// step runs the optimizer; the error is the end of a sentence.
func (s *optimizerServer) step(t *Tensor) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf(" panicked: %s", panicText(p))
		}
	}()
	if err := s.optimizer.Step(t); err != nil {
		return fmt.Errorf(": %w", err)
	}
	return nil
}

// replaced reports a slice that the optimizer has put in the place of one that it was given: results are read from the slot.
func (s *optimizerServer) replaced(t *Tensor, slot []byte, p *serverParam, n int) error {
	given := func(x []float32, n int) bool {
		ok := n == 0 || unsafe.Pointer(unsafe.SliceData(x)) == unsafe.Pointer(unsafe.SliceData(slot))
		slot = slot[(4*n+63)/64*64:]
		return ok
	}
	if !given(t.Param, n) {
		return errors.New("Step must change t.Param in place (copy(t.Param, …)), not replace it")
	}
	for i, x := range p.state {
		if s.task == 0 {
			n = len(x)
		}
		if i >= len(t.State) || !given(t.State[i], n) {
			return fmt.Errorf("Step must change t.State[%d] in place (copy(t.State[%d], …)), not replace it", i, i)
		}
	}
	return nil
}

// commit copies a task's result from its slot to its place, after a look at it. What stage noted counts, not what the optimizer may
// have put into its tensor.
func (s *optimizerServer) commit(task int64, number int, w *worker, p *serverParam, lo, hi int) error {
	slot, at := w.slot[:len(p.state)+1], w.at[:len(p.state)+1]
	for i, x := range slot {
		if vec.AllFinite(x) {
			continue
		}
		what := "parameter " + p.name
		if i > 0 {
			what = fmt.Sprintf("state %s/%s", p.name, s.manifest.Optimizer.State[i-1].Name)
		}
		return notFinite(what, p.from+lo, x)
	}
	s.journal.Computed(number, task)
	vec.CopyEach(at, slot)
	s.journal.Committed(number, task)
	return nil
}

func notFinite(what string, from int, v []float32) error {
	for i, x := range v {
		if x-x != 0 {
			return status.Errorf(codes.Aborted, "it computed %v for element %d of %s; nothing of it was stored", x, from+i, what)
		}
	}
	return nil
}

// panicText describes a panic with the place in the plugin's code where it began.
func panicText(p any) string {
	text := fmt.Sprint(p)
	if e, ok := p.(runtime.Error); ok {
		if _, fault := p.(interface{ Addr() uintptr }); fault {
			text = "it touched memory that is not its own: " + e.Error()
		}
	}
	var at []string
	pcs := make([]uintptr, 32)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs)])
	for f, more := frames.Next(); more && len(at) < 4; f, more = frames.Next() {
		if !strings.HasPrefix(f.Function, "runtime.") && !strings.HasPrefix(f.Function, "starling/sdk.") {
			at = append(at, fmt.Sprintf("%s:%d", f.File, f.Line))
		}
	}
	if len(at) > 0 {
		text += " at " + strings.Join(at, ", ")
	}
	return text
}

// floats is memory as float32 values.
func floats(b []byte) []float32 {
	if len(b) < 4 {
		return nil
	}
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}

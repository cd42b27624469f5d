package plugintest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"time"

	"starling/core/plugin"
	"starling/sdk"
	"starling/sdk/vec"
)

// Check is one property and what came of it.
type Check struct {
	Name string
	Err  error
	// Note is a figure beside the result.
	Note string
	// Skipped says that the property could not be looked at; Note says why.
	Skipped bool
}

// Run checks a plugin of any kind. earlier are versions of an optimizer whose state it must be able to upgrade.
func Run(ctx context.Context, use *plugin.Use, settings map[string]any, report func(Check), earlier ...Earlier) error {
	switch kind := use.Manifest.Kind(); kind {
	case sdk.KindOptimizer:
		return Optimizer(ctx, use, settings, report, earlier...)
	case sdk.KindSink:
		return Sink(ctx, use, settings, report)
	case sdk.KindSchedule:
		return Schedule(ctx, use, settings, report)
	case sdk.KindCompressor:
		return Compressor(ctx, use, settings, report)
	default:
		return fmt.Errorf("plugin %s: there are no checks for a %s", use.Name, kind)
	}
}

// steps is how many updates a check makes: enough for state to matter.
const steps = 6

// Optimizer checks an optimizer plugin and reports each property as it is known. It returns an error if one does not hold.
func Optimizer(ctx context.Context, use *plugin.Use, hypers map[string]any, report func(Check), earlier ...Earlier) error {
	failed := 0
	check := func(name string, f func() (string, error)) {
		note, err := f()
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			failed++
		}
		report(Check{Name: name, Err: err, Note: note})
	}
	s := suite{ctx, use, hypers, shapesFor(use)}
	check("describes itself the same way twice", s.manifest)
	check("takes steps: small, large and empty tensors", s.basic)
	check("is deterministic: another process, more threads", s.deterministic)
	if use.Manifest.Optimizer.Granularity == sdk.Elementwise {
		check("is element-wise: parameters cut at random places", s.elementwise)
	}
	check("has no hidden state: killed between steps", s.hidden)
	check("recovers: killed in the middle of steps", s.recovers)
	check("goes on from saved state", s.roundTrip)
	check("gives finite values for gradients of zero", s.zero)
	for _, old := range earlier {
		check("upgrades the state of "+old.Use.Manifest.Version, func() (string, error) { return s.upgrades(old) })
	}
	if len(earlier) == 0 && len(use.Manifest.Optimizer.UpgradesFrom) > 0 {
		report(noEarlier(use.Manifest))
	}
	check("speed", s.speed)
	if failed > 0 {
		return fmt.Errorf("plugin %s: %d of the checks failed", use.Name, failed)
	}
	return nil
}

type suite struct {
	ctx    context.Context
	use    *plugin.Use
	hypers map[string]any
	shapes [][]int
}

func (s *suite) rank() (*rank, error) { return newRank(s.use, s.hypers, s.shapes) }

func (s *suite) manifest() (string, error) {
	for range 2 {
		m, err := plugin.Describe(s.ctx, s.use.Found)
		if err != nil {
			return "", err
		}
		if !reflect.DeepEqual(m.Proto().String(), s.use.Manifest.Proto().String()) {
			return "", errors.New("the manifest changes from one process to the next")
		}
	}
	return fmt.Sprintf("%s %s", s.use.Manifest.Name, s.use.Manifest.Version), nil
}

// after runs a rank and returns it.
func (s *suite) after(from, to int, o options) (*rank, *plugin.Updater, error) {
	r, err := s.rank()
	if err != nil {
		return nil, nil, err
	}
	u, err := r.run(s.ctx, from, to, o)
	if err != nil {
		r.close()
		return nil, nil, err
	}
	return r, u, nil
}

func (s *suite) basic() (string, error) {
	r, _, err := s.after(0, steps, options{threads: 1})
	if err != nil {
		return "", err
	}
	defer r.close()
	before, err := s.rank()
	if err != nil {
		return "", err
	}
	defer before.close()
	if slices.Equal(before.mem[memParams], r.mem[memParams]) {
		return "", fmt.Errorf("no parameter has changed after %d steps", steps)
	}
	return fmt.Sprintf("%d shapes, %d steps", len(s.shapes), steps), nil
}

// same compares a run with the plain one.
func (s *suite) same(o options) (*plugin.Updater, error) {
	want, _, err := s.after(0, steps, options{threads: 1})
	if err != nil {
		return nil, err
	}
	defer want.close()
	got, u, err := s.after(0, steps, o)
	if err != nil {
		return nil, err
	}
	defer got.close()
	return u, want.differs(got)
}

func (s *suite) deterministic() (string, error) {
	if _, err := s.same(options{threads: 1}); err != nil {
		return "", means(err, "two processes differ: %w")
	}
	if _, err := s.same(options{threads: 4}); err != nil {
		return "", means(err, "one thread and four differ: %w")
	}
	return "", nil
}

func (s *suite) elementwise() (string, error) {
	random := rand.New(rand.NewPCG(3, 4))
	for _, task := range []int{1 << 10, 37, 5} {
		_, err := s.same(options{threads: 2, task: task, cut: func(n int) []int {
			cuts := []int{0, n}
			for range random.IntN(4) {
				if n > 0 {
					cuts = append(cuts, random.IntN(n))
				}
			}
			slices.Sort(cuts)
			return slices.Compact(append([]int{0}, cuts...))
		}})
		if err != nil {
			return "", means(err, "the result depends on how a parameter is cut (here into ranges and tasks of %d elements): %w; ask for whole tensors (sdk.Whole), or let each element's update depend on this element alone", task)
		}
	}
	return "", nil
}

func (s *suite) hidden() (string, error) {
	u, err := s.same(options{threads: 2, before: func(step int, u *plugin.Updater) {
		if step > 0 {
			kill(u)
		}
	}})
	if err != nil {
		return "", means(err, "a process that was started again computes something else: %w; everything that lasts from one step to the next must be in the manifest's state")
	}
	return fmt.Sprintf("killed %d times", u.Restarts), nil
}

func kill(u *plugin.Updater) {
	if p, err := os.FindProcess(u.PID()); err == nil && u.PID() != 0 {
		_ = p.Kill()
	}
}

func (s *suite) recovers() (string, error) {
	random := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0))
	u, err := s.same(options{threads: 2, task: 64, before: func(_ int, u *plugin.Updater) {
		pid := u.PID()
		time.AfterFunc(time.Duration(random.IntN(3000))*time.Microsecond, func() {
			if p, err := os.FindProcess(pid); err == nil && pid != 0 {
				_ = p.Kill()
			}
		})
	}})
	if err != nil {
		return "", fmt.Errorf("after kills at random moments: %w", err)
	}
	return fmt.Sprintf("started again %d times", u.Restarts), nil
}

func (s *suite) roundTrip() (string, error) {
	want, _, err := s.after(0, steps, options{threads: 1})
	if err != nil {
		return "", err
	}
	defer want.close()
	half, _, err := s.after(0, steps/2, options{threads: 1})
	if err != nil {
		return "", err
	}
	defer half.close()
	rest, err := s.rank()
	if err != nil {
		return "", err
	}
	defer rest.close()
	for i := range rest.mem {
		copy(rest.mem[i], half.mem[i])
	}
	if _, err := rest.run(s.ctx, steps/2, steps, options{threads: 1}); err != nil {
		return "", err
	}
	if err := want.differs(rest); err != nil {
		return "", means(err, "parameters and state copied to another rank after %d steps do not go on the same way: %w", steps/2)
	}
	return "", nil
}

func (s *suite) zero() (string, error) {
	r, err := s.rank()
	if err != nil {
		return "", err
	}
	defer r.close()
	_, err = r.run(s.ctx, 0, 2, options{threads: 1, before: func(int, *plugin.Updater) { clear(r.mem[memGrads]) }})
	return "", err
}

// speed compares a step on a few million elements with the same step of the built-in SGD in this process.
func (s *suite) speed() (string, error) {
	shape := []int{2048, 1024}
	if !s.use.Manifest.Optimizer.Takes(2) {
		shape = make([]int, max(1, s.use.Manifest.Optimizer.MinDims))
		shape[0] = 2 << 20
		for i := range shape[1:] {
			shape[1+i] = 1
		}
	}
	r, err := newRank(s.use, s.hypers, [][]int{shape})
	if err != nil {
		return "", err
	}
	defer r.close()
	u, err := plugin.NewUpdater(plugin.UpdaterConfig{Use: s.use, Hypers: s.hypers, Memories: r.memories, Ranges: r.ranges(nil), Threads: 1})
	if err != nil {
		return "", err
	}
	defer u.Close()
	r.gradients(0)
	best, own := time.Hour, time.Hour
	for step := range 4 {
		t0 := time.Now()
		if err := u.Step(s.ctx, step, 1, []float64{1e-3}); err != nil {
			return "", err
		}
		if d := time.Since(t0); step > 0 {
			best = min(best, d)
		}
		t0 = time.Now()
		vec.SGD(r.mem[memParams], r.mem[memGrads], nil, vec.SGDParams{LR: 1e-3, GradScale: 1})
		own = min(own, time.Since(t0))
	}
	n := float64(elements(shape))
	return fmt.Sprintf("%.0f M elements/s on one thread, %.1f times the built-in SGD's time", n/best.Seconds()/1e6, best.Seconds()/own.Seconds()), nil
}

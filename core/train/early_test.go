package train

import (
	"context"
	"crypto/sha256"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"starling/core/comm"
	"starling/core/data"
	"starling/core/device"
	"starling/core/device/cpu"
	"starling/core/optim"
	"starling/core/plan"
)

// Buckets that are updated as they arrive change no weight, loss or norm: at every stage, whatever the lanes and the precision, with parameters
// that are tied, frozen, unreached or larger than a bucket. Each placement runs with every model and, over the models, in both precisions.
func TestUpdatingBucketsAsTheyArriveChangesNoWeight(t *testing.T) {
	for i, model := range []Model{testModel{hidden: 200, classes: 10}, oddModel{}, blockModel{layers: 4}} {
		for j, c := range []struct {
			precision string
			lanes     int
		}{{"fp32", 12}, {"bf16", 6}} {
			var base *Result
			var norms []float64
			for k, p := range []struct {
				ranks, stage, shard int
				noOverlap           bool
			}{{1, 0, 0, false}, {2, 0, 0, false}, {2, 1, 0, false}, {2, 3, 0, true}, {5, 1, 0, false}, {2, 0, 0, true}, {3, 2, 0, false}, {4, 2, 0, false}, {2, 3, 0, false}, {5, 3, 0, false}, {4, 3, 2, false}, {2, 1, 0, true}, {3, 0, 0, false}} {
				if p.ranks > 1 && (i+j+k)%2 == 0 {
					continue
				}
				name := fmt.Sprintf("%T, %s, %d lanes, %+v", model, c.precision, c.lanes, p)
				var got []float64
				r, err := runOn(t, t.Context(), p.ranks, 1, func(rank int, s *Spec, _ *Env) {
					wide(s, c.lanes)
					s.Model, s.Precision, s.ClipNorm, s.Steps, s.Checkpoint = model, c.precision, 0, 3, nil
					s.Mesh.Zero, s.Mesh.Shard, s.Mesh.NoOverlap = p.stage, p.shard, p.noOverlap
					if rank > 0 {
						return
					}
					s.OnStep = func(m Metrics) (Action, error) { got = append(got, m["grad_norm"], m["loss"]); return Action{}, nil }
					if plan, err := Plan(s, p.ranks, 0); err != nil {
						t.Error(err)
					} else if early := plan.Renewals != nil; early != (p.ranks > 1 && !p.noOverlap) {
						t.Errorf("%s: buckets are updated as they arrive: %v", name, early)
					}
				})
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				if base == nil {
					base, norms = r[0], got
				}
				if r[0].WeightsSHA256 != base.WeightsSHA256 || *r[0].EvalLoss != *base.EvalLoss || fmt.Sprint(got) != fmt.Sprint(norms) {
					t.Errorf("%s: weights %.16s, norms and losses %v; want %.16s and %v as on one rank", name, r[0].WeightsSHA256, got, base.WeightsSHA256, norms)
				}
			}
		}
	}
}

// arriving is a bucket that arrives when the test says so.
type arriving struct {
	exchange
	e      *engine
	atOnce bool // else not before somebody waits for it
	came   *int // in the backward pass
	waits  *int // there
}

func (a arriving) start(round int) {
	a.exchange.start(round)
	if h := a.e.early.handle; a.atOnce && h != nil {
		_ = h.Wait(context.Background()) // for the figures too, without which nothing is updated; a failure comes back later
	}
}

func (a arriving) arrived() bool {
	if !a.atOnce || a.exchange.wait(context.Background(), &a.e.trace) != nil {
		return false
	}
	*a.came++
	return true
}

func (a arriving) wait(ctx context.Context, trace *StepTrace) error {
	if !a.atOnce && trace.BackwardEnd.Before(trace.Start) {
		*a.waits++
	}
	return a.exchange.wait(ctx, trace)
}

// withSteps lets one of two ranks use an engine of its own, with data for so many steps.
func withSteps(t *testing.T, rank int, transport comm.Transport, steps int64, change func(*Spec), use func(*engine, *data.Loader) error) error {
	g, err := comm.NewGroup(transport, "data", []int{0, 1}, comm.Options{})
	if err != nil {
		return err
	}
	defer g.Close()
	dev, err := cpu.Open(cpu.Config{Threads: 1, Ranks: 2})
	if err != nil {
		return err
	}
	defer dev.Close()
	s := testSpec(t)
	wide(s, 6) // of two micro-batches: what a lane has summed stays where it is
	s.Mesh.Data = 2
	change(s)
	if err := s.Validate(); err != nil {
		return err
	}
	e, err := newEngine(s, &Env{Rank: rank, World: 2, Group: g, Device: dev, Threads: 1, Observe: func(Event) {}})
	if err != nil {
		return err
	}
	defer e.close()
	if err := e.initialise(s.Seed); err != nil {
		return err
	}
	set, err := s.Data.Source.Dataset()
	if err != nil {
		return err
	}
	sampler, err := data.NewSampler(data.SamplerConfig{Samples: set.Len(), GlobalBatch: s.Data.GlobalBatch, MicroBatch: s.Data.MicroBatch})
	if err != nil {
		return err
	}
	loader, err := data.NewLoader(t.Context(), data.LoaderConfig{Dataset: set, Sampler: sampler, Schedule: e.schedule, Steps: steps})
	if err != nil {
		return err
	}
	defer loader.Close()
	return use(e, loader)
}

// However soon or late the buckets arrive on a rank, it gets the same weights, and its backward pass waits for none.
func TestTheBackwardPassWaitsForNoBucket(t *testing.T) {
	for _, stage := range []int{1, 2} {
		var want string
		for _, atOnce := range [][]bool{{false, false}, {true, true}, {true, false}} { // on each rank
			const steps = 3
			params, renewed, came, waits := make([]string, 2), make([]int, 2), make([]int, 2), make([]int, 2)
			run := func(r int, transport comm.Transport) error {
				return withSteps(t, r, transport, steps, func(s *Spec) { s.ClipNorm, s.Mesh.Zero = 0, stage }, func(e *engine, loader *data.Loader) error {
					for i := range e.collect.buckets {
						e.collect.buckets[i] = arriving{e.collect.buckets[i], e, atOnce[r], &came[r], &waits[r]}
					}
					for i := range steps {
						if _, err := e.step(t.Context(), loader, stepIn{step: i, taken: i, rate: 0.01, scale: 1}); err != nil {
							return err
						}
					}
					params[r] = fmt.Sprintf("%x", sha256.Sum256(e.mem.Arenas[device.Params].Bytes()))
					for _, in := range e.plan.Segments[plan.SegmentMicro].Instrs {
						if in.Kind == device.Renew {
							renewed[r]++
						}
					}
					return nil
				})
			}
			errs := make(chan error)
			for r, transport := range comm.NewInProcess(2) {
				go func() { errs <- run(r, transport) }()
			}
			for range 2 {
				if err := <-errs; err != nil {
					t.Fatal(err)
				}
			}
			if want == "" {
				want = params[0]
			}
			if params[0] != want || params[1] != want {
				t.Errorf("zero %d, arriving at once %v: parameters %.8s and %.8s, want %.8s", stage, atOnce, params[0], params[1], want)
			}
			for r := range 2 {
				// In rounds of lanes the memory of the round before is waited for, not its sums.
				if stage == 1 && waits[r] != 0 {
					t.Errorf("zero %d, arriving at once %v: rank %d waits %d times in the backward passes", stage, atOnce, r, waits[r])
				}
				if want := steps * renewed[r]; renewed[r] < 3 || atOnce[r] && came[r] != want {
					t.Errorf("zero %d, rank %d: %d buckets are updated in the backward passes, want %d", stage, r, came[r], want)
				}
			}
		}
	}
}

// late is the last bucket, of which the test looks at what has been done when it is waited for.
type late struct {
	exchange
	look func()
}

func (l late) wait(ctx context.Context, trace *StepTrace) error {
	l.look()
	return l.exchange.wait(ctx, trace)
}

// Where the whole gradient decides, the buckets that have come add to the norm while the last one and the figures are still on their way.
func TestTheNormIsTakenBesideTheLastBucket(t *testing.T) {
	const unheard = -1
	errs := make(chan error)
	for r, transport := range comm.NewInProcess(2) {
		go func() {
			errs <- withSteps(t, r, transport, 1, func(s *Spec) { s.ClipNorm = 0.1 }, func(e *engine, loader *data.Loader) error {
				last, looked := len(e.collect.buckets)-1, false
				e.waited = []float64{unheard}
				var norms [][]float64
				for _, q := range e.plan.Params {
					norms = append(norms, device.View[float64](e.mem, q.Partials))
					norms[len(norms)-1][0] = math.NaN()
				}
				e.collect.buckets[last] = late{e.collect.buckets[last], func() {
					looked = true
					if !slices.ContainsFunc(norms, func(blocks []float64) bool { return !math.IsNaN(blocks[0]) }) {
						t.Errorf("rank %d: the norm waits for the last of %d buckets", r, last+1)
					}
					if e.waited[0] != unheard {
						t.Errorf("rank %d: the figures are waited for before the norm", r)
					}
				}}
				out, err := e.step(t.Context(), loader, stepIn{rate: 0.01, scale: 1})
				if err == nil && (!looked || last < 1 || out.norm <= 0.1 || len(out.waited) != 2) {
					t.Errorf("rank %d: looked %v, %d buckets, norm %v, figures of %d ranks", r, looked, last+1, out.norm, len(out.waited))
				}
				return err
			})
		}()
	}
	for range 2 {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
}

// A batch that counts nothing moves nothing, and a gradient that is not finite ends the run, also where the update does not wait for
// the whole gradient.
func TestEarlyUpdatesOfBatchesThatCannotCount(t *testing.T) {
	run := func(ranks int, rows ...[]float32) ([]*Result, error) {
		return runOn(t, t.Context(), ranks, 1, func(_ int, s *Spec, _ *Env) {
			one(s, lines(t, 1, rows...), lineModel{}, 1)
			s.Optimizer = optim.AdamW{Schedule: optim.Constant{Rate: 1}, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1} // decays even where the gradient is 0
			s.Mesh.Zero = ranks - 1
		})
	}
	var hash string
	for ranks := 1; ranks <= 4; ranks++ {
		r, err := run(ranks, []float32{4, 0}, []float32{4, 0}, []float32{4, 0}, []float32{4, 0})
		if err != nil {
			t.Fatal(err)
		}
		if hash == "" {
			hash = r[0].WeightsSHA256
		}
		if r[0].WeightsSHA256 != hash {
			t.Errorf("%d ranks: a batch without weight moved the parameters", ranks)
		}
		_, err = run(ranks, []float32{1, 1}, []float32{1, 1}, []float32{1, 1}, []float32{float32(math.NaN()), 1})
		if err == nil || !strings.Contains(err.Error(), "step 0: the gradient of w") || !strings.Contains(err.Error(), "no weights of this step are kept") {
			t.Errorf("%d ranks, not finite: error %v", ranks, err)
		}
	}
}

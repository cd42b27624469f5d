package sdk

import (
	"maps"
	"sync"
	"sync/atomic"
)

// Plugin is what Serve serves: an Optimizer, a Sink, a Schedule or a Compressor.
type Plugin interface {
	// Manifest is called before anything else and must always be the same.
	Manifest() Manifest
}

// Optimizer renews parameters.
//
// The runtime owns the state: an optimizer must compute from what it is given alone, because it may be killed and started again
// between any two calls, and the step is then run again. The same arguments must give the same bits.
type Optimizer interface {
	Plugin
	// Setup is called once, before the first Step, with the recipe's hyper-parameters.
	Setup(h Hypers) error
	// Step renews t.Param and t.State in place. Calls for different tensors, and for different ranges of one, come
	// from several goroutines at a time. An error, a panic or a result that is not finite ends the attempt.
	Step(t *Tensor) error
}

// Tensor is a parameter, or with element-wise granularity a range of one, in one step. The slices may be written and are valid during
// the call only.
type Tensor struct {
	Name  string
	Shape []int // of the whole parameter
	Group int
	// From and To are the range of the parameter's elements that the slices hold: all of them with whole granularity.
	From, To int
	// Step counts the updates taken before this one.
	Step int
	// Rate is the scheduled learning rate of the parameter's group in this step.
	Rate float64

	Param []float32
	// Grad is the gradient, averaged over the batch and clipped. It may be used as scratch.
	Grad []float32
	// State has a slice for each slot of the manifest, in its order.
	State [][]float32

	// Threads is how many goroutines the call may compute on.
	Threads int
}

// Parallel calls f(0) … f(n-1) on up to Threads goroutines and returns when all have returned.
func (t *Tensor) Parallel(n int, f func(i int)) {
	threads := min(max(t.Threads, 1), n)
	var next atomic.Int64
	work := func() {
		for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
			f(i)
		}
	}
	var wg sync.WaitGroup
	var failed atomic.Pointer[panicked]
	for range threads - 1 {
		wg.Go(func() {
			defer func() {
				if p := recover(); p != nil {
					failed.Store(&panicked{p})
				}
			}()
			work()
		})
	}
	work()
	wg.Wait()
	if p := failed.Load(); p != nil {
		panic(p.value)
	}
}

type panicked struct{ value any }

// Hypers are the hyper-parameters of a run, every one of the manifest. Asking for one that the manifest does not have panics.
type Hypers struct{ values map[string]any }

// NewHypers is for tests: the manifest's defaults, with values in their place where given. It panics for values that a recipe could not give.
func NewHypers(m Manifest, values map[string]any) Hypers {
	h := Hypers{map[string]any{}}
	given := maps.Clone(values)
	for _, x := range m.Hypers {
		v, ok := given[x.Name]
		if !ok {
			h.values[x.Name] = x.Default
			continue
		}
		delete(given, x.Name)
		if n, ok := v.(int); ok && x.Type == TypeInt {
			v = int64(n)
		} else if ok && x.Type == TypeFloat {
			v = float64(n)
		}
		if err := x.Check(v); err != nil {
			panic("NewHypers: " + err.Error())
		}
		h.values[x.Name] = v
	}
	for name := range given {
		panic("NewHypers: the manifest has no hyper-parameter " + name)
	}
	return h
}

func get[T any](h Hypers, name string) T {
	v, ok := h.values[name].(T)
	if !ok {
		panic("the manifest has no hyper-parameter " + name + " of the type asked for")
	}
	return v
}

// Float is a number.
func (h Hypers) Float(name string) float64 { return get[float64](h, name) }

// Floats is a list of numbers.
func (h Hypers) Floats(name string) []float64 { return get[[]float64](h, name) }

// Int is a whole number.
func (h Hypers) Int(name string) int { return int(get[int64](h, name)) }

// Bool is a switch.
func (h Hypers) Bool(name string) bool { return get[bool](h, name) }

// String is a text.
func (h Hypers) String(name string) string { return get[string](h, name) }

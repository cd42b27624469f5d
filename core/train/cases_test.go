package train

import (
	"math"
	"runtime"
	"strings"
	"testing"

	"starling/core/data"
	"starling/core/graph"
	"starling/core/optim"
)

// lineModel has one parameter w, a vector as wide as half the features. Its loss is the sum over samples of w·x·m, where a
// sample's features are x followed by the mask m in {0, 1} repeated; the weight is the number of samples with m = 1. With
// tied, w is used twice: the loss is w·x·m + w·x·m.
type lineModel struct{ tied bool }

func (m lineModel) Loss(batch []Input, _ bool) (*graph.Graph, error) {
	b := graph.NewBuilder()
	var x *graph.Value
	for _, in := range batch {
		v := b.Must(graph.OpInput, graph.InputAttrs{Name: in.Name, DType: in.DType, Shape: graph.MakeDims(in.Shape)})[0]
		if in.Name == "features" {
			x = v
		}
	}
	width := x.Shape[1] / 2
	cut := func(from, to int) *graph.Value {
		return b.Must(graph.OpSlice, graph.SliceAttrs{Axis: 1, Start: from, End: to, Size: 2 * width}, x)[0]
	}
	w := b.Must(graph.OpParam, graph.ParamAttrs{Name: "w", Shape: graph.MakeDims([]int{width}), Init: graph.Init{Kind: graph.InitConstant, A: 1}})[0]
	masked := b.Must(graph.OpMul, nil, cut(0, width), cut(width, 2*width))[0]
	all := graph.ReduceAttrs{Axes: graph.MakeDims([]int{0, 1})}
	loss := b.Must(graph.OpSum, all, b.Must(graph.OpMul, nil, masked, w)[0])[0]
	if m.tied {
		loss = b.Must(graph.OpAdd, nil, loss, b.Must(graph.OpSum, all, b.Must(graph.OpMul, nil, masked, w)[0])[0])[0]
	}
	b.Output("loss", loss)
	b.Output("weight", b.Must(graph.OpSum, all, cut(width, width+1))[0])
	return b.G, nil
}

// lines makes a source of samples x, m for lineModel.
func lines(t *testing.T, width int, rows ...[]float32) arraySource {
	t.Helper()
	var f []float32
	for _, r := range rows {
		f = append(f, r[:width]...)
		for range width {
			f = append(f, r[width])
		}
	}
	set, err := data.NewArray(f, []int{2 * width}, make([]int32, len(rows)), 1)
	if err != nil {
		t.Fatal(err)
	}
	return arraySource{set}
}

// one makes the spec one SGD step with learning rate 1 on the given data, in batches of micro samples.
func one(s *Spec, src arraySource, m Model, micro int) {
	*s = Spec{Name: "case", Model: m, Mesh: s.Mesh, Steps: 1, Precision: "fp32",
		Data:      Data{Source: src, GlobalBatch: int(src.set.Len()), MicroBatch: micro},
		Optimizer: optim.SGD{Schedule: optim.Constant{Rate: 1}}}
}

// watch collects the events of rank 0.
func watch(events *[]Event) func(Event) { return func(e Event) { *events = append(*events, e) } }

func last(events []Event, kind string) (e Event) {
	for _, x := range events {
		if x.Kind == kind {
			e = x
		}
	}
	return e
}

// Case 8.
func TestAveragesAreExactOverTokens(t *testing.T) {
	// Two micro-batches of 10 samples: losses 2 of 1 token and 90 of 9 tokens. The mean is 92/10, not (2 + 10)/2.
	rows := [][]float32{{2, 1}}
	for range 9 {
		rows = append(rows, []float32{50, 0})
	}
	for range 9 {
		rows = append(rows, []float32{10, 1})
	}
	rows = append(rows, []float32{50, 0})
	for ranks := 1; ranks <= 2; ranks++ {
		var events []Event
		var after float64
		_, err := runOn(t, t.Context(), ranks, 1, func(rank int, s *Spec, e *Env) {
			one(s, lines(t, 1, rows...), lineModel{}, 10)
			s.Steps = 2 // the second step's loss shows the first step's update
			if rank == 0 {
				e.Observe = watch(&events)
				s.OnStep = func(m Metrics) (Action, error) { after = m["loss"]; return Action{}, nil }
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		var first Event
		for _, e := range events {
			if e.Kind == EventStep && first.Kind == "" {
				first = e
			}
		}
		if got := first.Vals["loss"]; math.Abs(got-9.2) > 1e-6 {
			t.Errorf("%d ranks: mean loss %v, want 9.2", ranks, got)
		}
		if got := first.Vals["grad_norm"]; math.Abs(got-9.2) > 1e-5 {
			t.Errorf("%d ranks: gradient %v, want 9.2", ranks, got)
		}
		if want := 9.2 * (1 - 9.2); math.Abs(after-want) > 1e-4 {
			t.Errorf("%d ranks: loss %v after the update, want %v: the gradient was not averaged over tokens", ranks, after, want)
		}
	}
}

// Case 9.
func TestAMaskedMicroBatchCountsNothing(t *testing.T) {
	var events []Event
	_, err := runOn(t, t.Context(), 1, 1, func(_ int, s *Spec, e *Env) {
		one(s, lines(t, 1, []float32{4, 1}, []float32{4, 1}, []float32{7, 0}, []float32{7, 0}), lineModel{}, 2)
		e.Observe = watch(&events)
	})
	if err != nil {
		t.Fatal(err)
	}
	if m := last(events, EventStep).Vals; m["loss"] != 4 || m["grad_norm"] != 4 {
		t.Errorf("loss %v and gradient %v, want 4 and 4", m["loss"], m["grad_norm"])
	}
}

func TestAWhollyMaskedBatchMovesNothing(t *testing.T) {
	var events []Event
	r, err := runOn(t, t.Context(), 1, 1, func(_ int, s *Spec, e *Env) {
		one(s, lines(t, 1, []float32{4, 0}, []float32{4, 0}), lineModel{}, 1)
		e.Observe = watch(&events)
	})
	if err != nil {
		t.Fatal(err)
	}
	if m := last(events, EventStep).Vals; m["loss"] != 0 {
		t.Errorf("loss %v, want 0", m["loss"])
	}
	before, err := runOn(t, t.Context(), 1, 1, func(_ int, s *Spec, e *Env) {
		one(s, lines(t, 1, []float32{0, 1}, []float32{0, 1}), lineModel{}, 1) // a gradient of exactly 0
	})
	if err != nil {
		t.Fatal(err)
	}
	if r[0].WeightsSHA256 != before[0].WeightsSHA256 {
		t.Error("a batch without weight moved the parameters")
	}
}

// Case 12.
func TestTiedWeightsCountOnceInTheNorm(t *testing.T) {
	var events []Event
	_, err := runOn(t, t.Context(), 1, 1, func(_ int, s *Spec, e *Env) {
		one(s, lines(t, 2, []float32{3, 4, 1}), lineModel{tied: true}, 1)
		e.Observe = watch(&events)
	})
	if err != nil {
		t.Fatal(err)
	}
	// The gradient is (6, 8). Were the uses counted apart, the norm would be √2·5.
	if got := last(events, EventStep).Vals["grad_norm"]; math.Abs(got-10) > 1e-5 {
		t.Errorf("norm %v, want 10", got)
	}
}

func TestClippingScalesTheGradient(t *testing.T) {
	var loss []float64
	_, err := runOn(t, t.Context(), 1, 1, func(_ int, s *Spec, e *Env) {
		one(s, lines(t, 2, []float32{3, 4, 1}), lineModel{}, 1)
		s.ClipNorm, s.Steps = 1, 2
		s.OnStep = func(m Metrics) (Action, error) { loss = append(loss, m["loss"]); return Action{}, nil }
	})
	if err != nil {
		t.Fatal(err)
	}
	// Norm 5 is clipped to 1: w falls by (0.6, 0.8), the loss by 0.6·3 + 0.8·4 = 5.
	if math.Abs(loss[0]-loss[1]-5) > 1e-4 {
		t.Errorf("the loss fell from %v to %v, want by 5", loss[0], loss[1])
	}
}

// Case 13.
func TestEvaluationCountsOptimizerSteps(t *testing.T) {
	var at []int
	_, err := runOn(t, t.Context(), 1, 1, func(_ int, s *Spec, e *Env) { // 12 micro-batches a step
		e.Observe = func(ev Event) {
			if ev.Kind == EventEval {
				at = append(at, ev.Step)
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(at) != 3 || at[0] != 5 || at[1] != 10 || at[2] != 12 {
		t.Errorf("evaluations after steps %v, want 5, 10 and the last, 12", at)
	}
}

func TestEveryRankStopsAtANaN(t *testing.T) {
	nan := float32(math.NaN())
	src := lines(t, 1, []float32{1, 1}, []float32{1, 1}, []float32{1, 1}, []float32{nan, 1}) // unshuffled: rank 1 has it
	_, err := runOn(t, t.Context(), 2, 1, func(_ int, s *Spec, _ *Env) { one(s, src, lineModel{}, 1) })
	if err == nil || !strings.Contains(err.Error(), "step 0: the gradient of w") || !strings.Contains(err.Error(), "not finite") {
		t.Errorf("error %v, want one that names step 0 and parameter w", err)
	}
}

func TestHooksSteerTheRun(t *testing.T) {
	half := 0.5
	var rates []float64
	r, err := runOn(t, t.Context(), 2, 1, func(rank int, s *Spec, _ *Env) {
		s.Optimizer = optim.SGD{Schedule: optim.Constant{Rate: 0.1}}
		s.OnStep = func(m Metrics) (Action, error) {
			if rank == 0 {
				rates = append(rates, m["lr"])
			}
			return Action{LRScale: &half, Stop: m["step"] == 3}, nil
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if r[0].Steps != 3 || r[0].Stopped != "hook" {
		t.Errorf("stopped after %d steps (%q), want 3 (hook)", r[0].Steps, r[0].Stopped)
	}
	if len(rates) != 3 || rates[0] != 0.1 || rates[1] != 0.05 || rates[2] != 0.05 {
		t.Errorf("learning rates %v, want 0.1, then half of it", rates)
	}
}

func TestRanksSendTwiceTheirShareOfTheGradient(t *testing.T) {
	for _, ranks := range []int{2, 4} {
		var gradient, planned int64
		r, err := runOn(t, t.Context(), ranks, 1, func(rank int, s *Spec, _ *Env) {
			s.Data.Lanes, s.Data.GlobalBatch = 8, 48 // aligned ranges
			s.Evaluate, s.Checkpoint = nil, nil
			if rank != 0 {
				return
			}
			p, err := Plan(s, ranks, 0)
			if err != nil {
				t.Error(err)
				return
			}
			for _, b := range p.Buckets {
				gradient += b.Place.Bytes()
			}
			planned = p.Summary().SentBytes
		})
		if err != nil {
			t.Fatal(err)
		}
		// Beside the gradient go the losses and weights of the micro-batches, a few hundred bytes.
		if got := r[0].SentBytes; got < planned || got > planned+600 {
			t.Errorf("%d ranks: rank 0 sent %d bytes a step, want the planned %d and at most 600 for figures", ranks, got, planned)
		}
		// Chunks end at multiples of 64 bytes, so a bucket's may differ by that much.
		if share := 2 * int64(ranks-1) * gradient / int64(ranks); math.Abs(float64(planned-share)) > 0.02*float64(share) {
			t.Errorf("%d ranks: %d bytes planned, want 2(N-1)/N of %d = %d", ranks, planned, gradient, share)
		}
	}
}

func TestReductionsStartBeforeTheBackwardPassEnds(t *testing.T) {
	// In one process the compute goroutines would keep the communication workers off a small machine's processors.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(8))
	early, buckets := 0, 0
	_, err := runOn(t, t.Context(), 2, 1, func(rank int, s *Spec, e *Env) {
		s.Model = deepModel{layers: 12, width: 384}
		s.Data.GlobalBatch, s.Data.MicroBatch, s.Data.Lanes = 128, 64, 2 // work enough that a reduction has time to begin
		s.Mesh.BucketMB, s.Mesh.FirstBucket = 0.6, 0.6                   // a bucket for each layer's 576 KB weight
		s.Evaluate, s.Checkpoint, s.Steps = nil, nil, 24                 // the best of them counts: other work may hold the workers up
		if rank == 0 {
			e.OnTrace = func(tr StepTrace) { early, buckets = max(early, tr.Early()), len(tr.Collectives) }
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if buckets < 8 || early < 6 {
		t.Errorf("%d of %d reductions began before the backward pass ended, want at least 6 of at least 8", early, buckets)
	}
}

// deepModel is a stack of linear layers, for many gradient buckets.
type deepModel struct{ layers, width int }

func (m deepModel) Loss(batch []Input, _ bool) (*graph.Graph, error) {
	b := graph.NewBuilder()
	var x, labels *graph.Value
	for _, in := range batch {
		v := b.Must(graph.OpInput, graph.InputAttrs{Name: in.Name, DType: in.DType, Shape: graph.MakeDims(in.Shape)})[0]
		switch in.Name {
		case "features":
			x = v
		case "labels":
			labels = v
		}
	}
	n := x.Shape[0]
	x = b.Must(graph.OpReshape, graph.ShapeAttrs{Shape: graph.MakeDims([]int{n, x.Shape.Numel() / n})}, x)[0]
	for i := range m.layers {
		out := m.width
		if i == m.layers-1 {
			out = 10
		}
		w := b.Must(graph.OpParam, graph.ParamAttrs{Name: "w" + string(rune('a'+i)), Shape: graph.MakeDims([]int{out, x.Shape[1]}), Init: graph.Init{Kind: graph.InitNormal, B: 0.1}})[0]
		x = b.Must(graph.OpLinear, nil, x, w)[0]
		if i < m.layers-1 {
			x = b.Must(graph.OpReLU, nil, x)[0]
		}
	}
	out := b.Must(graph.OpCrossEntropy, graph.CrossEntropyAttrs{Ignore: -1}, x, labels)
	b.Output("loss", out[0])
	b.Output("weight", out[1])
	return b.G, nil
}

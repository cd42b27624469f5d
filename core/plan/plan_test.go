package plan

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"starling/core/device"
	"starling/core/device/ref"
	"starling/core/graph"
	"starling/core/tensor"
)

var testHyper = [][]float64{
	{1e-2, 0.9, 0.95, 1e-8, 0.1, 0.1, 0.05, 0.5},
	{1e-2, 0.9, 0.95, 1e-8, 0, 0.1, 0.05, 0.5},
}

// oracle computes the gradients of a training graph, summed over micro-batches, by differentiating the traced graph and
// interpreting it in float64: nothing of this package is involved. The graph's own outputs are those of the last one.
func oracle(t failer, g *graph.Graph, params ref.Feeds, batches int, batch func(m int) ref.Feeds, seed float64) (grads map[string][]float64, outputs map[string]*graph.Array) {
	t.Helper()
	g = clone(g)
	b := &graph.Builder{G: g}
	s := b.Must(graph.OpInput, graph.InputAttrs{Name: InputSeed, DType: tensor.F32})[0]
	ds, _, err := graph.Differentiate(g, g.Output(OutputLoss), s)
	if err != nil {
		t.Fatal(err)
	}
	for i, d := range ds {
		b.Output(fmt.Sprintf("d%d", i), d.Value)
	}
	grads = map[string][]float64{}
	for m := range batches {
		feeds := batch(m)
		feeds[InputSeed] = scalar(seed)
		for name, a := range params {
			feeds[name] = a
		}
		out, err := ref.Run(g, feeds)
		if err != nil {
			t.Fatal(err)
		}
		outputs = out
		for i, d := range ds {
			name := d.Param.Attrs.(graph.ParamAttrs).Name
			v := out[fmt.Sprintf("d%d", i)].Data
			if grads[name] == nil {
				grads[name] = make([]float64, len(v))
			}
			for k := range v {
				grads[name][k] += v[k]
			}
		}
	}
	return grads, outputs
}

// near compares with a tolerance relative to the largest element, or to floor: the size of terms that may have cancelled.
func near(t failer, what string, got, want []float64, tol, floor float64) {
	t.Helper()
	scale := floor
	for _, v := range want {
		scale = max(scale, math.Abs(v))
	}
	for i := range want {
		if d := math.Abs(got[i] - want[i]); !(d <= tol*scale) {
			t.Fatalf("%s: element %d is %v, want %v (difference %.2g of a largest %.2g)", what, i, got[i], want[i], d, scale)
		}
	}
}

func paramFeeds(r *rank) ref.Feeds {
	f := ref.Feeds{}
	for _, q := range r.plan.Params {
		f[q.Name] = r.read(q.Place)
	}
	return f
}

// checkStep runs one step on one rank and compares outputs, gradients, norm partials and updated parameters with the oracle.
func checkStep(t failer, g *graph.Graph, s Settings, batch func(m int) ref.Feeds) {
	t.Helper()
	w := newWorld(t, g, s)
	r := w.ranks[0]
	before := paramFeeds(r)
	const seed = 1.0 / 64
	want, outputs := oracle(t, g, before, s.MicroBatches, batch, seed)
	w.step(batch, testHyper, seed)
	for name, o := range r.plan.Segments[SegmentMicro].Outputs {
		near(t, "output "+name, r.read(o).Data, outputs[name].Data, 1e-5, 1)
	}
	for _, q := range r.plan.Params {
		if !q.Trained() {
			near(t, q.Name+", not trained", r.read(q.Place).Data, before[q.Name].Data, 0, 0)
			continue
		}
		// A sum of a few thousand float32 values in any order agrees with the float64 one to 1e-4 of the largest.
		near(t, "gradient of "+q.Name, r.read(q.Uses[0]).Data, want[q.Name], 1e-4, seed)
		total := 0.0
		for _, v := range r.read(q.Partials).Data {
			total += v
		}
		sq := 0.0
		for _, v := range want[q.Name] {
			sq += v * v
		}
		near(t, "squared norm of "+q.Name, []float64{total}, []float64{sq}, 1e-3, seed*seed)
		if slices.Equal(r.read(q.Place).Data, before[q.Name].Data) && sq > 1e-12 {
			t.Fatalf("%s was not updated", q.Name)
		}
		near(t, "first moment of "+q.Name, r.read(q.Slots[0].Place).Data, scaled(want[q.Name], 0.1*0.5), 1e-4, seed/20)
	}
}

func scaled(x []float64, c float64) []float64 {
	y := make([]float64, len(x))
	for i := range x {
		y[i] = c * x[i]
	}
	return y
}

// The strongest test there is: the program after all passes computes what the graph before them says.
func TestProgramComputesTheGraph(t *testing.T) {
	g := gpt(t, tinyGPT, true)
	checkStep(t, g, settings(1, 0), func(m int) ref.Feeds { return randomBatch(g, m, tinyGPT.V) })
}

// The same weights, bit for bit, at every number of ranks: six lanes over one to six ranks, aligned and not, three steps.
func TestPlacementDoesNotChangeBits(t *testing.T) {
	g := gpt(t, gptSize{B: 1, T: 4, C: 8, V: 12, Layers: 1, Heads: 2}, true)
	var want []*graph.Array
	for n := 1; n <= 6; n++ {
		s := settings(n, 0)
		s.BucketBytes = 1 << 10
		w := newWorld(t, g, s)
		for range 3 {
			w.step(func(m int) ref.Feeds { return randomBatch(g, m, 12) }, testHyper, 1.0/64)
		}
		for i, r := range w.ranks {
			var got []*graph.Array
			for _, q := range r.plan.Params {
				got = append(got, r.read(q.Place))
			}
			if want == nil {
				want = got
			}
			for k := range got {
				if !slices.Equal(got[k].Data, want[k].Data) {
					t.Fatalf("%d ranks: rank %d has other bits in %s", n, i, r.plan.Params[k].Name)
				}
			}
			if n > 1 {
				all := make([]int, len(r.plan.Buckets))
				for b := range all {
					all[b] = b
				}
				if len(all) < 3 || !slices.Equal(r.started, all) || !slices.Equal(r.waited, all) {
					t.Fatalf("rank %d of %d started buckets %v and waited for %v, there are %d", i, n, r.started, r.waited, len(all))
				}
			}
		}
	}
}

// Most buckets leave while there is still much of the backward pass to run.
func TestBucketsLeaveDuringBackward(t *testing.T) {
	s := settings(2, 0)
	s.BucketBytes = 4 << 10
	p := mustBuild(t, gpt(t, tinyGPT, true), s)
	var starts []int
	instrs := p.Segments[SegmentMicro].Instrs
	lastForward := 0
	for i := range instrs {
		switch {
		case instrs[i].Kind == device.Start:
			starts = append(starts, i)
		case instrs[i].Kind == device.Kernel && !isBackward(instrs[i].Node):
			lastForward = i
		}
	}
	if len(starts) < 8 {
		t.Fatalf("%d buckets: the model is too small for this test", len(starts))
	}
	if early := starts[len(starts)*3/4]; early <= lastForward || early > len(instrs)-5 {
		t.Fatalf("three quarters of the buckets have left at instruction %d of %d", early, len(instrs))
	}
	if starts[0] > lastForward+(len(instrs)-lastForward)/4 {
		t.Fatalf("the first bucket leaves at instruction %d; backward is %d to %d", starts[0], lastForward, len(instrs))
	}
}

// A frozen parameter and one that the loss does not reach keep their values, and the latter is named.
func TestFrozenAndUnreachedParameters(t *testing.T) {
	m := newTracer(t)
	x := m.input("x", tensor.F32, 3, 4)
	m.b.Block = "body"
	y := m.op(graph.OpMul, nil, m.linear("a", x, 5), m.frozen("scale", 5))
	m.linear("unused", x, 2)
	loss := m.op(graph.OpSum, graph.ReduceAttrs{Axes: graph.MakeDims([]int{0, 1})}, m.op(graph.OpSquare, nil, y))
	m.b.Output(OutputLoss, loss)
	m.b.Output(OutputWeight, m.op(graph.OpConst, graph.FullAttrs{Value: 3}))
	g := m.b.G
	checkStep(t, g, settings(1, 0), func(k int) ref.Feeds { return randomBatch(g, k, 2) })
	p := mustBuild(t, g, settings(1, 0))
	if !slices.Equal(p.Unreached, []string{"unused.weight", "unused.bias"}) {
		t.Errorf("unreached: %v", p.Unreached)
	}
	if len(p.Notes) != 2 || !strings.Contains(p.Notes[0], "unused.weight (block body, model.star:") {
		t.Errorf("notes: %q", p.Notes)
	}
	if p.Param("scale").Trained() || len(p.Param("scale").Slots) != 0 {
		t.Error("the frozen parameter has gradients or state")
	}
}

// Gradients that are views of a product, the seed itself, one value for two parameters, and three uses of one parameter.
func TestGradientsOfEveryForm(t *testing.T) {
	m := newTracer(t)
	x := m.input("x", tensor.F32, 3, 4)
	w := m.param("w", 20)
	y := m.op(graph.OpTanh, nil, m.op(graph.OpLinear, nil, x, m.reshape(w, 5, 4)))
	y = m.op(graph.OpLinear, nil, m.op(graph.OpMul, nil, x, m.slice(y, 1, 0, 4)), m.reshape(w, 5, 4), m.slice(w, 0, 3, 8))
	a, b, c := m.param("a", 3, 5), m.param("b", 3, 5), m.param("c")
	y = m.op(graph.OpMul, nil, y, m.op(graph.OpAdd, nil, a, b))
	loss := m.op(graph.OpSum, graph.ReduceAttrs{Axes: graph.MakeDims([]int{0, 1})}, y)
	m.b.Output(OutputLoss, m.op(graph.OpAdd, nil, loss, c))
	m.b.Output(OutputWeight, m.op(graph.OpConst, graph.FullAttrs{Value: 1}))
	g := m.b.G
	checkStep(t, g, settings(1, 0), func(k int) ref.Feeds { return randomBatch(g, k, 2) })
	p := mustBuild(t, g, settings(2, 1))
	if n := len(p.Param("w").Uses); n < 3 {
		t.Fatalf("w has %d uses", n)
	}
}

func TestSegmentsOverTheSameParameters(t *testing.T) {
	g := gpt(t, tinyGPT, true)
	w := newWorld(t, g, settings(1, 0))
	r := w.ranks[0]
	size := tinyGPT
	size.B = 1
	f := gpt(t, size, false)
	if err := r.plan.AddForward("sample", f); err != nil {
		t.Fatal(err)
	}
	if err := Check(r.plan); err != nil {
		t.Fatal(err)
	}
	for _, sp := range []device.Space{device.Work, device.IO} {
		r.mem.Arenas[sp] = w.alloc(r.plan.ArenaBytes[sp])
	}
	seg := r.plan.Segments["sample"]
	feeds := randomBatch(f, 5, tinyGPT.V)
	ref.Write(device.Tensor{Type: seg.Inputs["tokens"].Type, Arena: r.mem.Arenas[device.IO], Offset: seg.Inputs["tokens"].Offset}, feeds["tokens"])
	w.run(r, "sample", device.Env{})
	for name, a := range paramFeeds(r) {
		feeds[name] = a
	}
	want, err := ref.Run(f, feeds)
	if err != nil {
		t.Fatal(err)
	}
	near(t, "logits", r.read(seg.Outputs["logits"]).Data, want["logits"].Data, 1e-5, 1)
}

func TestMismatchesAreNamed(t *testing.T) {
	build := func(f func(m *tracer)) *graph.Graph {
		m := newTracer(t)
		m.b.Block = "head"
		f(m)
		return m.b.G
	}
	train := func(m *tracer) {
		x := m.linear("out", m.input("x", tensor.F32, 2, 3), 4)
		m.b.Output(OutputLoss, m.op(graph.OpSum, graph.ReduceAttrs{Axes: graph.MakeDims([]int{0, 1})}, x))
		m.b.Output(OutputWeight, m.op(graph.OpConst, graph.FullAttrs{Value: 1}))
	}
	p := mustBuild(t, build(train), settings(1, 0))
	forward := func(name string, f func(m *tracer)) func() error {
		return func() error { return p.AddForward(name, build(f)) }
	}
	for _, c := range []struct {
		name string
		err  func() error
		want string
	}{
		{"parameter of another shape", forward("evaluate", func(m *tracer) { m.b.Output("y", m.linear("out", m.input("x", tensor.F32, 2, 3), 5)) }),
			"segment evaluate: parameter out.weight is f32[5,3] here (block head, model.star:2) and f32[4,3] in the training graph"},
		{"parameter that nobody trains", forward("sample", func(m *tracer) { m.b.Output("y", m.linear("other", m.input("x", tensor.F32, 2, 3), 4)) }),
			"segment sample: parameter other.weight (block head, model.star:2) does not exist in the training graph"},
		{"segment twice", forward("micro", train), "segment micro exists already"},
		{"no loss", func() error {
			_, err := Build(build(func(m *tracer) { m.linear("out", m.input("x", tensor.F32, 2, 3), 4) }), settings(1, 0))
			return err
		}, `the training graph has no output "loss"`},
		{"loss no scalar", func() error {
			_, err := Build(build(func(m *tracer) { m.b.Output("loss", m.linear("out", m.input("x", tensor.F32, 2, 3), 4)) }), settings(1, 0))
			return err
		}, `the training graph's output "loss" is f32[2,4] (block head, model.star:4): it must be an f32 scalar`},
		{"nothing to train", func() error {
			_, err := Build(build(func(m *tracer) {
				m.b.Output("loss", m.op(graph.OpConst, graph.FullAttrs{Value: 1}))
				m.b.Output("weight", m.op(graph.OpConst, graph.FullAttrs{Value: 1}))
			}), settings(1, 0))
			return err
		}, "the loss depends on no trainable parameter"},
		{"optimizer of another arity", func() error {
			s := settings(1, 0)
			s.Update = func(graph.ParamAttrs) (Update, error) {
				return Update{Op: graph.OpAdamW, Attrs: graph.AdamWAttrs{}, Slots: []Slot{{Name: "m"}}}, nil
			}
			_, err := Build(build(train), s)
			return err
		}, "optimizer for parameter out.bias: "},
	} {
		err := c.err()
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v\n   want %s", c.name, err, c.want)
		}
	}
}

// Building leaves the traced graph alone and gives the same plan again.
func TestBuildIsAFunction(t *testing.T) {
	g := gpt(t, tinyGPT, true)
	before := g.String()
	a := dump(t, mustBuild(t, g, settings(3, 1)), "program")
	if g.String() != before {
		t.Fatal("the traced graph has changed")
	}
	for range 5 {
		if dump(t, mustBuild(t, g, settings(3, 1)), "program") != a {
			t.Fatal("a second plan differs")
		}
	}
}

// The places of parameters and state do not depend on the number of ranks.
func TestLayoutDoesNotDependOnTheWorld(t *testing.T) {
	g := gpt(t, tinyGPT, true)
	one, three := mustBuild(t, g, settings(1, 0)), mustBuild(t, g, settings(3, 2))
	for i := range one.Params {
		a, b := one.Params[i], three.Params[i]
		if a.Name != b.Name || a.Place.Offset != b.Place.Offset || !slices.EqualFunc(a.Slots, b.Slots, func(x, y SlotPlace) bool {
			return x.Key == y.Key && x.Place.Offset == y.Place.Offset
		}) {
			t.Errorf("%s lies elsewhere", a.Name)
		}
	}
	if !slices.IsSortedFunc(one.Params, func(a, b Param) int { return strings.Compare(a.Name, b.Name) }) {
		t.Error("parameters are not in order of name")
	}
}

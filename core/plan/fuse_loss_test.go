package plan

import (
	"testing"

	"starling/core/graph"
	"starling/core/tensor"
)

// lossGraph traces a head over 24 rows of 6: linear, cross-entropy, and what change makes of logits and loss.
type lossCase struct {
	name     string
	head     func(m *tracer, x *graph.Value) *graph.Value
	loss     func(m *tracer, logits, loss *graph.Value) *graph.Value
	settings func(s *Settings)
	joined   bool
}

func TestLossIsChunked(t *testing.T) {
	for _, c := range []lossCase{
		{name: "plain", joined: true},
		{name: "bf16", settings: func(s *Settings) { s.Half = tensor.BF16 }, joined: true},
		{name: "with another loss beside it", loss: func(m *tracer, _, loss *graph.Value) *graph.Value {
			w := m.op(graph.OpSum, graph.ReduceAttrs{Axes: graph.MakeDims([]int{0})}, m.param("penalty", 5))
			return m.op(graph.OpAdd, nil, loss, w)
		}, joined: true},
		{name: "fp16, whose logits are rounded by casts", settings: func(s *Settings) { s.Half = tensor.F16 }},
		{name: "switched off", settings: func(s *Settings) { s.LossRows = -1 }},
		{name: "few logits", settings: func(s *Settings) { s.LossRows = 0 }},
		{name: "one chunk", settings: func(s *Settings) { s.LossRows = 24 }},
		{name: "a bias", head: func(m *tracer, x *graph.Value) *graph.Value { return m.linear("head", x, 7) }},
		{name: "a frozen weight", head: func(m *tracer, x *graph.Value) *graph.Value {
			return m.op(graph.OpLinear, nil, x, m.frozen("head", 7, 6))
		}},
		{name: "a scaled loss", loss: func(m *tracer, _, loss *graph.Value) *graph.Value {
			return m.op(graph.OpScale, graph.ScalarAttrs{Value: 0.5}, loss)
		}},
		{name: "logits that a metric reads", loss: func(m *tracer, logits, loss *graph.Value) *graph.Value {
			m.b.Output("highest", m.op(graph.OpMax, graph.ReduceAttrs{Axes: graph.MakeDims([]int{2})}, logits))
			return loss
		}},
		{name: "logits that the loss reads twice", loss: func(m *tracer, logits, loss *graph.Value) *graph.Value {
			return m.op(graph.OpAdd, nil, loss, m.op(graph.OpSum, graph.ReduceAttrs{Axes: graph.MakeDims([]int{0, 1, 2})}, logits))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			trace := func() *graph.Graph {
				m := newTracer(t)
				x := m.op(graph.OpGELU, nil, m.linear("in", m.input("x", tensor.F32, 4, 6, 3), 6))
				var logits *graph.Value
				if c.head != nil {
					logits = c.head(m, x)
				} else {
					logits = m.op(graph.OpLinear, nil, x, m.param("head", 7, 6))
				}
				out := m.ops(graph.OpCrossEntropy, graph.CrossEntropyAttrs{Ignore: -1}, logits, m.input("targets", tensor.I32, 4, 6))
				loss := out[0]
				if c.loss != nil {
					loss = c.loss(m, logits, loss)
				}
				m.b.Output(OutputLoss, loss)
				m.b.Output(OutputWeight, out[1])
				return m.b.G
			}
			s := settings(1, 0)
			s.LossRows = 5
			if c.settings != nil {
				c.settings(&s)
			}
			p := mustBuild(t, trace(), s)
			want := map[bool]int{true: 1}[c.joined]
			if n := count(t, p, "distribute", graph.OpLinearCrossEntropyGrads); n != want {
				t.Fatalf("%d heads are joined, want %d", n, want)
			}
			for _, op := range []*graph.Op{graph.OpCrossEntropy, graph.OpCrossEntropyGrad} {
				if n := count(t, p, "distribute", op); n != 1-want {
					t.Errorf("%d nodes %s are left, want %d", n, op.Name, 1-want)
				}
			}
			if !c.joined {
				return
			}
			if err := p.AddForward("eval", trace()); err != nil {
				t.Fatal(err)
			}
			if err := Check(p); err != nil {
				t.Fatal(err)
			}
			found := 0
			for _, in := range p.Segments["eval"].Instrs {
				if in.Op == graph.OpLinearCrossEntropy {
					found++
				}
			}
			if found != 1 {
				t.Errorf("%d heads are joined in the evaluation, want 1", found)
			}
		})
	}
}

// Heads are joined where logits are large, by the default that recipes get, and the memory that they took falls away.
func TestLargeLogitsTakeTheRoomOfAChunk(t *testing.T) {
	s := settings(1, 0)
	g := gpt(t, gptSize{B: 4, T: 256, C: 16, V: 40000, Layers: 1, Heads: 2}, true)
	work := func(rows int) int64 {
		s.LossRows = rows
		return mustBuild(t, g, s).Segments[SegmentMicro].WorkBytes
	}
	const logits = 4 * 40000
	whole, chunked := work(-1), work(0)
	if whole < 2*1024*logits || chunked > 384*logits+(whole-2*1024*logits)+(4<<20) {
		t.Errorf("a micro-batch takes %s with chunks, %s without", bytesString(chunked), bytesString(whole))
	}
}

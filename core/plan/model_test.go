package plan

import (
	"fmt"
	"testing"

	"starling/core/graph"
	"starling/core/tensor"
)

// tracer builds small graphs the way a recipe does: every node has a block and a position.
type tracer struct {
	t failer
	b *graph.Builder
	n int
}

func newTracer(t failer) *tracer { return &tracer{t: t, b: graph.NewBuilder()} }

func (m *tracer) ops(op *graph.Op, attrs any, in ...*graph.Value) []*graph.Value {
	m.t.Helper()
	m.n++
	m.b.Pos = graph.Position{File: "model.star", Line: m.n}
	out, err := m.b.Apply(op, attrs, in...)
	if err != nil {
		m.t.Fatal(err)
	}
	return out
}

func (m *tracer) op(op *graph.Op, attrs any, in ...*graph.Value) *graph.Value {
	m.t.Helper()
	return m.ops(op, attrs, in...)[0]
}

func (m *tracer) input(name string, d tensor.DType, shape ...int) *graph.Value {
	return m.op(graph.OpInput, graph.InputAttrs{Name: name, DType: d, Shape: graph.MakeDims(shape)})
}

func (m *tracer) param(name string, shape ...int) *graph.Value {
	init := graph.Init{Kind: graph.InitNormal, B: 0.3}
	return m.op(graph.OpParam, graph.ParamAttrs{Name: name, Shape: graph.MakeDims(shape), Init: init})
}

func (m *tracer) frozen(name string, shape ...int) *graph.Value {
	return m.op(graph.OpParam, graph.ParamAttrs{Name: name, Shape: graph.MakeDims(shape), Init: graph.Init{A: 1}, Frozen: true})
}

func (m *tracer) linear(name string, x *graph.Value, out int) *graph.Value {
	return m.op(graph.OpLinear, nil, x, m.param(name+".weight", out, x.Shape[len(x.Shape)-1]), m.param(name+".bias", out))
}

func (m *tracer) norm(name string, x *graph.Value) *graph.Value {
	c := x.Shape[len(x.Shape)-1]
	return m.op(graph.OpLayerNorm, graph.NormAttrs{Eps: 1e-5}, x, m.param(name+".weight", c), m.param(name+".bias", c))
}

func (m *tracer) reshape(x *graph.Value, shape ...int) *graph.Value {
	return m.op(graph.OpReshape, graph.ShapeAttrs{Shape: graph.MakeDims(shape)}, x)
}

func (m *tracer) slice(x *graph.Value, axis, start, end int) *graph.Value {
	return m.op(graph.OpSlice, graph.SliceAttrs{Axis: axis, Start: start, End: end, Size: x.Shape[axis]}, x)
}

// gptSize is a small GPT: batch B, context T, width C, vocabulary V.
type gptSize struct{ B, T, C, V, Layers, Heads int }

var tinyGPT = gptSize{B: 2, T: 8, C: 16, V: 20, Layers: 2, Heads: 2}

// gpt traces a pre-norm transformer with learned positions, dropout and tied embeddings. Training graphs have loss
// and weight, others logits.
func gpt(t testing.TB, s gptSize, training bool) *graph.Graph {
	m := newTracer(t)
	tokens := m.input("tokens", tensor.I32, s.B, s.T)
	var targets, rng *graph.Value
	if training {
		targets = m.input("targets", tensor.I32, s.B, s.T)
		rng = m.input("rng", tensor.U32, 4)
	}
	drop := func(x *graph.Value) *graph.Value {
		if !training {
			return x
		}
		return m.op(graph.OpDropout, graph.DropoutAttrs{P: 0.1, Key: graph.DropoutKey(m.b.Block, m.n)}, x, rng)
	}
	wte := m.param("wte", s.V, s.C)
	x := m.op(graph.OpEmbedding, nil, wte, tokens)
	x = m.op(graph.OpAdd, nil, x, m.param("wpe", s.T, s.C))
	for i := range s.Layers {
		h := fmt.Sprintf("h.%d", i)
		m.b.Block = h + ".attn"
		y := m.norm(h+".ln_1", x)
		qkv := m.linear(h+".attn.qkv", y, 3*s.C)
		var heads []*graph.Value
		for k := range 3 {
			heads = append(heads, m.reshape(m.slice(qkv, 2, k*s.C, (k+1)*s.C), s.B, s.T, s.Heads, s.C/s.Heads))
		}
		y = m.op(graph.OpAttention, graph.AttentionAttrs{Causal: true, Scale: 0.5}, heads...)
		y = m.linear(h+".attn.out", m.reshape(y, s.B, s.T, s.C), s.C)
		x = m.op(graph.OpAdd, nil, x, drop(y))
		m.b.Block = h + ".mlp"
		y = m.linear(h+".mlp.up", m.norm(h+".ln_2", x), 4*s.C)
		y = m.linear(h+".mlp.down", m.op(graph.OpGELU, nil, y), s.C)
		x = m.op(graph.OpAdd, nil, x, drop(y))
	}
	m.b.Block = ""
	logits := m.op(graph.OpLinear, nil, m.norm("ln_f", x), wte)
	if !training {
		m.b.Output("logits", logits)
		return m.b.G
	}
	ce := m.ops(graph.OpCrossEntropy, graph.CrossEntropyAttrs{Ignore: -1}, logits, targets)
	m.b.Output(OutputLoss, ce[0])
	m.b.Output(OutputWeight, ce[1])
	return m.b.G
}

// adamw gives matrices group 0 and everything else group 1.
func adamw(p graph.ParamAttrs) (Update, error) {
	u := Update{Op: graph.OpAdamW, Attrs: graph.AdamWAttrs{}, Slots: []Slot{{Name: "m"}, {Name: "v"}}}
	if p.Shape.N < 2 {
		u.Group = 1
	}
	return u, nil
}

// settings of one rank among world, 6 lanes of 13 micro-batches, buckets small enough that there are several.
func settings(world, rank int) Settings {
	return Settings{World: world, Rank: rank, Lanes: 6, MicroBatches: 13, BucketBytes: 6 << 10, FirstBucketBytes: 1 << 10, Update: adamw}
}

func mustBuild(t failer, g *graph.Graph, s Settings) *Plan {
	t.Helper()
	p, err := Build(g, s)
	if err != nil {
		t.Fatal(err)
	}
	if err := Check(p); err != nil {
		t.Fatal(err)
	}
	return p
}

// failer is what tests and property tests have in common.
type failer interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

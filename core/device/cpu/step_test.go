package cpu

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"starling/core/device"
	"starling/core/graph"
	"starling/core/tensor"
)

// gpt is a step of a byte-level GPT (pre-norm, learned positions, tied embeddings) as a list of bound kernels.
type gpt struct {
	micro, apply []boundOp
	tokens       int
}

type boundOp struct {
	node *graph.Node
	run  func()
}

// gptConfig has the sizes of the quickstart by default.
type gptConfig struct{ layers, width, heads, context, batch, vocab int }

var quickstart = gptConfig{layers: 3, width: 96, heads: 4, context: 64, batch: 16, vocab: 256}

// newGPT traces the model, differentiates it, gives every value memory, reusing that of dead values of the same size, and
// binds one kernel for each node.
func newGPT(t testing.TB, d device.Device, c gptConfig) *gpt {
	b := graph.NewBuilder()
	one := func(op *graph.Op, attrs any, in ...*graph.Value) *graph.Value { return b.Must(op, attrs, in...)[0] }
	param := func(name string, shape ...int) *graph.Value {
		return one(graph.OpParam, graph.ParamAttrs{Name: name, Shape: graph.MakeDims(shape)})
	}
	input := func(name string, dt tensor.DType, shape ...int) *graph.Value {
		return one(graph.OpInput, graph.InputAttrs{Name: name, DType: dt, Shape: graph.MakeDims(shape)})
	}
	reshape := func(x *graph.Value, s ...int) *graph.Value {
		return one(graph.OpReshape, graph.ShapeAttrs{Shape: graph.MakeDims(s)}, x)
	}
	B, T, C, H := c.batch, c.context, c.width, c.heads
	tokens, targets := input("tokens", tensor.I32, B, T), input("targets", tensor.I32, B, T)
	wte, wpe := param("wte", c.vocab, C), param("wpe", T, C)
	x := one(graph.OpAdd, nil, one(graph.OpEmbedding, nil, wte, tokens), wpe)
	norm := func(name string, x *graph.Value) *graph.Value {
		return one(graph.OpLayerNorm, graph.NormAttrs{Eps: 1e-5}, x, param(name+".w", C), param(name+".b", C))
	}
	dense := func(name string, x *graph.Value, in, out int) *graph.Value {
		return one(graph.OpLinear, nil, x, param(name+".w", out, in), param(name+".b", out))
	}
	for l := range c.layers {
		name := fmt.Sprintf("h.%d.", l)
		h := norm(name+"ln1", x)
		qkv := reshape(dense(name+"qkv", h, C, 3*C), B, T, 3, H, C/H)
		var parts []*graph.Value
		for i := range 3 {
			parts = append(parts, reshape(one(graph.OpSlice, graph.SliceAttrs{Axis: 2, Start: i, End: i + 1}, qkv), B, T, H, C/H))
		}
		att := one(graph.OpAttention, graph.AttentionAttrs{Causal: true, Scale: 0.2041}, parts...)
		x = one(graph.OpAdd, nil, x, dense(name+"proj", reshape(att, B, T, C), C, C))
		up := one(graph.OpGELU, nil, dense(name+"up", norm(name+"ln2", x), C, 4*C))
		x = one(graph.OpAdd, nil, x, dense(name+"down", up, 4*C, C))
	}
	logits := one(graph.OpLinear, nil, norm("lnf", x), wte)
	loss := one(graph.OpCrossEntropy, graph.CrossEntropyAttrs{Ignore: -1}, logits, targets)
	seed := input("seed", tensor.F32)
	grads, _, err := graph.Differentiate(b.G, loss, seed)
	if err != nil {
		t.Fatal(err)
	}

	last := map[*graph.Value]int{} // the node that uses a value for the last time
	root := map[*graph.Value]*graph.Value{}
	for i, n := range b.G.Nodes {
		for _, v := range n.Out {
			root[v] = v
			if n.Op.View {
				root[v] = root[n.In[0]]
			}
		}
		for _, v := range n.In {
			last[root[v]] = i
		}
	}
	for _, n := range append(b.G.Inputs(), b.G.Params()...) {
		last[n.Out[0]] = len(b.G.Nodes)
	}
	for _, gr := range grads {
		last[root[gr.Value]] = len(b.G.Nodes)
	}
	free := map[int64][]device.Arena{}
	places := map[*graph.Value]device.Tensor{}
	place := func(ty graph.Type) device.Tensor {
		if f := free[ty.Bytes()]; len(f) > 0 {
			free[ty.Bytes()] = f[:len(f)-1]
			return device.Tensor{Type: ty, Arena: f[len(f)-1]}
		}
		a, err := d.Alloc("test", ty.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(a.Free)
		return device.Tensor{Type: ty, Arena: a}
	}
	bind := func(n *graph.Node, call device.Call) boundOp {
		run, err := d.Bind(call)
		if err != nil {
			t.Fatalf("%s: %v", n.Op.Name, err)
		}
		return boundOp{n, run}
	}
	g := &gpt{tokens: B * T}
	r := rand.New(rand.NewPCG(1, 1))
	for i, n := range b.G.Nodes {
		call := device.Call{Op: n.Op, Attrs: n.Attrs}
		for _, v := range n.In {
			call.In = append(call.In, places[v])
		}
		for k, v := range n.Out {
			if n.Op.View {
				p := places[n.In[0]]
				places[v] = device.Tensor{Type: v.Type, Arena: p.Arena}
				continue
			}
			places[v] = place(v.Type)
			call.Out = append(call.Out, places[n.Out[k]])
		}
		switch {
		case n.Op.Name == "input" && n.Out[0].DType == tensor.I32:
			x := i32(places[n.Out[0]])
			for i := range x {
				x[i] = int32(r.IntN(c.vocab))
			}
		case n.Op.Name == "input" && n.Out[0] == seed:
			f32(places[seed])[0] = 1 / float32(B*T)
		case n.Op.Name == "param":
			x := f32(places[n.Out[0]])
			for i := range x {
				x[i] = float32(0.02 * r.NormFloat64())
				if len(n.Out[0].Shape) == 1 && n.Attrs.(graph.ParamAttrs).Name[len(n.Attrs.(graph.ParamAttrs).Name)-1] == 'w' {
					x[i] = 1
				}
			}
		case n.Op.Name == "input" || n.Op.View:
		default:
			g.micro = append(g.micro, bind(n, call))
		}
		for _, v := range n.In {
			if v = root[v]; last[v] == i {
				last[v] = -1
				free[v.Type.Bytes()] = append(free[v.Type.Bytes()], places[v].Arena)
			}
		}
	}
	clear(free) // what follows lives across steps
	hyper := place(graph.Type{DType: tensor.F64, Shape: tensor.Shape{graph.HyperCount}})
	copy(f64(hyper), []float64{1e-5, 0.9, 0.95, 1e-8, 0.1, 1, 1, 1})
	for _, gr := range grads {
		p := places[gr.Param.Out[0]]
		m, v := place(p.Type), place(p.Type)
		n := &graph.Node{Op: graph.OpAdamW}
		g.apply = append(g.apply, bind(n, device.Call{
			Op: graph.OpAdamW, Attrs: graph.AdamWAttrs{}, In: []device.Tensor{p, places[gr.Value], m, v, hyper}, Out: []device.Tensor{p, m, v},
		}))
	}
	return g
}

// BenchmarkStep reports tokens per second of one micro-batch, forward and backward, with an update of all parameters.
func BenchmarkStep(b *testing.B) {
	for _, threads := range []int{1, 2} {
		b.Run(fmt.Sprintf("threads=%d", threads), func(b *testing.B) {
			g := newGPT(b, open(b, Config{Threads: threads}), quickstart)
			b.ReportAllocs()
			for b.Loop() {
				for _, op := range g.micro {
					op.run()
				}
				for _, op := range g.apply {
					op.run()
				}
			}
			b.ReportMetric(float64(g.tokens)*float64(b.N)/b.Elapsed().Seconds(), "tokens/s")
		})
	}
}

var profile = flag.Bool("opprofile", false, "print where a step's time goes, by operation")

// TestStepProfile prints, with -opprofile, the time of each kind of operation and shape in a step: the least of many runs,
// which other work on the machine disturbs little.
func TestStepProfile(t *testing.T) {
	if !*profile {
		t.Skip("prints a profile; asked for by -opprofile")
	}
	for _, threads := range []int{1, 2} {
		g := newGPT(t, open(t, Config{Threads: threads}), quickstart)
		ops := append(slices.Clone(g.micro), g.apply...)
		least := make([]time.Duration, len(ops))
		for round := range 100 {
			for i, op := range ops {
				start := time.Now()
				op.run()
				if took := time.Since(start); round == 0 || took < least[i] {
					least[i] = took
				}
			}
		}
		spent := map[string]time.Duration{}
		var total time.Duration
		for i, op := range ops {
			key := op.node.Op.Name
			if len(op.node.In) > 1 {
				key += fmt.Sprintf(" %v %v", op.node.In[0].Shape, op.node.In[1].Shape)
			}
			spent[key] += least[i]
			total += least[i]
		}
		keys := slices.Collect(maps.Keys(spent))
		slices.SortFunc(keys, func(a, b string) int { return int(spent[b] - spent[a]) })
		t.Logf("%d threads: %v a step, %.0f tokens/s", threads, total, float64(g.tokens)/total.Seconds())
		for _, k := range keys {
			t.Logf("%9v %5.1f%%  %s", spent[k], 100*spent[k].Seconds()/total.Seconds(), k)
		}
	}
}

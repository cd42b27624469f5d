package graph_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"starling/core/device/ref"
	"starling/core/graph"
	"starling/core/tensor"
)

// One step of a small LLaMA: the float64 loss to seven digits, and every gradient as closely as PyTorch's float32 has it. Rotary
// positions, grouped heads, SwiGLU and residual sums meet here.
func TestLlamaStepAgreesWithPyTorch(t *testing.T) {
	var record struct {
		Config struct {
			Layers, Width, Heads, Context, Batch int
			KVHeads                              int     `json:"kv_heads"`
			Eps                                  float64 `json:"norm_eps"`
			Base                                 float64 `json:"rope_base"`
		}
		Losses []float64 `json:"losses_float64"`
	}
	goldenRecord(t, "llama", &record)
	values, c := goldenTensors(t, "llama"), record.Config
	rows, width := c.Batch*c.Context, c.Width/c.Heads
	feeds := ref.Feeds{}
	b := newBuilder(t)

	param := func(name string) *graph.Value {
		feeds[name] = values["init."+name]
		return b.param(name, feeds[name].Shape...)
	}
	ids := func(name string) *graph.Value {
		v := b.input(name, tensor.I32, c.Batch, c.Context)
		feeds[name] = &graph.Array{Type: v.Type, Data: values[name].Data[:rows]} // the first step's
		return v
	}
	norm := func(name string, x *graph.Value) *graph.Value {
		return b.one(graph.OpRMSNorm, graph.NormAttrs{Eps: c.Eps}, x, param(name+".weight"))
	}
	linear := func(name string, x *graph.Value) *graph.Value {
		return b.one(graph.OpLinear, nil, x, param(name+".weight"))
	}
	heads := func(name string, x *graph.Value, n int) *graph.Value {
		return b.one(graph.OpReshape, graph.ShapeAttrs{Shape: dims(c.Batch, c.Context, n, width)}, linear(name, x))
	}
	turn := func(x *graph.Value) *graph.Value { return b.one(graph.OpRotary, graph.RotaryAttrs{Base: c.Base}, x) }
	attention := func(name string, x *graph.Value) *graph.Value {
		q, k, v := turn(heads(name+".q", x, c.Heads)), turn(heads(name+".k", x, c.KVHeads)), heads(name+".v", x, c.KVHeads)
		y := b.one(graph.OpAttention, graph.AttentionAttrs{Causal: true, Scale: 1 / math.Sqrt(float64(width))}, q, k, v)
		return linear(name+".proj", b.one(graph.OpReshape, graph.ShapeAttrs{Shape: graph.MakeDims(x.Shape)}, y))
	}
	mlp := func(name string, x *graph.Value) *graph.Value {
		return linear(name+".down", b.one(graph.OpSwiGLU, nil, linear(name+".gate", x), linear(name+".up", x)))
	}

	x := b.one(graph.OpEmbedding, nil, param("wte.weight"), ids("tokens"))
	for i := range c.Layers {
		h := fmt.Sprintf("h.%d.", i)
		x = b.one(graph.OpAdd, nil, x, attention(h+"attn", norm(h+"norm_1", x)))
		x = b.one(graph.OpAdd, nil, x, mlp(h+"mlp", norm(h+"norm_2", x)))
	}
	out := b.op(graph.OpCrossEntropy, graph.CrossEntropyAttrs{Ignore: -1}, linear("head", norm("norm_f", x)), ids("targets"))
	loss := b.one(graph.OpDiv, nil, out[0], out[1])
	b.Output("loss", loss)
	feeds["seed"] = &graph.Array{Type: loss.Type, Data: []float64{1}}
	grads := b.differentiate(loss)
	for _, d := range grads {
		b.Output("grad."+d.Param.Attrs.(graph.ParamAttrs).Name, d.Value)
	}
	got, err := ref.Run(b.G, feeds)
	if err != nil {
		t.Fatal(err)
	}
	if l := got["loss"].Data[0]; math.Abs(l-record.Losses[0]) > 1e-7 {
		t.Errorf("the loss is %v, want %v", l, record.Losses[0])
	}
	seen := 0
	for name, want := range values {
		if strings.HasPrefix(name, "grad.") {
			seen++
			expectClose(t, name, got[name], want, 3e-6)
		}
	}
	if seen != len(grads) || seen != len(b.G.Params()) {
		t.Errorf("%d gradients compared, %d computed for %d parameters", seen, len(grads), len(b.G.Params()))
	}
}

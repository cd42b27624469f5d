package graph_test

import (
	"encoding/json"
	"math"
	"os"
	"testing"

	"starling/core/checkpoint"
	"starling/core/device/ref"
	"starling/core/graph"
	"starling/core/tensor"
)

const golden = "../../testdata/golden/"

// goldenTensors reads a file of values that PyTorch made.
func goldenTensors(t *testing.T, name string) map[string]*graph.Array {
	t.Helper()
	list, _, err := checkpoint.ReadSafetensors(golden + name + ".safetensors")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]*graph.Array{}
	for _, x := range list {
		d, err := tensor.ParseDType(string(x.DType))
		if err != nil {
			t.Fatal(err)
		}
		a := graph.NewArray(graph.Type{DType: d, Shape: x.Shape})
		switch d {
		case tensor.F64:
			copy(a.Data, tensor.View[float64](x.Data))
		case tensor.F32:
			for i, v := range tensor.View[float32](x.Data) {
				a.Data[i] = float64(v)
			}
		case tensor.I32:
			for i, v := range tensor.View[int32](x.Data) {
				a.Data[i] = float64(v)
			}
		}
		out[x.Name] = a
	}
	return out
}

func goldenRecord(t *testing.T, name string, into any) {
	t.Helper()
	text, err := os.ReadFile(golden + name + ".json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, into); err != nil {
		t.Fatal(err)
	}
}

// expectClose compares within tol of the greatest magnitude.
func expectClose(t *testing.T, what string, got, want *graph.Array, tol float64) {
	t.Helper()
	if got == nil || want == nil || !got.Shape.Equal(want.Shape) {
		t.Fatalf("%s: got %v, want %v", what, got, want)
	}
	scale := 0.0
	for _, v := range want.Data {
		scale = max(scale, math.Abs(v))
	}
	for i, v := range want.Data {
		if !(math.Abs(got.Data[i]-v) <= tol*scale) {
			t.Fatalf("%s, element %d: got %v, want %v", what, i, got.Data[i], v)
		}
	}
}

type goldenOp struct {
	Name, Op   string
	Attributes struct {
		Causal      bool
		Eps         float64
		Ignore      int
		Stride      []int
		Padding     []int
		Dilation    []int
		Groups      int
		Kernel      []int
		CountPad    *bool `json:"count_include_pad"`
		Approximate string
	}
	Inputs, Gradients []string
}

// build applies the operation as PyTorch's function of that name does.
func (g goldenOp) build(b *builder, in []*graph.Value) *graph.Value {
	a := g.Attributes
	pair := func(p []int, otherwise int) (int, int) {
		if p == nil {
			return otherwise, otherwise
		}
		return p[0], p[1]
	}
	sh, sw := pair(a.Stride, 1)
	ph, pw := pair(a.Padding, 0)
	dh, dw := pair(a.Dilation, 1)
	kh, kw := pair(a.Kernel, 1)
	pool := graph.PoolAttrs{KH: kh, KW: kw, StrideH: sh, StrideW: sw, PadH: ph, PadW: pw}
	switch g.Op {
	case "attention": // PyTorch has [batch, heads, time, width]
		swap := graph.PermAttrs{Perm: dims(0, 2, 1, 3)}
		var qkv []*graph.Value
		for _, v := range in {
			qkv = append(qkv, b.one(graph.OpTranspose, swap, v))
		}
		scale := 1 / math.Sqrt(float64(in[0].Shape[3]))
		return b.one(graph.OpTranspose, swap, b.one(graph.OpAttention, graph.AttentionAttrs{Causal: a.Causal, Scale: scale}, qkv...))
	case "layer_norm":
		return b.one(graph.OpLayerNorm, graph.NormAttrs{Eps: a.Eps}, in...)
	case "rms_norm":
		return b.one(graph.OpRMSNorm, graph.NormAttrs{Eps: a.Eps}, in...)
	case "batch_norm":
		unread := b.one(graph.OpConst, graph.FullAttrs{Shape: dims(in[1].Shape[0])})
		return b.one(graph.OpBatchNorm, graph.NormAttrs{Eps: a.Eps}, append(in, unread, unread)...)
	case "cross_entropy": // PyTorch's is the mean
		out := b.op(graph.OpCrossEntropy, graph.CrossEntropyAttrs{Ignore: a.Ignore}, in...)
		return b.one(graph.OpDiv, nil, out[0], out[1])
	case "conv2d":
		return b.one(graph.OpConv2D, graph.ConvAttrs{StrideH: sh, StrideW: sw, PadH: ph, PadW: pw, DilationH: dh, DilationW: dw,
			Groups: max(a.Groups, 1)}, in...)
	case "max_pool2d":
		return b.one(graph.OpMaxPool, pool, in...)
	case "avg_pool2d":
		if !*a.CountPad {
			return nil // padding always counts here
		}
		return b.one(graph.OpAvgPool, pool, in...)
	case "gelu":
		if a.Approximate == "tanh" {
			return b.one(graph.OpGELU, nil, in...)
		}
		return b.one(graph.OpGELUErf, nil, in...)
	case "silu":
		return b.one(graph.OpSiLU, nil, in...)
	case "softmax":
		return b.one(graph.OpSoftmax, nil, in...)
	case "log_softmax":
		return b.one(graph.OpLogSoftmax, nil, in...)
	case "embedding":
		return b.one(graph.OpEmbedding, nil, in...)
	}
	b.t.Fatalf("the golden values have an operation %s that this test does not know", g.Op)
	return nil
}

func TestOperationsAgreeWithPyTorch(t *testing.T) {
	values := goldenTensors(t, "ops")
	var record struct{ Cases []goldenOp }
	goldenRecord(t, "ops", &record)
	checked := 0
	for _, g := range record.Cases {
		t.Run(g.Name, func(t *testing.T) {
			b := newBuilder(t)
			feeds := ref.Feeds{}
			var in []*graph.Value
			for _, name := range g.Inputs {
				x := values[g.Name+".in."+name]
				if x.DType.IsFloat() {
					in = append(in, b.param(name, x.Shape...))
				} else {
					in = append(in, b.input(name, x.DType, x.Shape...))
				}
				feeds[name] = x
			}
			y := g.build(b, in)
			if y == nil {
				return
			}
			checked++
			b.Output("out", y)
			feeds["seed"] = values[g.Name+".seed"]
			for _, d := range b.differentiate(y) {
				b.Output("grad:"+d.Param.Attrs.(graph.ParamAttrs).Name, d.Value)
			}
			out, err := ref.Run(b.G, feeds)
			if err != nil {
				t.Fatal(err)
			}
			expectClose(t, "result", out["out"], values[g.Name+".out"], 1e-12)
			for _, name := range g.Gradients {
				expectClose(t, "gradient of "+name, out["grad:"+name], values[g.Name+".grad."+name], 1e-11)
			}
		})
	}
	if checked != len(record.Cases)-1 {
		t.Errorf("%d of %d cases were checked; only the one of avg_pool without counted padding is no operation here", checked, len(record.Cases))
	}
}

func TestOptimizersAgreeWithPyTorch(t *testing.T) {
	values := goldenTensors(t, "optim")
	var record struct {
		Steps int
		Cases map[string]struct {
			Kind      string
			Scheduled bool
			Options   struct {
				LR          float64
				Betas       [2]float64
				Eps         float64
				WeightDecay float64 `json:"weight_decay"`
				Momentum    float64
				Nesterov    bool
			}
		}
	}
	goldenRecord(t, "optim", &record)
	for name, c := range record.Cases {
		t.Run(name, func(t *testing.T) {
			o := c.Options
			param := values["init"]
			n := len(param.Data)
			m, v := graph.NewArray(param.Type), graph.NewArray(param.Type)
			for step := range record.Steps {
				lr := o.LR
				if c.Scheduled {
					lr = values["learning_rates"].Data[step]
				}
				// The gradient arrives four times too large, and the scale takes that back.
				grad := graph.NewArray(param.Type)
				for i := range grad.Data {
					grad.Data[i] = 4 * values["gradients"].Data[step*n+i]
				}
				hyper := graph.NewArray(graph.Type{DType: tensor.F64, Shape: tensor.Shape{graph.HyperCount}})
				hyper.Data[graph.HyperLR], hyper.Data[graph.HyperGradScale] = lr, 0.25
				var out []*graph.Array
				if c.Kind == "adamw" {
					hyper.Data[graph.HyperBeta1], hyper.Data[graph.HyperBeta2] = o.Betas[0], o.Betas[1]
					hyper.Data[graph.HyperEps], hyper.Data[graph.HyperWeightDecay] = o.Eps, o.WeightDecay
					hyper.Data[graph.HyperCorrection1] = 1 - math.Pow(o.Betas[0], float64(step+1))
					hyper.Data[graph.HyperCorrection2] = 1 - math.Pow(o.Betas[1], float64(step+1))
					out = compute(t, graph.OpAdamW, graph.AdamWAttrs{}, param, grad, m, v, hyper)
					m, v = out[1], out[2]
				} else {
					hyper.Data[graph.HyperMomentum], hyper.Data[graph.HyperSGDDecay] = o.Momentum, o.WeightDecay
					if step == 0 {
						hyper.Data[graph.HyperSGDFirstStep] = 1
					}
					at := graph.SGDAttrs{Momentum: o.Momentum != 0, Nesterov: o.Nesterov}
					in := []*graph.Array{param, grad, m, hyper}
					if !at.Momentum {
						in = []*graph.Array{param, grad, hyper}
					}
					out = compute(t, graph.OpSGD, at, in...)
					if at.Momentum {
						m = out[1]
					}
				}
				param = out[0]
				want := &graph.Array{Type: param.Type, Data: values[name+".float64"].Data[step*n : (step+1)*n]}
				expectClose(t, "parameter", param, want, 1e-13)
			}
		})
	}
}

// compute runs one operation in float64.
func compute(t *testing.T, op *graph.Op, attrs any, in ...*graph.Array) []*graph.Array {
	t.Helper()
	b := newBuilder(t)
	var values []*graph.Value
	for i, a := range in {
		values = append(values, b.input(string(rune('a'+i)), a.DType, a.Shape...))
	}
	return op.Ref(b.op(op, attrs, values...)[0].Def, in)
}

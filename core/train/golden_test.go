package train_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"starling/core/data"
	"starling/core/device/ref"
	"starling/core/graph"
	"starling/core/optim"
	"starling/core/plan"
	"starling/core/tensor"
	"starling/core/train"
)

// goldenRecord is what the JSON of a golden model says of its run.
type goldenRecord struct {
	Losses    []float64 `json:"losses"`
	Losses64  []float64 `json:"losses_float64"`
	GradNorms []float64 `json:"grad_norms"`
}

// goldenModels are the recorded models with the columns of their batches.
var goldenModels = map[string][]string{
	"gpt":    {"tokens", "targets"},
	"llama":  {"tokens", "targets"},
	"conv":   {"images", "labels"},
	"resnet": {"images", "labels"},
}

// goldenPlacements are the ways in which each is run here. Where micro is less than the batch the mean loss and its gradient come
// out of several micro-batches, and for gpt and llama these have unequal numbers of targets that count.
var goldenPlacements = []struct {
	model        string
	micro, ranks int
}{
	{"gpt", 4, 1},
	{"gpt", 2, 1},
	{"gpt", 2, 2},
	{"llama", 4, 1},
	{"llama", 1, 2},
	{"conv", 8, 1},
	{"conv", 2, 2},
	{"resnet", 8, 1}, // batch norm takes its statistics from a micro-batch, so PyTorch's batch is one
}

// goldenCase prepares a run of a recorded model.
func goldenCase(t *testing.T, model string, micro, ranks int) (goldenRun, golden, goldenRecord) {
	t.Helper()
	var record goldenRecord
	g := readGolden(t, model, &record)
	return goldenRun{recipe: model, set: []string{fmt.Sprintf("micro=%d", micro), fmt.Sprintf("ranks=%d", ranks)}, ranks: ranks,
		init: g.under("init"), source: g.source(t, 2, goldenModels[model]...)}, g, record
}

// farthest returns the greatest difference of two tensors and the element where it is. A NaN is at infinite distance.
func farthest(got, want []float32) (distance float64, at int) {
	for i := range want {
		d := math.Abs(float64(got[i]) - float64(want[i]))
		if math.IsNaN(d) {
			d = math.Inf(1)
		}
		if d > distance {
			distance, at = d, i
		}
	}
	return distance, at
}

func greatest(v []float32) (m float64) {
	for _, x := range v {
		m = max(m, math.Abs(float64(x)))
	}
	return m
}

// sameGradients compares each gradient with PyTorch's, relative to the tensor's greatest element, and returns the greatest distance.
func sameGradients(t *testing.T, got, want map[string][]float32, tolerance float64) float64 {
	t.Helper()
	worst := 0.0
	for name, w := range want {
		g, ok := got[name]
		if !ok || len(g) != len(w) {
			t.Errorf("there is no gradient of %s with %d elements", name, len(w))
			continue
		}
		d, at := farthest(g, w)
		d /= greatest(w)
		if !(d <= tolerance) {
			t.Errorf("gradient of %s, element %d: %v, want %v", name, at, g[at], w[at])
		}
		worst = max(worst, d)
	}
	return worst
}

// The gradient of the first step's mean loss, of every parameter: micro-batches, lanes and ranks added, the uses of tied
// weights joined, the weight corrected. It is read from the momentum of one step of SGD, which is the gradient itself.
func TestGoldenGradients(t *testing.T) {
	for _, c := range goldenPlacements {
		t.Run(fmt.Sprintf("%s micro %d ranks %d", c.model, c.micro, c.ranks), func(t *testing.T) {
			run, values, record := goldenCase(t, c.model, c.micro, c.ranks)
			run.change = func(s *train.Spec) {
				s.Optimizer, s.ClipNorm, s.Steps = optim.SGD{Schedule: optim.Constant{Rate: 1}, Momentum: 0.9}, 0, 1
			}
			r := run.run(t)
			got := map[string][]float32{}
			for k, v := range r.final() {
				if name, ok := strings.CutSuffix(k, "/momentum"); ok {
					got[name] = v
				}
			}
			worst := sameGradients(t, got, values.under("grad"), 1e-5)
			if math.Abs(r.norms[0]/record.GradNorms[0]-1) > 1e-6 {
				t.Errorf("norm of the gradient %v, want %v", r.norms[0], record.GradNorms[0])
			}
			t.Logf("gradients at most %.1e from PyTorch's, of each tensor's greatest element", worst)
		})
	}
}

// The same training graphs in float64, in which nothing is left but the mathematics and PyTorch's own rounding.
func TestGoldenGradientsInFloat64(t *testing.T) {
	for model, columns := range goldenModels {
		t.Run(model, func(t *testing.T) {
			run, values, record := goldenCase(t, model, 4, 1)
			batch := values[columns[0]].Shape[1]
			run.set = []string{fmt.Sprintf("micro=%d", batch)}
			s, err := run.spec()
			if err != nil {
				t.Fatal(err)
			}
			p, err := train.Plan(s, 1, 0)
			if err != nil {
				t.Fatal(err)
			}
			at := slices.IndexFunc(p.Passes, func(r plan.PassRecord) bool { return r.Pass.Name == "differentiate" })
			g := p.Passes[at].Graph
			feeds := run.feeds(g)
			feeds[plan.InputSeed].Data[0] = 1 // the gradient of the sum; divided by the weight below
			out, err := ref.Run(g, feeds)
			if err != nil {
				t.Fatal(err)
			}
			weight := out[plan.OutputWeight].Data[0]
			if loss := out[plan.OutputLoss].Data[0] / weight; math.Abs(loss/record.Losses64[0]-1) > 1e-9 {
				t.Errorf("loss %v, want %v", loss, record.Losses64[0])
			}
			got := map[string][]float32{}
			for _, x := range p.Params {
				sum := make([]float32, x.Place.Shape.Numel())
				for i := range sum {
					total := 0.0
					for use := range x.Uses {
						total += out[plan.Gradient{Param: x.Name, Use: use}.Output()].Data[i]
					}
					sum[i] = float32(total / weight)
				}
				got[x.Name] = sum
			}
			t.Logf("gradients at most %.1e from PyTorch's, of each tensor's greatest element", sameGradients(t, got, values.under("grad"), 1e-5))
		})
	}
}

// feeds are the recorded weights and the first step's batch.
func (g goldenRun) feeds(of *graph.Graph) ref.Feeds {
	f := ref.Feeds{}
	for _, n := range of.Params() {
		name := n.Attrs.(graph.ParamAttrs).Name
		a := graph.NewArray(n.Out[0].Type)
		for i, v := range g.init[name] {
			a.Data[i] = float64(v)
		}
		f[name] = a
	}
	for _, n := range of.Inputs() {
		name := n.Attrs.(graph.InputAttrs).Name
		a := graph.NewArray(n.Out[0].Type)
		if k := slices.IndexFunc(g.source.fields, func(f data.Field) bool { return f.Name == name }); k >= 0 {
			for i := range a.Data {
				if a.DType == tensor.I32 {
					a.Data[i] = float64(tensor.View[int32](g.source.columns[k].Data)[i])
				} else {
					a.Data[i] = float64(tensor.View[float32](g.source.columns[k].Data)[i])
				}
			}
		}
		f[name] = a
	}
	return f
}

// Twenty steps of AdamW with clipping: every loss, every norm and the weights at the end.
func TestGoldenTraining(t *testing.T) {
	hashes := map[string]string{}
	for _, c := range goldenPlacements {
		t.Run(fmt.Sprintf("%s micro %d ranks %d", c.model, c.micro, c.ranks), func(t *testing.T) {
			run, values, record := goldenCase(t, c.model, c.micro, c.ranks)
			r := run.run(t)
			loss, norm := sameSeries(t, "loss", r.losses, record.Losses, 1e-5), sameSeries(t, "norm of the gradient", r.norms, record.GradNorms, 1e-5)
			sameSeries(t, "loss (float64)", r.losses, record.Losses64, 1e-5)

			final, worst, keys := values.under("final"), 0.0, 0.0
			if len(final) < 6 {
				t.Fatalf("%d weights recorded", len(final))
			}
			for name, want := range final {
				got := r.final()[name]
				if len(got) != len(want) {
					t.Errorf("there are no weights %s of %d elements after the last step", name, len(want))
					continue
				}
				// A softmax ignores what the keys' bias adds to a row of scores, so its gradient is rounding noise, of which AdamW makes
				// steps of up to the learning rate: no loss depends on it.
				if strings.HasSuffix(name, "attn.qkv.bias") {
					lo, hi := len(want)/3, 2*len(want)/3
					d, at := farthest(got[lo:hi], want[lo:hi])
					if keys = max(keys, d); !(d <= 2e-2) {
						t.Errorf("%s, element %d: %v, want %v", name, lo+at, got[lo+at], want[lo+at])
					}
					got = slices.Concat(got[:lo], got[hi:])
					want = slices.Concat(want[:lo], want[hi:])
				}
				d, at := farthest(got, want)
				if worst = max(worst, d); !(d <= 2e-5) {
					t.Errorf("%s, element %d: %v after the last step, want %v", name, at, got[at], want[at])
				}
			}
			t.Logf("relative: losses %.1e, norms %.1e; absolute: weights %.1e, biases of keys %.1e", loss, norm, worst, keys)

			key := fmt.Sprintf("%s micro %d", c.model, c.micro)
			if h, ok := hashes[key]; ok && h != r.hash {
				t.Errorf("weights %.12s, on another number of ranks %.12s", r.hash, h)
			}
			hashes[key] = r.hash
		})
	}
}

// sameSeries compares figures of all steps and returns the greatest relative difference.
func sameSeries(t *testing.T, what string, got, want []float64, tolerance float64) float64 {
	t.Helper()
	if len(want) == 0 || len(got) != len(want) {
		t.Fatalf("%s: %d steps, want %d", what, len(got), len(want))
	}
	worst := 0.0
	for i := range want {
		d := math.Abs(got[i]/want[i] - 1)
		if worst = max(worst, d); !(d <= tolerance) {
			t.Errorf("%s of step %d: %v, want %v", what, i+1, got[i], want[i])
		}
	}
	return worst
}

// The halves of a recorded batch count unequal numbers of targets: a mean of their means would show above.
func TestGoldenMicroBatchesCountUnequally(t *testing.T) {
	_, values, _ := goldenCase(t, "gpt", 2, 1)
	x := values["targets"]
	v, half := tensor.View[int32](x.Data), x.Shape[1]*x.Shape[2]/2
	unequal := 0
	for at := 0; at < len(v); at += 2 * half {
		first, second := 0, 0
		for i := range half {
			if v[at+i] >= 0 {
				first++
			}
			if v[at+half+i] >= 0 {
				second++
			}
		}
		if first != second {
			unequal++
		}
	}
	if unequal < x.Shape[0]/2 {
		t.Errorf("%d of %d steps have unequal halves", unequal, x.Shape[0])
	}
}

// rates is a schedule by table.
type rates []float64

func (r rates) At(step int) float64 { return r[step] }
func (r rates) Validate() error     { return nil }
func (r rates) String() string      { return fmt.Sprintf("rates(%v)", []float64(r)) }

// Ten steps of each optimizer on given gradients, from the table of hyper-parameters to the kernels: the parameter after each
// step is as near to PyTorch's float64 as float32 allows.
func TestGoldenOptimizers(t *testing.T) {
	var record struct {
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
	values := readGolden(t, "optim", &record)
	if len(record.Cases) < 9 {
		t.Fatalf("%d cases recorded", len(record.Cases))
	}
	for name, c := range record.Cases {
		t.Run(name, func(t *testing.T) {
			o := c.Options
			var rate optim.Schedule = optim.Constant{Rate: o.LR}
			if c.Scheduled {
				rate = rates(tensor.View[float64](values["learning_rates"].Data))
			}
			var opt optim.Optimizer = optim.SGD{Schedule: rate, Momentum: o.Momentum, Nesterov: o.Nesterov, WeightDecay: o.WeightDecay}
			if c.Kind == "adamw" {
				opt = optim.AdamW{Schedule: rate, Beta1: o.Betas[0], Beta2: o.Betas[1], Eps: o.Eps, WeightDecay: o.WeightDecay}
			}
			run := goldenRun{recipe: "optim", ranks: 1, source: values.source(t, 1, "gradients"),
				init: map[string][]float32{"p": tensor.View[float32](values["init"].Data)}, change: func(s *train.Spec) { s.Optimizer = opt }}
			states := run.run(t).states
			want := tensor.View[float64](values[name+".float64"].Data)
			if len(want) != 10*35 || len(states) != 10 {
				t.Fatalf("%d steps, and %d values recorded; want 10 and 350", len(states), len(want))
			}
			worst, size := 0.0, make([]float64, 35) // the greatest magnitude that an element had so far, which its rounding errors go by
			for step, s := range states {
				for i, got := range s["p"] {
					w := want[step*35+i]
					size[i] = max(size[i], 1, math.Abs(w))
					d := math.Abs(float64(got)-w) / size[i]
					if worst = max(worst, d); !(d <= 1e-6) {
						t.Errorf("step %d, element %d: %v, want %v", step+1, i, got, w)
					}
				}
			}
			t.Logf("at most %.1e from float64", worst)
		})
	}
}

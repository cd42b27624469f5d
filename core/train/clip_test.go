package train

import (
	"fmt"
	"math"
	"testing"

	"starling/core/graph"
	"starling/core/optim"
	"starling/core/plan"
	"starling/core/tensor"
)

// pairModel has two parameters of one element, a and b; the gradient of each is a feature. The weight of a sample is 1.
type pairModel struct{}

func (pairModel) Loss(batch []Input, _ bool) (*graph.Graph, error) {
	g := graph.NewBuilder()
	var x, weight *graph.Value
	for _, in := range batch {
		switch in.Name {
		case "features":
			x = g.Must(graph.OpInput, graph.InputAttrs{Name: in.Name, DType: tensor.F32, Shape: graph.MakeDims(in.Shape)})[0]
		case "weight":
			weight = g.Must(graph.OpInput, graph.InputAttrs{Name: in.Name, DType: tensor.F32, Shape: graph.MakeDims(in.Shape)})[0]
		}
	}
	term := func(name string, at int) *graph.Value {
		w := g.Must(graph.OpParam, graph.ParamAttrs{Name: name, Shape: graph.MakeDims([]int{1}), Init: graph.Init{Kind: graph.InitConstant}})[0]
		cut := g.Must(graph.OpSlice, graph.SliceAttrs{Axis: 1, Start: at, End: at + 1, Size: x.Shape[1]}, x)[0]
		return g.Must(graph.OpSum, graph.ReduceAttrs{Axes: graph.MakeDims([]int{0, 1})}, g.Must(graph.OpMul, nil, cut, w)[0])[0]
	}
	g.Output("loss", g.Must(graph.OpAdd, nil, term("a", 0), term("b", 1))[0])
	g.Output("weight", g.Must(graph.OpSum, graph.ReduceAttrs{Axes: graph.MakeDims([]int{0})}, weight)[0])
	return g.G, nil
}

// Case 10: parts of the model on different ranks with gradients of norm 3 and 4. Each rank sees the norm of the whole, and scales its part by it.
func TestNormsJoinThePartsOfRanks(t *testing.T) {
	for _, c := range []struct {
		norm              plan.Norm
		clip, value, want float64
		a, b              float64 // how far the parameters go
	}{
		{plan.L2, 1, 0, 5, 0.6, 0.8}, {plan.LInf, 0, 0, 4, 3, 4}, {plan.LInf, 1, 0, 4, 0.75, 1}, {plan.L1, 1, 0, 7, 3. / 7, 4. / 7},
		{plan.L2, 0, 3.5, 5, 3, 3.5}, {plan.L2, 0, 2, 5, 2, 2}, {plan.L2, 2.5, 1.75, 5, 1.5, 1.75}, // the norm first, then its elements
	} {
		for _, place := range []struct{ ranks, zero int }{{1, 0}, {2, 0}, {2, 1}, {2, 2}, {2, 3}} {
			// Case 11: a scale of the loss is taken out first, whatever is bounded.
			for _, scale := range []float64{0, 1024} {
				name := fmt.Sprintf("norm %v bounded by %v, elements by %v, %+v, loss scale %v", c.norm, c.clip, c.value, place, scale)
				var norm float64
				var losses []float64
				_, err := runOn(t, t.Context(), place.ranks, 1, func(rank int, s *Spec, _ *Env) {
					one(s, lines(t, 2, []float32{3, -4, 1}, []float32{3, -4, 1}, []float32{1, 0, 1}, []float32{1, 0, 1}, []float32{0, 1, 1}, []float32{0, 1, 1}), pairModel{}, 1)
					s.Data.GlobalBatch, s.Steps = 2, 3 // the first step moves, the two after it show where to
					s.Optimizer = optim.SGD{Schedule: optim.Step{Rate: 1, Every: 1, Gamma: 1e-30}}
					s.Mesh.Zero, s.Mesh.BucketMB, s.Mesh.FirstBucket = place.zero, 1e-6, 1e-6
					s.ClipNorm, s.NormType, s.ClipValue = c.clip, c.norm, c.value
					if scale > 0 {
						s.LossScale = optim.LossScale{Init: scale}
					}
					if rank == 0 {
						s.OnStep = func(m Metrics) (Action, error) {
							if m["step"] == 1 {
								norm = m["grad_norm"]
							}
							losses = append(losses, m["loss"])
							return Action{}, nil
						}
					}
				})
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				if math.Abs(norm-c.want) > 1e-5 || math.Abs(losses[1]+c.a) > 1e-5 || math.Abs(losses[2]-c.b) > 1e-5 {
					t.Errorf("%s: norm %v, steps of %v and %v; want %v, %v and %v", name, norm, -losses[1], losses[2], c.want, c.a, c.b)
				}
			}
		}
	}
}

// Case 12 for the other norms: the gradient of a tied weight is (6, 8), and is bounded as one.
func TestTiedWeightsAreClippedOnce(t *testing.T) {
	for _, c := range []struct {
		norm  plan.Norm
		value float64
		want  float64
		fall  float64 // of the loss, 12 in each direction of w
	}{{plan.LInf, 7, 8, 6*6 + 8*7}, {plan.L1, 0, 14, 6*6 + 8*8}} {
		var norm float64
		var losses []float64
		_, err := runOn(t, t.Context(), 1, 1, func(_ int, s *Spec, _ *Env) {
			one(s, lines(t, 2, []float32{3, 4, 1}), lineModel{tied: true}, 1)
			s.NormType, s.ClipValue, s.Steps = c.norm, c.value, 2
			s.OnStep = func(m Metrics) (Action, error) {
				norm = m["grad_norm"]
				losses = append(losses, m["loss"])
				return Action{}, nil
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		if math.Abs(norm-c.want) > 1e-5 || math.Abs(losses[0]-losses[1]-c.fall) > 1e-3 {
			t.Errorf("norm %v: %v and a fall of %v, want %v and %v", c.norm, norm, losses[0]-losses[1], c.want, c.fall)
		}
	}
}

// An overflow is seen whatever the norm, and never hidden by the bound of elements.
func TestClippingHidesNoOverflow(t *testing.T) {
	for _, norm := range []plan.Norm{plan.L2, plan.L1, plan.LInf} {
		for _, x := range []float32{float32(math.Inf(1)), float32(math.NaN())} {
			r, err := runOn(t, t.Context(), 2, 1, func(_ int, s *Spec, _ *Env) {
				scaled(s, lines(t, 1, []float32{1, 1}, []float32{x, 1}, []float32{1, 1}, []float32{1, 1}), 2, 2, dynamic(1024))
				s.NormType, s.ClipValue, s.Mesh.Zero = norm, 0.5, 1
			})
			if err != nil {
				t.Fatal(err)
			}
			if r[0].Skipped != 1 || r[0].LossScale != 512 {
				t.Errorf("norm %v, %v: %d steps skipped and a scale of %v, want 1 and 512", norm, x, r[0].Skipped, r[0].LossScale)
			}
		}
	}
}

// Every kind of clipping has one hash for all placements, another one than every other kind.
func TestClippingIsPlacedFreely(t *testing.T) {
	seen := map[string]string{}
	for name, set := range map[string]func(*Spec){
		"norm 2":    func(s *Spec) { s.ClipNorm = 0.05 },
		"norm 1":    func(s *Spec) { s.ClipNorm, s.NormType = 0.05, plan.L1 },
		"norm inf":  func(s *Spec) { s.ClipNorm, s.NormType = 0.001, plan.LInf },
		"value":     func(s *Spec) { s.ClipNorm, s.ClipValue = 0, 1e-4 },
		"inf, then": func(s *Spec) { s.ClipNorm, s.NormType, s.ClipValue = 0.01, plan.LInf, 1e-4 },
	} {
		base := ""
		for _, c := range []struct {
			ranks, stage int
			offload      string
		}{{1, 0, ""}, {2, 0, ""}, {3, 1, ""}, {4, 2, ""}, {3, 3, ""}, {2, 3, "disk"}} {
			r, err := runOn(t, t.Context(), c.ranks, 1, func(_ int, s *Spec, e *Env) {
				wide(s, 6)
				s.Mesh.Zero, s.Mesh.Offload, s.Checkpoint, s.Evaluate, e.RunDir = c.stage, c.offload, nil, nil, t.TempDir()
				set(s)
			})
			if err != nil {
				t.Fatalf("%s, %+v: %v", name, c, err)
			}
			if base == "" {
				base = r[0].WeightsSHA256
			}
			if r[0].WeightsSHA256 != base {
				t.Errorf("%s, %+v: weights %.16s, want %.16s", name, c, r[0].WeightsSHA256, base)
			}
		}
		if other := seen[base]; other != "" {
			t.Errorf("%s gives the weights of %s: it was not active", name, other)
		}
		seen[base] = name
	}
}

package train

import (
	"testing"

	"starling/core/graph"
	"starling/core/tensor"
)

// headsModel is a body with two heads, one for each of two tasks. A row's label says which task it belongs to; the other task's target
// is masked. A third head is made and used by no loss.
type headsModel struct{}

func (headsModel) Loss(batch []Input, _ bool) (*graph.Graph, error) {
	b := graph.NewBuilder()
	in := map[string]*graph.Value{}
	for _, i := range batch {
		in[i.Name] = b.Must(graph.OpInput, graph.InputAttrs{Name: i.Name, DType: i.DType, Shape: graph.MakeDims(i.Shape)})[0]
	}
	param := func(name string, shape ...int) *graph.Value {
		return b.Must(graph.OpParam, graph.ParamAttrs{Name: name, Shape: graph.MakeDims(shape), Init: graph.Init{Kind: graph.InitNormal, B: 0.1}})[0]
	}
	x := in["features"]
	n, width := x.Shape[0], x.Shape.Numel()/x.Shape[0]
	x = b.Must(graph.OpReshape, graph.ShapeAttrs{Shape: graph.MakeDims([]int{n, width})}, x)[0]
	x = b.Must(graph.OpGELU, nil, b.Must(graph.OpLinear, nil, x, param("body", 200, width))[0])[0]
	param("head.unused", 90, 200)
	labels := b.Must(graph.OpCast, graph.CastAttrs{To: tensor.F32}, in["labels"])[0]
	var loss, weight *graph.Value
	for task, name := range []string{"head.even", "head.odd"} { // labels 0 … 4 and 5 … 9, each counted from 0; what is negative becomes -1
		shift := b.Must(graph.OpAddScalar, graph.ScalarAttrs{Value: float64(-5 * task)}, labels)[0]
		y := shift
		if task == 0 { // labels of the other task become negative
			y = b.Must(graph.OpSub, nil, shift, b.Must(graph.OpScale, graph.ScalarAttrs{Value: 100}, b.Must(graph.OpReLU, nil, b.Must(graph.OpAddScalar, graph.ScalarAttrs{Value: -4}, shift)[0])[0])[0])[0]
		}
		y = b.Must(graph.OpAddScalar, graph.ScalarAttrs{Value: -1}, b.Must(graph.OpReLU, nil, b.Must(graph.OpAddScalar, graph.ScalarAttrs{Value: 1}, y)[0])[0])[0]
		out := b.Must(graph.OpCrossEntropy, graph.CrossEntropyAttrs{Ignore: -1}, b.Must(graph.OpLinear, nil, x, param(name, 5, 200))[0], b.Must(graph.OpCast, graph.CastAttrs{To: tensor.I32}, y)[0])
		if loss == nil {
			loss, weight = out[0], out[1]
			continue
		}
		loss, weight = b.Must(graph.OpAdd, nil, loss, out[0])[0], b.Must(graph.OpAdd, nil, weight, out[1])[0]
	}
	b.Output("loss", loss)
	b.Output("weight", weight)
	return b.G, nil
}

// Case 18: a head that is used in no sample of some steps, on some ranks or on all, keeps nobody waiting at any stage; what no loss reaches
// is named once.
func TestAHeadMayBeUnusedInSomeSteps(t *testing.T) {
	source := digits(t, 48, 3)
	hash := ""
	for _, c := range []struct{ ranks, stage int }{{1, 0}, {2, 1}, {3, 2}, {4, 3}} {
		warned := 0
		r, err := runOn(t, t.Context(), c.ranks, 1, func(rank int, s *Spec, e *Env) {
			s.Model, s.Data.Source, s.Evaluate, s.Checkpoint = headsModel{}, source, nil, nil
			s.Data.GlobalBatch, s.Data.MicroBatch, s.Data.Lanes, s.Steps = 4, 1, 4, 40 // steps of four samples, each its own lane
			s.Mesh.Zero, s.Mesh.BucketMB, s.Mesh.FirstBucket, s.Mesh.TimeoutSec = c.stage, 0.01, 0.002, 20
			if rank == 0 {
				e.Observe = func(ev Event) {
					if ev.Kind == EventWarning && ev.Text == "parameter head.unused does not reach the loss: it gets no gradient and keeps its initial value" {
						warned++
					}
				}
			}
		})
		if err != nil {
			t.Fatalf("%+v: %v", c, err)
		}
		if hash == "" {
			hash = r[0].WeightsSHA256
		}
		if r[0].WeightsSHA256 != hash || warned != 1 {
			t.Errorf("%+v: weights %.16s, want %.16s; the unused head was named %d times, want once", c, r[0].WeightsSHA256, hash, warned)
		}
	}
}

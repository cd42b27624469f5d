package train

import (
	"errors"
	"fmt"
	"strings"

	"starling/core/data"
	"starling/core/graph"
	"starling/core/optim"
	"starling/core/plan"
	"starling/core/tensor"
)

// Plan traces the spec's functions and lowers them for one rank: training, evaluation and samples.
// Nothing is read and nothing is allocated. Of hosts it knows those that the recipe declares.
func Plan(s *Spec, world, rank int) (*plan.Plan, error) {
	return planOn(s, world, rank, s.Mesh.perHost(world))
}

// planOn is Plan where so many neighbouring ranks of each host add gradients before they are compressed.
func planOn(s *Spec, world, rank, perHost int) (*plan.Plan, error) {
	g, err := s.Model.Loss(BatchInputs(s.Data.Source.Fields(), s.Data.MicroBatch), true)
	if err != nil {
		return nil, err
	}
	p, err := plan.Build(g, s.settings(world, rank, perHost))
	if err != nil {
		key := "train"
		if strings.HasPrefix(err.Error(), "recompute.") {
			key = "recompute"
		}
		return nil, s.place(key, err)
	}
	if e := s.Evaluate; e != nil {
		g, err := s.Model.Loss(BatchInputs(e.Source.Fields(), e.microBatch(s)), false)
		if err != nil {
			return nil, err
		}
		if err := p.AddForward("evaluate", g); err != nil {
			return nil, s.place("evaluate", err)
		}
		if key, _ := e.best(); key != "" && key != "eval_loss" && g.Output("metric."+key) == nil {
			return nil, s.errorf("evaluate", "evaluate: best = %q: the evaluation has no such metric; use \"loss\" or one of metrics", key)
		}
	}
	for i, x := range s.Samples {
		in := Input{"tokens", graph.Type{DType: tensor.I32, Shape: tensor.Shape{1, x.Context}}}
		g, err := x.Forward(in)
		if err != nil {
			return nil, err
		}
		if err := p.AddForward(sampleSegment(i), g); err != nil {
			return nil, s.place("sample", err)
		}
		if out := g.Output("logits"); out == nil || len(out.Shape) != 3 || out.Shape[1] != x.Context {
			return nil, s.errorf("sample", "sample: the model must turn tokens [1,%d] into logits [1,%d,vocabulary]", x.Context, x.Context)
		}
	}
	return p, nil
}

// settings are the plan's, from the spec.
func (s *Spec) settings(world, rank, perHost int) plan.Settings {
	algorithm, fast, _ := s.Mesh.algorithm()
	return plan.Settings{
		World: world, Rank: rank, PerHost: perHost,
		Lanes: s.Data.LaneCount(), MicroBatches: s.Data.MicroBatches(),
		GlobalBatch: s.Data.GlobalBatch, MicroBatch: s.Data.MicroBatch,
		BucketBytes:      int64(s.Mesh.BucketMB * (1 << 20)),
		FirstBucketBytes: int64(s.Mesh.FirstBucket * (1 << 20)),
		Recompute:        s.Mesh.Recompute,
		LossRows:         s.Mesh.LossRows,
		Half:             halfTypes[s.Precision],
		Reduce:           halfTypes[s.Reduce],
		Zero:             s.Mesh.Zero,
		Shard:            s.Mesh.Shard,
		KeepGathered:     s.Mesh.KeepGathered,
		KeepWholeBytes:   int64(s.Mesh.KeepWholeKB * (1 << 10)),
		NoOverlap:        s.Mesh.NoOverlap,
		Early:            s.ClipNorm == 0 && !s.LossScale.Active(),

		OffloadActivations: s.Mesh.OffloadWork,
		Norm:               s.NormType,
		ClipValue:          s.ClipValue > 0,
		Compress:           s.compression(),
		Fast:               fast,
		Algorithm:          algorithm,
		Update: func(a graph.ParamAttrs) (plan.Update, error) {
			o := s.applied()
			if t, ok := o.(optim.Taker); ok {
				if err := t.Takes(a); err != nil {
					return plan.Update{}, err
				}
			}
			u := o.Update(a)
			out := plan.Update{Attrs: u.Attrs, Group: u.Group, Whole: u.Whole, External: u.External != nil}
			if !out.External {
				op, err := graph.Lookup(u.Op)
				if err != nil {
					return plan.Update{}, fmt.Errorf("optimizer: %w", err)
				}
				out.Op = op
			}
			for _, x := range u.Slots {
				out.Slots = append(out.Slots, plan.Slot{Name: x.Name, Init: x.Init, Own: x.Own, Shape: x.Shape, DType: x.DType, Block: x.Block})
			}
			return out, nil
		},
	}
}

// place gives an error the position of a setting, unless it already points into the recipe.
func (s *Spec) place(key string, err error) error {
	var g *graph.Error
	var e *Error
	if errors.As(err, &g) || errors.As(err, &e) {
		return err
	}
	return &Error{s.Positions[key], err.Error()}
}

// Inputs that every batch has beside the fields of its data, whose names no field may have.
const (
	// InputWeight, f32[batch], is 1 for a sample and 0 for a row of padding, of which short batches have some.
	InputWeight = "weight"
	// InputRNG, u32[4], is what random draws are keyed by: the seed (two words), the step and the micro-batch.
	InputRNG = "rng"
)

// BatchInputs are the fields of a batch of n samples as a model sees them, and the weights of its rows.
func BatchInputs(fields []data.Field, n int) []Input {
	var in []Input
	for _, f := range fields {
		t := graph.Type{DType: tensor.I32, Shape: append(tensor.Shape{n}, f.Shape...)}
		if f.DType == data.Float32 {
			t.DType = tensor.F32
		}
		in = append(in, Input{f.Name, t})
	}
	return append(in, Input{InputWeight, graph.Type{DType: tensor.F32, Shape: tensor.Shape{n}}})
}

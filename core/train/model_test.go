package train

import (
	"context"
	"errors"
	"hash/fnv"
	"sync/atomic"
	"testing"

	"starling/core/cluster"
	"starling/core/comm"
	"starling/core/data"
	"starling/core/device/cpu"
	"starling/core/graph"
	"starling/core/optim"
	"starling/core/tensor"
)

// testModel is a small classifier made without a recipe: two tied layers (the second is the first, transposed), dropout,
// a norm, and a head.
type testModel struct{ hidden, classes int }

func (m testModel) Loss(batch []Input, training bool) (*graph.Graph, error) {
	b := graph.NewBuilder()
	input := func(name string, t graph.Type) *graph.Value {
		return b.Must(graph.OpInput, graph.InputAttrs{Name: name, DType: t.DType, Shape: graph.MakeDims(t.Shape)})[0]
	}
	param := func(name string, shape ...int) *graph.Value {
		return b.Must(graph.OpParam, graph.ParamAttrs{Name: name, Shape: graph.MakeDims(shape), Init: graph.Init{Kind: graph.InitNormal, B: 0.2}})[0]
	}
	var x, labels *graph.Value
	for _, in := range batch {
		switch in.Name {
		case "features":
			x = input(in.Name, in.Type)
		case "labels":
			labels = input(in.Name, in.Type)
		}
	}
	n := x.Shape[0]
	width := x.Shape.Numel() / n
	x = b.Must(graph.OpReshape, graph.ShapeAttrs{Shape: graph.MakeDims([]int{n, width})}, x)[0]
	w := param("body.weight", m.hidden, width)
	x = b.Must(graph.OpLinear, nil, x, w, param("body.bias", m.hidden))[0]
	x = b.Must(graph.OpGELU, nil, x)[0]
	if training {
		rng := input("rng", graph.Type{DType: tensor.U32, Shape: tensor.Shape{4}})
		h := fnv.New64a()
		h.Write([]byte("body#0"))
		x = b.Must(graph.OpDropout, graph.DropoutAttrs{P: 0.1, Key: h.Sum64()}, x, rng)[0]
	}
	back := b.Must(graph.OpTranspose, graph.PermAttrs{Perm: graph.MakeDims([]int{1, 0})}, w)[0]
	x = b.Must(graph.OpLinear, nil, x, back)[0]
	x = b.Must(graph.OpLayerNorm, graph.NormAttrs{Eps: 1e-5}, x, param("norm.weight", width))[0]
	logits := b.Must(graph.OpLinear, nil, x, param("head.weight", m.classes, width))[0]
	out := b.Must(graph.OpCrossEntropy, graph.CrossEntropyAttrs{Ignore: -1}, logits, labels)
	b.Output("loss", out[0])
	b.Output("weight", out[1])
	return b.G, nil
}

// arraySource serves generated digits.
type arraySource struct{ set *data.Array }

func (s arraySource) Corpus() Corpus                                  { return s }
func (s arraySource) Fields() []data.Field                            { return s.set.Fields() }
func (s arraySource) Len() (int64, error)                             { return s.set.Len(), nil }
func (s arraySource) Dataset() (data.Dataset, error)                  { return s.set, nil }
func (s arraySource) Scan(context.Context) error                      { return nil }
func (s arraySource) Bytes() int64                                    { return 0 }
func (s arraySource) Load(context.Context, func(data.Progress)) error { return nil }
func (s arraySource) Fingerprint() string                             { return s.set.Fingerprint() }
func (s arraySource) Close() error                                    { return nil }

func digits(t testing.TB, n int, seed uint64) arraySource {
	t.Helper()
	set, err := data.Digits(data.DigitsConfig{Samples: n, Seed: seed, Noise: 0.1})
	if err != nil {
		t.Fatal(err)
	}
	return arraySource{set}
}

// testSpec is a run with dropout, a tied weight, clipping that is active, two micro-batches a lane and six lanes.
func testSpec(t testing.TB) *Spec {
	return &Spec{
		Name: "test", Seed: 7, Model: testModel{hidden: 24, classes: 10},
		Data:      Data{Source: digits(t, 500, 1), GlobalBatch: 36, MicroBatch: 3, Lanes: 6, Shuffle: true, Workers: 2, Prefetch: 2},
		Optimizer: optim.AdamW{Schedule: optim.WarmupCosine{Peak: 1e-2, Warmup: 3, Total: 20, Floor: 0.1}, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1},
		ClipNorm:  0.05, Precision: "fp32",
		Mesh:       Mesh{Data: 1, BucketMB: 0.004, FirstBucket: 0.002},
		Steps:      12,
		Evaluate:   &Evaluate{Source: digits(t, 90, 2), Every: 5, Best: "loss"},
		Checkpoint: &Checkpoint{Every: 4, Keep: 2},
	}
}

// runOn trains a spec on in-process ranks and returns every rank's result.
func runOn(t testing.TB, ctx context.Context, ranks, threads int, change func(rank int, s *Spec, e *Env)) ([]*Result, error) {
	t.Helper()
	return runOnHosts(t, ctx, nil, ranks, threads, change)
}

// runOnHosts is runOn where ranks count as running on the hosts named.
func runOnHosts(t testing.TB, ctx context.Context, hosts []string, ranks, threads int, change func(rank int, s *Spec, e *Env)) ([]*Result, error) {
	t.Helper()
	results := make([]*Result, ranks)
	var interrupted atomic.Bool
	_, err := cluster.InProcess(ctx, cluster.Config{Ranks: ranks, Hosts: hosts}, func(ctx context.Context, w *cluster.Worker) error {
		dev, err := cpu.Open(cpu.Config{Threads: threads, Ranks: ranks})
		if err != nil {
			return err
		}
		defer dev.Close()
		s := testSpec(t)
		s.Mesh.Data = ranks
		env := Env{Rank: w.Rank(), World: ranks, Device: dev, Threads: threads, Digest: "test", Observe: func(Event) {}, Status: w.Status, Stop: w.StopRequested(),
			Quiesce: func(err error) { _ = w.Fail(err) }}
		if ranks > 1 {
			all := make([]int, ranks)
			for i := range all {
				all[i] = i
			}
			if env.Group, err = comm.NewGroup(w.Transport(), "data", all, comm.Options{}); err != nil {
				return err
			}
			env.NewGroup = func(name string) (*comm.Group, error) { return comm.NewGroup(w.Transport(), name, all, comm.Options{}) }
			env.SentTo = func(rank int) comm.Traffic { return comm.SentTo(w.Transport(), rank) }
			env.SentBytes = func() int64 { return comm.Sum(w.Transport()).PayloadSent }
		}
		if change != nil {
			change(w.Rank(), s, &env)
		}
		if err := s.Validate(); err != nil {
			return err
		}
		results[w.Rank()], err = Run(ctx, s, env)
		if errors.Is(err, ErrInterrupted) { // an orderly end, which is no reason to cancel the others
			interrupted.Store(true)
			err = env.Group.BarrierPatient(ctx, "end of the run")
		}
		if env.Group != nil && err == nil {
			err = env.Group.Close()
		}
		return err
	})
	if err == nil && interrupted.Load() {
		err = ErrInterrupted
	}
	return results, err
}

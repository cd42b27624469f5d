package train

import (
	"context"
	"errors"
	"fmt"
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

// wide makes the test's model large enough that its tensors are cut among ranks, with lanes of one micro-batch each where lanes
// is 12, of two where it is 6.
func wide(s *Spec, lanes int) {
	s.Model, s.Data.Lanes, s.Steps = testModel{hidden: 200, classes: 10}, lanes, 6
	s.Mesh.BucketMB, s.Mesh.FirstBucket = 0.06, 0.002
}

// blockModel is a stack of residual blocks with dropout.
type blockModel struct{ layers int }

func (m blockModel) Loss(batch []Input, training bool) (*graph.Graph, error) {
	b := graph.NewBuilder()
	in := map[string]*graph.Value{}
	for _, i := range batch {
		in[i.Name] = b.Must(graph.OpInput, graph.InputAttrs{Name: i.Name, DType: i.DType, Shape: graph.MakeDims(i.Shape)})[0]
	}
	var rng *graph.Value
	if training {
		rng = b.Must(graph.OpInput, graph.InputAttrs{Name: "rng", DType: tensor.U32, Shape: graph.MakeDims([]int{4})})[0]
	}
	param := func(name string, shape ...int) *graph.Value {
		return b.Must(graph.OpParam, graph.ParamAttrs{Name: name, Shape: graph.MakeDims(shape), Init: graph.Init{Kind: graph.InitNormal, B: 0.1}})[0]
	}
	x := in["features"]
	n := x.Shape[0]
	x = b.Must(graph.OpReshape, graph.ShapeAttrs{Shape: graph.MakeDims([]int{n, 144})}, x)[0]
	for i := range m.layers {
		b.Block = fmt.Sprintf("b.%d", i)
		y := b.Must(graph.OpLayerNorm, graph.NormAttrs{Eps: 1e-5}, x, param(b.Block+".norm", 144))[0]
		y = b.Must(graph.OpGELU, nil, b.Must(graph.OpLinear, nil, y, param(b.Block+".up", 300, 144))[0])[0]
		if training {
			y = b.Must(graph.OpDropout, graph.DropoutAttrs{P: 0.2, Key: graph.DropoutKey(b.Block, 0)}, y, rng)[0]
		}
		x = b.Must(graph.OpAdd, nil, x, b.Must(graph.OpLinear, nil, y, param(b.Block+".down", 144, 300))[0])[0]
	}
	b.Block = ""
	out := b.Must(graph.OpCrossEntropy, graph.CrossEntropyAttrs{Ignore: -1}, b.Must(graph.OpLinear, nil, x, param("head", 10, 144))[0], in["labels"])
	b.Output("loss", out[0])
	b.Output("weight", out[1])
	return b.G, nil
}

// oddModel has what real models have beside the ordinary: a frozen table, a parameter that no loss reaches, a tied weight, a tensor
// larger than a bucket, and sizes that no number of ranks divides.
type oddModel struct{}

func (oddModel) Loss(batch []Input, _ bool) (*graph.Graph, error) {
	b := graph.NewBuilder()
	in := map[string]*graph.Value{}
	for _, i := range batch {
		in[i.Name] = b.Must(graph.OpInput, graph.InputAttrs{Name: i.Name, DType: i.DType, Shape: graph.MakeDims(i.Shape)})[0]
	}
	param := func(name string, frozen bool, shape ...int) *graph.Value {
		a := graph.ParamAttrs{Name: name, Shape: graph.MakeDims(shape), Init: graph.Init{Kind: graph.InitNormal, B: 0.1}, Frozen: frozen}
		return b.Must(graph.OpParam, a)[0]
	}
	x := in["features"]
	n := x.Shape[0]
	width := x.Shape.Numel() / n
	x = b.Must(graph.OpReshape, graph.ShapeAttrs{Shape: graph.MakeDims([]int{n, width})}, x)[0]
	param("aux.head", false, 77, 61)
	x = b.Must(graph.OpAdd, nil, x, param("fixed", true, width))[0]
	w := param("h.0.w", false, 333, width)
	x = b.Must(graph.OpLinear, nil, x, w, param("h.0.b", false, 333))[0]
	x = b.Must(graph.OpGELU, nil, x)[0]
	x = b.Must(graph.OpLinear, nil, x, b.Must(graph.OpTranspose, graph.PermAttrs{Perm: graph.MakeDims([]int{1, 0})}, w)[0])[0]
	x = b.Must(graph.OpLinear, nil, x, param("h.1.w", false, 131, width))[0]
	out := b.Must(graph.OpCrossEntropy, graph.CrossEntropyAttrs{Ignore: -1}, b.Must(graph.OpLinear, nil, x, param("head", false, 10, 131))[0], in["labels"])
	b.Output("loss", out[0])
	b.Output("weight", out[1])
	return b.G, nil
}

// tokenModel shares one table between a classifier and a model of tokens.
type tokenModel struct{}

func (tokenModel) table(b *graph.Builder) *graph.Value {
	return b.Must(graph.OpParam, graph.ParamAttrs{Name: "table", Shape: graph.MakeDims([]int{256, 144}), Init: graph.Init{Kind: graph.InitNormal, B: 1}})[0]
}

func (m tokenModel) Loss(batch []Input, _ bool) (*graph.Graph, error) {
	b := graph.NewBuilder()
	in := map[string]*graph.Value{}
	for _, i := range batch {
		in[i.Name] = b.Must(graph.OpInput, graph.InputAttrs{Name: i.Name, DType: i.DType, Shape: graph.MakeDims(i.Shape)})[0]
	}
	x := in["features"]
	x = b.Must(graph.OpReshape, graph.ShapeAttrs{Shape: graph.MakeDims([]int{x.Shape[0], 144})}, x)[0]
	out := b.Must(graph.OpCrossEntropy, graph.CrossEntropyAttrs{Ignore: -1}, b.Must(graph.OpLinear, nil, x, m.table(b))[0], in["labels"])
	b.Output("loss", out[0])
	b.Output("weight", out[1])
	return b.G, nil
}

func (m tokenModel) forward(in Input) (*graph.Graph, error) {
	b := graph.NewBuilder()
	tokens := b.Must(graph.OpInput, graph.InputAttrs{Name: in.Name, DType: in.DType, Shape: graph.MakeDims(in.Shape)})[0]
	table := m.table(b)
	b.Output("logits", b.Must(graph.OpLinear, nil, b.Must(graph.OpEmbedding, nil, table, tokens)[0], table)[0])
	return b.G, nil
}

package train_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"starling/core/checkpoint"
	"starling/core/cluster"
	"starling/core/comm"
	"starling/core/data"
	"starling/core/device/cpu"
	"starling/core/recipe"
	"starling/core/tensor"
	"starling/core/train"
)

const goldenFolder = "../../testdata/golden/"

// golden is one file of values that PyTorch made, by name, and its record.
type golden map[string]checkpoint.Tensor

func readGolden(t *testing.T, name string, record any) golden {
	t.Helper()
	list, _, err := checkpoint.ReadSafetensors(goldenFolder + name + ".safetensors")
	if err != nil {
		t.Fatal(err)
	}
	g := golden{}
	for _, x := range list {
		g[x.Name] = x
	}
	text, err := os.ReadFile(goldenFolder + name + ".json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, record); err != nil {
		t.Fatal(err)
	}
	return g
}

// under returns the float32 tensors named prefix.<name>, by name.
func (g golden) under(prefix string) map[string][]float32 {
	out := map[string][]float32{}
	for k, x := range g {
		if name, ok := strings.CutPrefix(k, prefix+"."); ok && x.DType == checkpoint.F32 {
			out[name] = tensor.View[float32](x.Data)
		}
	}
	return out
}

// recorded is a source of recorded batches: sample i is row i of columns [step, sample of the step, …], so that a run which does
// not shuffle sees step for step what PyTorch saw.
type recorded struct {
	fields  []data.Field
	columns []checkpoint.Tensor
	count   int64
}

// source makes a source of the named tensors, whose first lead dimensions number the samples.
func (g golden) source(t *testing.T, lead int, columns ...string) *recorded {
	t.Helper()
	r := &recorded{}
	for _, name := range columns {
		x, ok := g[name]
		if !ok {
			t.Fatalf("the golden values have no tensor %q", name)
		}
		f := data.Field{Name: name, DType: data.Float32, Shape: x.Shape[lead:]}
		if x.DType == checkpoint.I32 {
			f.DType = data.Int32
		}
		if name == "targets" || name == "labels" {
			f.Role = data.Target
		}
		r.count = int64(tensor.Shape(x.Shape[:lead]).Numel())
		r.fields, r.columns = append(r.fields, f), append(r.columns, x)
	}
	return r
}

func (r *recorded) Corpus() train.Corpus                            { return r }
func (r *recorded) Fields() []data.Field                            { return r.fields }
func (r *recorded) Len() int64                                      { return r.count }
func (r *recorded) Scan(context.Context) error                      { return nil }
func (r *recorded) Bytes() int64                                    { return 0 }
func (r *recorded) Load(context.Context, func(data.Progress)) error { return nil }
func (r *recorded) Fingerprint() string                             { return "golden" }
func (r *recorded) Close() error                                    { return nil }

// Sample copies row i of every column.
func (r *recorded) Sample(i int64, dst []data.Values) error {
	for k, f := range r.fields {
		n := int64(f.Elements())
		if f.DType == data.Int32 {
			copy(dst[k].Int32, tensor.View[int32](r.columns[k].Data)[i*n:(i+1)*n])
		} else {
			copy(dst[k].Float32, tensor.View[float32](r.columns[k].Data)[i*n:(i+1)*n])
		}
	}
	return nil
}

// goldenSource is recorded as a train.Source, whose Len is not a dataset's.
type goldenSource struct{ *recorded }

func (s goldenSource) Len() (int64, error)            { return s.count, nil }
func (s goldenSource) Dataset() (data.Dataset, error) { return s.recorded, nil }

// goldenRun is a recipe to be run over recorded batches from recorded weights.
type goldenRun struct {
	recipe string
	set    []string
	ranks  int
	init   map[string][]float32
	source *recorded
	change func(s *train.Spec) // may be nil
}

// goldenResult is what a run leaves.
type goldenResult struct {
	losses, norms []float64
	scales        []float64 // of the loss, in each step
	hash          string
	// states holds parameters and optimizer state by name, for each checkpoint after the first.
	states []map[string][]float32
}

func (r goldenResult) final() map[string][]float32 { return r.states[len(r.states)-1] }

// spec loads the recipe and puts the recorded batches in the place of its data.
func (g goldenRun) spec() (*train.Spec, error) {
	s, err := recipe.Load(filepath.Join("testdata", g.recipe+".star"), recipe.Options{Set: g.set})
	if err != nil {
		return nil, err
	}
	s.Data.Source = goldenSource{g.source}
	if g.change != nil {
		g.change(s)
	}
	return s, s.Validate()
}

// run trains on the CPU, every rank a goroutine. The recorded weights enter as a checkpoint of step 0, and
// what comes out is read from the checkpoints that the run writes.
func (g goldenRun) run(t *testing.T) goldenResult {
	t.Helper()
	dir := t.TempDir()
	if err := g.begin(filepath.Join(dir, train.CheckpointFolder)); err != nil {
		t.Fatal(err)
	}
	var out goldenResult
	_, err := cluster.InProcess(t.Context(), cluster.Config{Ranks: g.ranks}, func(ctx context.Context, w *cluster.Worker) error {
		dev, err := cpu.Open(cpu.Config{Threads: 1, Ranks: g.ranks})
		if err != nil {
			return err
		}
		defer dev.Close()
		s, err := g.spec()
		if err != nil {
			return err
		}
		env := train.Env{Rank: w.Rank(), World: g.ranks, Device: dev, Threads: 1, RunDir: dir, Resume: true, Digest: "golden",
			Status: w.Status, Stop: w.StopRequested(), Observe: func(e train.Event) {
				if e.Kind == train.EventWarning {
					t.Errorf("rank %d warns: %s", w.Rank(), e.Text)
				}
			}}
		if g.ranks > 1 {
			all := make([]int, g.ranks)
			for i := range all {
				all[i] = i
			}
			if env.Group, err = comm.NewGroup(w.Transport(), "data", all, comm.Options{}); err != nil {
				return err
			}
			defer env.Group.Close()
		}
		if w.Rank() == 0 {
			s.OnStep = func(m train.Metrics) (train.Action, error) {
				out.losses, out.norms = append(out.losses, m["loss"]), append(out.norms, m["grad_norm"])
				out.scales = append(out.scales, m["loss_scale"])
				return train.Action{}, nil
			}
		}
		r, err := train.Run(ctx, s, env)
		if err == nil && w.Rank() == 0 {
			out.hash = r.WeightsSHA256
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if out.states, err = readStates(filepath.Join(dir, train.CheckpointFolder)); err != nil {
		t.Fatal(err)
	}
	return out
}

// begin writes the checkpoint of step 0: the recorded weights, and every slot at its initial value.
func (g goldenRun) begin(dir string) error {
	s, err := g.spec()
	if err != nil {
		return err
	}
	p, err := train.Plan(s, g.ranks, 0)
	if err != nil {
		return err
	}
	if len(p.Params) != len(g.init) {
		return fmt.Errorf("the recipe has %d parameters, PyTorch's model %d", len(p.Params), len(g.init))
	}
	var tensors []checkpoint.Tensor
	add := func(name string, shape tensor.Shape, v []float32) {
		tensors = append(tensors, checkpoint.Tensor{Name: name, DType: checkpoint.F32, Shape: shape, Data: tensor.Bytes(v)})
	}
	for _, x := range p.Params {
		if len(g.init[x.Name]) != x.Place.Shape.Numel() {
			return fmt.Errorf("%s has %d elements in the recipe and %d in PyTorch's model", x.Name, x.Place.Shape.Numel(), len(g.init[x.Name]))
		}
		add(x.Name, x.Place.Shape, g.init[x.Name])
		for _, slot := range x.Slots {
			v := make([]float32, slot.Place.Shape.Numel())
			for i := range v {
				v[i] = float32(slot.Init)
			}
			add(slot.Key, slot.Place.Shape, v)
		}
	}
	trainer, err := json.Marshal(train.State{Digest: "golden", Data: g.source.Fingerprint()})
	if err != nil {
		return err
	}
	shard, err := checkpoint.WriteShard(context.Background(), dir, 0, 0, tensors)
	if err != nil {
		return err
	}
	_, err = checkpoint.Commit(dir, 0, trainer, []checkpoint.Shard{shard})
	return err
}

// readStates reads every checkpoint but that of step 0.
func readStates(dir string) ([]map[string][]float32, error) {
	entries, err := checkpoint.List(dir)
	if err != nil {
		return nil, err
	}
	var out []map[string][]float32
	for _, e := range entries {
		if e.Step == 0 {
			continue
		}
		c, err := checkpoint.Open(e.Path)
		if err != nil {
			return nil, err
		}
		state := map[string][]float32{}
		for _, x := range c.Tensors() {
			state[x.Name] = make([]float32, tensor.Shape(x.Shape).Numel())
			if err := c.ReadRange(x.Name, 0, tensor.Bytes(state[x.Name])); err != nil {
				return nil, err
			}
		}
		if err := c.Close(); err != nil {
			return nil, err
		}
		out = append(out, state)
	}
	return out, nil
}

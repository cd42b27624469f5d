package train

import (
	"errors"
	"fmt"

	"starling/core/compress"
	"starling/core/data"
	"starling/core/graph"
	"starling/core/optim"
	"starling/core/plan"
	"starling/core/plugin"
	"starling/core/tensor"
)

// Spec is a run: everything that a recipe says. It holds no memory of tensors and starts nothing.
type Spec struct {
	Name   string // the recipe's file name without extension
	Recipe string // path of the recipe, for messages and the run's record
	Params []Param
	Seed   uint64

	Model     Model
	Data      Data
	Optimizer optim.Optimizer
	ClipNorm  float64 // maximal global norm of the gradient; 0: no clipping
	NormType  plan.Norm
	ClipValue float64 // maximal absolute value of its elements, after ClipNorm; 0: no clipping
	Precision string  // "fp32", "bf16" or "fp16"
	// Reduce is the type in which gradients are added and travel: "" (fp32), "bf16" or "fp16".
	Reduce    string
	LossScale optim.LossScale
	Mesh      Mesh

	// Exactly one of Steps and Epochs is set.
	Steps  int
	Epochs int

	Evaluate   *Evaluate
	Checkpoint *Checkpoint
	// Transient is a run of which nothing is kept, such as a benchmark's: no checkpoint is written at all.
	Transient bool
	Samples   []Sample
	OnStep    Hook // may be nil
	OnEval    Hook // may be nil
	Sinks     []plugin.SinkSpec

	// Positions say where in the recipe a setting was written ("data", "optimizer", "mesh", …), for errors.
	Positions map[string]graph.Position
}

// Param is a value that a recipe declared with param().
type Param struct {
	Name    string `json:"name"`
	Value   any    `json:"value"` // bool, int64, float64 or string
	Default any    `json:"default"`
	Help    string `json:"help,omitempty"`
	// Placement says that the value only decides where work runs, so that it is not part of the recipe's digest. (Values that
	// reach the bits through the model or a setting are in the digest by themselves; this matters to what hooks see.)
	Placement bool `json:"placement,omitempty"`
}

// Input is a batch field as the model sees it: the name and the type with the batch dimension first.
type Input struct {
	Name string
	graph.Type
}

// Model traces the recipe's functions. Calls with equal arguments give equal graphs.
type Model interface {
	// Loss traces the loss on one micro-batch of the given inputs: see [BatchInputs]. The graph's inputs are those that the
	// recipe uses, and [InputRNG] where training draws random numbers. Its outputs are "loss" (the weighted
	// sum), "weight", and with training false a pair "metric.<name>", "metric_weight.<name>" for each metric.
	Loss(batch []Input, training bool) (*graph.Graph, error)
}

// Data is the training data and how it is cut into steps.
type Data struct {
	Source      Source
	GlobalBatch int // samples per optimizer step
	MicroBatch  int // samples per forward and backward pass
	Lanes       int // 0: min(micro-batches, 16)
	Shuffle     bool
	Workers     int
	Prefetch    int
}

// MicroBatches is the number of micro-batches of a step.
func (d Data) MicroBatches() int { return d.GlobalBatch / d.MicroBatch }

// LaneCount is the number of lanes, with the default applied.
func (d Data) LaneCount() int {
	if d.Lanes > 0 {
		return d.Lanes
	}
	return plan.DefaultLanes(d.MicroBatches())
}

// Mesh is the placement. Nothing in it but Reduction and Compress changes the bits of the result.
type Mesh struct {
	Data        int     // data-parallel ranks
	BucketMB    float64 // size of a gradient bucket, 25 by default
	FirstBucket float64 // size of the first bucket in MB, 1 by default
	Threads     int     // CPU threads per rank; 0: the usable cores shared among the ranks
	// Hosts names the host of each process, where the recipe declares them; what the command line says goes before.
	Hosts      []string
	TimeoutSec float64 // deadline of a collective, 60 by default

	Zero         int     // what is sharded over the ranks: 0 nothing, 1 optimizer state, 2 gradients too, 3 parameters too
	Shard        int     // with Zero 3, how many neighbouring ranks share one copy of the parameters; 0: all
	KeepGathered bool    // with Zero 3, keep a block's parameters whole between its forward and its backward pass
	KeepWholeKB  float64 // with Zero 3, groups of parameters below this size in KB stay whole on every rank
	MemoryBytes  int64   // what a rank may take, 0: as much as it needs; a run that will not fit is refused
	HostBytes    int64   // with OffloadHost, what it may take off the device; MemoryBytes is then the device's alone
	Offload      string  // "", OffloadHost or OffloadDisk
	OffloadWork  bool    // with Offload, activations too, between the passes
	Recompute    plan.Recompute
	LossRows     int // rows of a chunk of logits, 0: chosen by their number, below 0: all at once
	// Reduction is how gradients are summed over the ranks: "" or ReductionCanonical in the tree's order, as is what comm.Direct and
	// comm.Hierarchical force; ReductionFast, or the name of another algorithm, outside it, which changes bits and is part of the recipe's digest.
	Reduction string
	// Compress is how gradients are compressed on their way, which does change bits: with it they depend on the rest of the placement too.
	Compress  compress.Config
	NoOverlap bool // wait for each collective where it starts, to see what overlapping gains
}

// Evaluate is the evaluation on held-out data.
type Evaluate struct {
	Source     Source
	Every      int    // optimizer steps between evaluations; one more follows the last step
	Batches    int    // global batches of each evaluation; 0: all
	MicroBatch int    // 0: the training micro-batch
	Best       string // "loss" or a metric's name: keep the checkpoint that is best by it; "": keep none
	BestMode   string // "min" or "max"
}

// Checkpoint is when checkpoints are written and how many stay.
type Checkpoint struct {
	Every int // optimizer steps; one more follows the last step; 0: only at the end and on request
	Keep  int // newest ones kept, 3 by default; the best by evaluation is kept besides
}

// Sample is text drawn from the model for people to read.
type Sample struct {
	// Forward traces tokens I32[1,T] to logits [1,T,V] (output "logits").
	Forward     func(tokens Input) (*graph.Graph, error)
	Tokenizer   data.Tokenizer
	Context     int // T
	Prompt      string
	Tokens      int
	Every       int     // optimizer steps; one more follows the last step; 0: only at the end
	Temperature float64 // 0: greedy
	TopK        int     // 0: all
}

// Hook is a function of the recipe that sees a step's metrics. Hooks run on every rank on equal values.
type Hook func(m Metrics) (Action, error)

// Metrics are the figures of a step or an evaluation, by name: "step", "epoch", "loss", "lr",
// "grad_norm", "tokens"; in evaluations also "eval_loss" and the metrics.
type Metrics map[string]float64

// Action is what a hook asks for.
type Action struct {
	LR      *float64 // replaces the learning rate from the next step on, until replaced again
	LRScale *float64 // multiplies the scheduled learning rate from the next step on
	Stop    bool     // end the run after this step, as if it were the last
	Save    bool     // write a checkpoint now
}

// Error is a mistake in a spec, with the place in the recipe where it was written.
type Error struct {
	Pos graph.Position
	Msg string
}

func (e *Error) Error() string {
	if p := e.Pos.String(); p != "" {
		return p + ": " + e.Msg
	}
	return e.Msg
}

// maxSteps bounds a run: more would not end in anybody's life.
const maxSteps = 1 << 40

func (s *Spec) errorf(key, format string, args ...any) error {
	return &Error{s.Positions[key], fmt.Sprintf(format, args...)}
}

// Validate reports every setting that cannot be meant, without reading data or tracing the model.
func (s *Spec) Validate() error {
	var errs []error
	bad := func(key, format string, args ...any) { errs = append(errs, s.errorf(key, format, args...)) }
	d := s.Data
	switch {
	case d.Source == nil:
		bad("data", "train: data is missing")
	case d.GlobalBatch < 1 || d.MicroBatch < 1:
		bad("data", "loader: global_batch = %d and micro_batch = %d: both must be at least 1", d.GlobalBatch, d.MicroBatch)
	case d.GlobalBatch > 1<<24:
		bad("data", "loader: global_batch = %d: must be at most %d samples", d.GlobalBatch, 1<<24)
	case d.GlobalBatch%d.MicroBatch != 0:
		bad("data", "loader: global_batch = %d is no multiple of micro_batch = %d; use micro_batch = %d", d.GlobalBatch, d.MicroBatch, data.NearestDivisor(d.GlobalBatch, d.MicroBatch))
	case d.Lanes < 0 || d.Lanes > d.MicroBatches():
		bad("data", "loader: lanes = %d: a step has %d micro-batches (global_batch %d / micro_batch %d), so lanes must lie between 1 and %d", d.Lanes, d.MicroBatches(), d.GlobalBatch, d.MicroBatch, d.MicroBatches())
	default:
		if err := s.settings(s.Mesh.Data, 0, 1).Validate(); err != nil {
			bad("mesh", "%v", err)
		}
	}
	if d.Workers < 0 || d.Workers > 256 || d.Prefetch < 0 || d.Prefetch > 1024 {
		bad("data", "loader: workers = %d, prefetch = %d: workers must lie between 0 and 256, prefetch between 0 and 1024", d.Workers, d.Prefetch)
	}
	if m := s.Mesh; !(m.TimeoutSec == 0 || m.TimeoutSec >= 0.001 && m.TimeoutSec <= 1e7) || !(m.BucketMB >= 0 && m.BucketMB <= 1e6) ||
		!(m.FirstBucket >= 0 && m.FirstBucket <= 1e6) || m.Threads < 0 || m.Threads > 1024 {
		bad("mesh", "parallel.mesh: timeout = %v s must lie between 0.001 and 10,000,000, bucket_mb = %v and first_bucket_mb = %v between 0 and 1,000,000, threads = %d between 0 and 1024",
			m.TimeoutSec, m.BucketMB, m.FirstBucket, m.Threads)
	}
	if _, fast, err := s.Mesh.algorithm(); err == nil && fast && s.Reduce != "" {
		bad("mesh", "parallel.mesh(reduction = %q): sums in reduce_dtype = %q are rounded at every node of the canonical tree; use one of the two", s.Mesh.Reduction, s.Reduce)
	}
	if err := s.Mesh.checkReduction(); err != nil {
		bad("mesh", "%v", err)
	}
	for _, key := range sortedKeys(s.sources()) {
		for _, f := range s.sources()[key].Fields() {
			if f.Name == InputWeight || f.Name == InputRNG {
				bad(key, "the data has a field called %q, which is a name that every batch has already; give the field another", f.Name)
			}
		}
	}
	if (s.Steps > 0) == (s.Epochs > 0) {
		bad("train", "train: give either steps or epochs, at least 1 (steps = %d, epochs = %d)", s.Steps, s.Epochs)
	}
	if s.Optimizer == nil {
		bad("train", "train: optimizer is missing")
	} else if err := s.Optimizer.Validate(); err != nil {
		bad("optimizer", "optimizer: %v", err)
	}
	if _, ok := halfTypes[s.Precision]; !ok && s.Precision != "fp32" && s.Precision != "" {
		bad("precision", "precision = %q: must be fp32, bf16 or fp16", s.Precision)
	}
	if _, ok := halfTypes[s.Reduce]; !ok && s.Reduce != "" {
		bad("precision", "precision: reduce_dtype = %q: must be bf16 or fp16, or be left out for fp32", s.Reduce)
	}
	if o := s.Mesh.Offload; o != "" && o != OffloadHost && o != OffloadDisk {
		bad("mesh", "parallel.mesh(offload = %q): must be %q or %q", o, OffloadHost, OffloadDisk)
	}
	if s.Mesh.OffloadWork && s.Mesh.Offload == "" || s.Mesh.HostBytes != 0 && s.Mesh.Offload != OffloadHost {
		bad("mesh", "parallel.mesh(offload = %q, offload_activations = …, host_memory = …): activations need somewhere to go, and a limit of the host's memory something that is there", s.Mesh.Offload)
	}
	if err := s.compressible(); err != nil {
		bad("mesh", "%v", err)
	}
	if err := s.LossScale.Validate(); err != nil {
		bad("precision", "%v", err)
	}
	if !(s.ClipNorm >= 0) {
		bad("train", "train: clip_norm = %v: must be at least 0 (0 turns clipping off)", s.ClipNorm)
	}
	if !(s.ClipValue >= 0) {
		bad("train", "train: clip_value = %v: must be at least 0 (0 turns clipping off)", s.ClipValue)
	}
	if e := s.Evaluate; e != nil && (e.Every < 0 || e.Batches < 0) {
		bad("evaluate", "evaluate: every = %d, batches = %d: neither can be negative", e.Every, e.Batches)
	}
	if c := s.Checkpoint; c != nil && (c.Every < 0 || c.Keep < 1) {
		bad("checkpoint", "checkpoint: every = %d, keep = %d: every cannot be negative and keep must be at least 1", c.Every, c.Keep)
	}
	for _, x := range s.Samples {
		if x.Tokens < 1 || x.Every < 0 || !(x.Temperature >= 0 && x.Temperature <= 1e6) || x.TopK < 0 || x.Context < 1 {
			bad("sample", "sample: tokens = %d, every = %d, temperature = %v, top_k = %d, context = %d: tokens and context must be at least 1, the others at least 0", x.Tokens, x.Every, x.Temperature, x.TopK, x.Context)
		}
	}
	return errors.Join(errs...)
}

// halfTypes are the precisions in which weights and activations take two bytes.
var halfTypes = map[string]tensor.DType{"bf16": tensor.BF16, "fp16": tensor.F16}

package plan

import (
	"errors"
	"fmt"

	"starling/core/comm"
	"starling/core/compress"
	"starling/core/graph"
	"starling/core/tensor"
)

// Default bucket sizes: large enough to use a link well, the first one small so that communication starts early.
const (
	DefaultBucketBytes      = 25 << 20
	DefaultFirstBucketBytes = 1 << 20
)

// HyperLen is the length of one row of the table of hyper-parameters, in float64 values.
const HyperLen = 8

// Settings is what lowering needs to know beside the graph.
type Settings struct {
	// World is the number of data-parallel ranks, Rank the one that the plan is for.
	World, Rank int
	// PerHost is how many neighbouring ranks of each host add gradients before they are compressed (comm.Hosting); 0 and 1: none do.
	PerHost int
	// MicroBatches of one step, in the whole world, are cut into Lanes contiguous lanes.
	Lanes, MicroBatches int
	// GlobalBatch and MicroBatch are the samples of a step and of a micro-batch. They only serve the
	// advice in errors and may be 0.
	GlobalBatch, MicroBatch int
	// BucketBytes bounds a gradient bucket, FirstBucketBytes the one that is complete first. 0 means the default.
	BucketBytes, FirstBucketBytes int64
	// Zero is how much of the model's state is sharded over the ranks (Rajbhandari et al., ZeRO, 2020): 0 nothing, 1 the
	// optimizer's state, 2 gradients as well, 3 parameters as well.
	Zero int
	// Shard is how many neighbouring ranks share one copy of the parameters under Zero 3 (see hybrid.go): 0 means all of World, which it must
	// divide.
	Shard int
	// KeepGathered keeps parameters that are sharded whole from a block's forward to its backward pass.
	KeepGathered bool
	// KeepWholeBytes leaves groups of parameters below that size whole on every rank under Zero 3.
	KeepWholeBytes int64
	// NoOverlap makes the program wait for each collective where it is started.
	NoOverlap bool
	// Early lets each bucket's parameters be updated as soon as its sum is there (see early.go): nothing about the whole gradient decides
	// on the update. It changes no bits.
	Early bool
	// Half is the half type of the recipe's precision: BF16 or F16; anything else means fp32 throughout. The optimizer then keeps the
	// exact parameters as state, and Params holds them rounded.
	Half tensor.DType
	// Reduce is the half type to which the total of each lane and each node of the sum over lanes is rounded, and in which they travel
	// between ranks; Invalid leaves them in fp32.
	Reduce tensor.DType
	// Norm is the norm of the gradient that the norm segment computes, and ClipValue asks for SegmentClip.
	Norm      Norm
	ClipValue bool
	// Fast gives up the canonical order of the sum over ranks, by Algorithm: a rank then sends one vector, whatever its lanes.
	Fast      bool
	Algorithm comm.Algorithm
	// Compress says how gradients are compressed on their way between ranks.
	Compress compress.Config
	// LossRows is the rows of a chunk of logits. 0 takes the default, and chunks only where logits are large; below 0 there are no
	// chunks. It changes no bits.
	LossRows int
	// Recompute says of which blocks the activations are computed again for the backward pass.
	Recompute Recompute
	// OffloadActivations lets activations wait off the device between the passes (see offload.go).
	OffloadActivations bool
	// Update says what the optimizer does with a parameter that is not frozen.
	Update func(param graph.ParamAttrs) (Update, error)
}

// Update is the optimizer's operation on one parameter. Its inputs are the parameter, its gradient, the slots in
// order and the row of hyper-parameters; its results are the parameter and the slots, all of them in place.
type Update struct {
	Op    *graph.Op
	Attrs any
	Slots []Slot
	// Group is the row of the table of hyper-parameters that the operation reads.
	Group int
	// Whole says that the operation looks at the parameter as a whole, such as a matrix: it is never cut among ranks.
	// Other operations work element by element.
	Whole bool
	// External says that there is no operation: whoever runs the plan renews the part Owned before it runs the update
	// segment.
	External bool
}

// Slot is one piece of optimizer state, stored as <parameter>/<Name>.
type Slot struct {
	Name string
	Init float64
	// Own says that Shape is its shape, else it has the parameter's. Only external updates of whole parameters have such slots.
	Own   bool
	Shape []int
	// DType is its element type, Invalid for f32. Block, if not 0, is how many elements of the parameter share one entry of it: a
	// vector with one entry for each block, or part of one. Norm blocks are whole numbers of such blocks.
	DType tensor.DType
	Block int
}

// of is the slot's type for n elements of a parameter, which have the type t.
func (s Slot) of(t graph.Type) graph.Type {
	if s.DType != tensor.Invalid {
		t.DType = s.DType
	}
	if s.Block > 0 {
		t.Shape = tensor.Shape{(t.Shape.Numel() + s.Block - 1) / s.Block}
	}
	return t
}

// DefaultLanes is the number of lanes where the recipe names none: one for each micro-batch, sixteen at most.
func DefaultLanes(microBatches int) int { return min(microBatches, 16) }

// withDefaults fills in the sizes that were left at 0.
func (s Settings) withDefaults() Settings {
	if s.BucketBytes == 0 {
		s.BucketBytes = DefaultBucketBytes
	}
	if s.FirstBucketBytes == 0 {
		s.FirstBucketBytes = min(DefaultFirstBucketBytes, s.BucketBytes)
	}
	return s
}

// Validate reports settings that cannot work together. The message for a world that is too large says which values
// would do.
func (s Settings) Validate() error {
	switch {
	case s.World < 1:
		return fmt.Errorf("parallel.mesh(data = %d): there must be at least 1 data rank", s.World)
	case s.Rank < 0 || s.Rank >= s.World:
		return fmt.Errorf("rank %d does not exist in a world of %d", s.Rank, s.World)
	case s.MicroBatches < 1:
		return fmt.Errorf("a step has %d micro-batches: there must be at least 1", s.MicroBatches)
	case s.Lanes < 1 || s.Lanes > s.MicroBatches:
		return fmt.Errorf("lanes = %d: must lie between 1 and the %d micro-batches of a step", s.Lanes, s.MicroBatches)
	case s.BucketBytes < 0 || s.FirstBucketBytes < 0:
		return fmt.Errorf("bucket sizes of %d and %d bytes: must not be negative", s.BucketBytes, s.FirstBucketBytes)
	case s.Zero < 0 || s.Zero > 3:
		return fmt.Errorf("parallel.mesh(zero = %d): 0 shards nothing, 1 the optimizer's state, 2 gradients too, 3 parameters too", s.Zero)
	case s.KeepWholeBytes < 0:
		return fmt.Errorf("parameters kept whole below %d bytes: must not be negative", s.KeepWholeBytes)
	case s.Recompute.Every < 0 || s.Recompute.Budget < 0:
		return fmt.Errorf("recompute: every = %d, budget = %d bytes: neither can be negative", s.Recompute.Every, s.Recompute.Budget)
	case s.World > s.Lanes:
		return s.tooManyRanks()
	case s.Update == nil:
		return errors.New("plan: no optimizer: Settings.Update is nil")
	}
	return s.checkShard()
}

// stage is what is sharded: nothing where there is one rank.
func (s Settings) stage() int {
	if s.World == 1 {
		return 0
	}
	return s.Zero
}

func (s Settings) tooManyRanks() error {
	batches := fmt.Sprintf("%d micro-batches", s.MicroBatches)
	if s.GlobalBatch > 0 && s.MicroBatch > 0 {
		batches = fmt.Sprintf("global_batch %d / micro_batch %d = %s", s.GlobalBatch, s.MicroBatch, batches)
	}
	advice := fmt.Sprintf("use data <= %d", s.Lanes)
	if s.MicroBatches >= s.World {
		advice += fmt.Sprintf(", or lanes = %d", s.World)
	} else if m := s.fittingMicroBatch(); m > 0 {
		advice += fmt.Sprintf(", or micro_batch = %d", m)
	}
	return fmt.Errorf("parallel.mesh(data = %d): %s give %d lanes, too few for %d data ranks;\n    %s",
		s.World, batches, s.Lanes, s.World, advice)
}

// fittingMicroBatch is the largest micro-batch that divides the global batch into enough lanes, 0 if there is none.
func (s Settings) fittingMicroBatch() int {
	for m := s.MicroBatch; m > 0; m-- {
		if s.GlobalBatch%m == 0 && DefaultLanes(s.GlobalBatch/m) >= s.World {
			return m
		}
	}
	return 0
}

// LaneMicroBatches is the range of micro-batches that make up lane i: ⌊iM/L⌋ … ⌊(i+1)M/L⌋-1.
func (s Settings) LaneMicroBatches(i int) comm.Range {
	return comm.Range{Lo: i * s.MicroBatches / s.Lanes, Hi: (i + 1) * s.MicroBatches / s.Lanes}
}

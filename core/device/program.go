package device

import (
	"starling/core/graph"
	"starling/core/tensor"
)

// Space is the arena that an operand lies in. The arenas differ in lifetime and in who maps them.
type Space uint8

// The arenas of a rank.
const (
	// Params holds the parameters, for the whole run.
	Params Space = iota
	// State holds the optimizer's state, for the whole run.
	State
	// Grads is one gradient buffer. A rank has several of equal layout (the stack that folds lanes);
	// a segment is bound once for each.
	Grads
	// Work holds activations and other values that live inside one run of a segment.
	Work
	// IO holds what the host writes before a run and reads after it: batches, random-number state,
	// seeds, losses, hyper-parameters, norm partials.
	IO
	// Sums holds this rank's part of the gradient where gradients are sharded: one of a stack of buffers of equal layout,
	// which only the communicator and what follows the sum over lanes touch.
	Sums
	// Offload holds values of one run of a segment that wait off the device, in the host's memory or in a file, until they are needed
	// again. No kernel touches it.
	Offload
	NumSpaces
)

var spaceNames = [NumSpaces]string{"params", "state", "grads", "work", "io", "sums", "offload"}

// String returns the arena's name.
func (s Space) String() string { return spaceNames[s] }

// Operand is a typed place in an arena.
type Operand struct {
	graph.Type
	Space  Space
	Offset int64 // bytes from the start of the arena, a multiple of Align
}

// Align is the alignment of every operand, in bytes.
const Align = 64

// Kind tells what an instruction is.
type Kind uint8

// The kinds of instruction.
const (
	// Kernel runs one operation.
	Kernel Kind = iota
	// Fold adds finished lanes of one bucket together, as Env.Merges says.
	Fold
	// Round rounds the bucket of a finished lane to the type Rounding, before it is folded.
	Round
	// Start hands a bucket to the communicator; Wait blocks until it is done.
	Start
	Wait
	// Copy begins to copy In[0] to Out[0] beside the kernels that follow, and Copied blocks until it is done. Bucket is the
	// number of the copy in its segment. Copies are made in the order in which they begin.
	Copy
	Copied
	// Renew says that what bucket number Bucket completes may be updated from now on: nothing in the segment reads it any more.
	Renew
)

// When is the moment of the step at which an instruction runs.
type When uint8

// The moments.
const (
	Always When = iota
	// LastInLane: only in the last micro-batch of each lane.
	LastInLane
	// LastOnRank: only in the last micro-batch that the rank runs in the step.
	LastOnRank
)

// String prints the moment as it appears in dumps; empty for Always.
func (w When) String() string {
	return [...]string{"", "last in lane", "last on rank"}[w]
}

// Instr is one instruction.
type Instr struct {
	Kind  Kind
	Op    *graph.Op // of a Kernel
	Attrs any
	In    []Operand
	Out   []Operand
	// Accum: the result is added to what Out[0] holds, except in the first micro-batch of a lane.
	Accum bool
	When  When
	// Bucket is the number of the gradient bucket (Fold, Start, Wait, Renew); Out[0] is then its range in Grads. For a collective that
	// completes parameters it is the number of their unit, and Out[0] where the whole unit lies. Of Copy and Copied it is the number of the copy.
	Bucket int
	// Rounding, of Round and Fold, is the half type to which the sums of lanes are rounded; of a Fold it may be Invalid: they are not.
	Rounding tensor.DType
	// Group names the process group of a collective, such as "data"; Collective the operation.
	Group, Collective string
	// FLOPs and Bytes are the arithmetic and the memory traffic of one run, for cost models and dumps.
	FLOPs, Bytes int64
	// Node is the graph node behind the instruction, for positions and blocks in errors; may be nil.
	Node *graph.Node
}

// Segment is a linear list of instructions that runs from start to end.
type Segment struct {
	Name   string // "micro", "evaluate", "sample", "apply", …
	Instrs []Instr
	// Inputs and Outputs are the named places in IO that the host writes and reads.
	Inputs, Outputs map[string]Operand
	// WorkBytes is the extent of the Work arena that the segment needs.
	WorkBytes int64
}

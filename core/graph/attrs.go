package graph

import "starling/core/tensor"

// The attributes of the operations that have any. Each is a plain comparable struct, so that two
// nodes can be compared and printed field by field.

// InputAttrs describes an input: a value given anew for every run of the program.
type InputAttrs struct {
	Name  string
	DType tensor.DType
	Shape Dims
}

// ParamAttrs describes a trainable parameter.
type ParamAttrs struct {
	Name  string // by block path, such as "h.0.mlp.up.weight"
	Shape Dims
	Init  Init
	// Frozen parameters get no gradient and no optimizer state.
	Frozen bool
	// Buffer marks a named value that is no parameter, such as the running mean of a batch norm. What stands for its gradient is what a
	// micro-batch has seen; once a step it moves by Rate towards the mean of that over all micro-batches (OpAverage). Neither the optimizer nor
	// the gradient's norm, its clipping, its compression or half precision touch it; it is stored and hashed with the parameters.
	Buffer bool
	Rate   float64
}

// Init says how a parameter's initial values are drawn. Draws are keyed by the parameter's name,
// so they depend neither on the order of definition nor on placement.
type Init struct {
	Kind InitKind
	A, B float64 // constant: A; uniform: [A, B); normal: mean A, standard deviation B
}

// InitKind is a distribution of initial values.
type InitKind uint8

// The distributions.
const (
	InitConstant InitKind = iota
	InitUniform
	InitNormal
)

// FullAttrs is a constant F32 tensor with every element equal.
type FullAttrs struct {
	Value float64
	Shape Dims
}

// ScalarAttrs is an operation with one number, such as scale or add_scalar.
type ScalarAttrs struct{ Value float64 }

// CastAttrs is a conversion of element type, rounding to nearest even.
type CastAttrs struct{ To tensor.DType }

// maxDims bounds a tensor's rank, so that attributes can hold shapes in arrays.
const maxDims = 8

// Dims is a comparable list of up to eight integers: a shape, a permutation or a list of axes.
type Dims struct {
	N int
	D [maxDims]int
}

// MakeDims copies a list. Longer lists than eight are refused by the shape rules before they get here.
func MakeDims(d []int) Dims {
	var a Dims
	a.N = copy(a.D[:], d)
	return a
}

// Slice returns the list.
func (d Dims) Slice() []int { return append([]int(nil), d.D[:d.N]...) }

// ShapeAttrs gives a target shape (reshape, broadcast_to, sum_to).
type ShapeAttrs struct{ Shape Dims }

// PermAttrs permutes dimensions: result dimension i is input dimension Perm[i].
type PermAttrs struct{ Perm Dims }

// SliceAttrs takes [Start, End) with step 1 along one axis; pad_slice puts it back into zeros of extent Size.
type SliceAttrs struct{ Axis, Start, End, Size int }

// AxisAttrs names one axis (concat).
type AxisAttrs struct{ Axis int }

// ReduceAttrs names the axes of a reduction, ascending.
type ReduceAttrs struct {
	Axes Dims
	Keep bool // keep reduced dimensions as 1
}

// MatmulAttrs transposes the last two dimensions of either operand.
type MatmulAttrs struct{ TransA, TransB bool }

// EmbeddingGradAttrs gives the number of rows of the table.
type EmbeddingGradAttrs struct{ Rows int }

// NormAttrs is a layer or RMS norm over the last dimension.
type NormAttrs struct{ Eps float64 }

// AverageAttrs is the step of a running average: Weight makes the mean of the sum, Rate is how far to move towards it.
type AverageAttrs struct{ Rate, Weight float64 }

// AttentionAttrs is scaled dot-product attention.
type AttentionAttrs struct {
	Causal bool
	Scale  float64 // multiplies the scores; 1/sqrt(head width) by convention
}

// RotaryAttrs rotates pairs (i, i+D/2) of each head (the GPT-NeoX and LLaMA convention).
type RotaryAttrs struct {
	Base    float64
	Offset  int  // position of the first row
	Inverse bool // rotate backwards: the gradient
}

// DropoutAttrs drops elements with probability P and scales the rest by 1/(1-P). Key is the hash of the block's
// path and the draw's ordinal in it; with the run's seed, step and micro-batch it keys a Philox generator.
type DropoutAttrs struct {
	P   float64
	Key uint64
}

// CrossEntropyAttrs: rows whose target is Ignore (and every negative target) weigh nothing.
type CrossEntropyAttrs struct{ Ignore int }

// LinearLossAttrs is cross-entropy of a linear layer in chunks of Rows rows.
type LinearLossAttrs struct {
	CrossEntropyAttrs
	Rows int
}

// ConvAttrs is a two-dimensional convolution over [N,C,H,W].
type ConvAttrs struct {
	StrideH, StrideW     int
	PadH, PadW           int
	DilationH, DilationW int
	Groups               int
	// InH, InW (input gradient) or KH, KW (weight gradient) restore what the shapes alone do not tell.
	H, W int
}

// PoolAttrs is a two-dimensional pooling window over [N,C,H,W]. Average pooling counts padding as
// PyTorch does by default (count_include_pad).
type PoolAttrs struct {
	KH, KW           int
	StrideH, StrideW int
	PadH, PadW       int
	H, W             int // extent of the input, in gradients
}

// AdamWAttrs and SGDAttrs are optimizer updates; every number that may change during a run is read from
// the table of hyper-parameters instead (see HyperAdamW, HyperSGD).
type AdamWAttrs struct{}

// SGDAttrs holds what decides the form of the update.
type SGDAttrs struct {
	Momentum bool // state slot "momentum" exists
	Nesterov bool
}

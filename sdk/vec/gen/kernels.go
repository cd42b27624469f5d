package main

// kernel is one entry of the dispatch table: a function on slices that every
// kernel set implements under the name plus the set's suffix.
type kernel struct {
	name   string
	params string // Go parameter list; a reduction's lanes come first and callers do not see them
	result string // Go result type, "" for none
	fold   string // of a reduction, how a lane begins: "zero" or "lowest"
	blocks bool   // the assembly takes multiples of 32 elements; plain Go does the rest
}

// kernels lists every function that dispatches on the active set. All slices of
// one call have equal lengths.
var kernels = []kernel{
	{name: "add", params: "dst, a, b []float32"},
	{name: "sub", params: "dst, a, b []float32"},
	{name: "mul", params: "dst, a, b []float32"},
	{name: "div", params: "dst, a, b []float32"},
	{name: "maximum", params: "dst, a, b []float32"},
	{name: "minimum", params: "dst, a, b []float32"},
	{name: "mulAddTo", params: "dst, a, b []float32"},
	{name: "addScalar", params: "dst, x []float32, s float32"},
	{name: "scale", params: "dst, x []float32, s float32"},
	{name: "axpy", params: "dst, x []float32, s float32"},
	{name: "neg", params: "dst, x []float32"},
	{name: "abs", params: "dst, x []float32"},
	{name: "sqrt", params: "dst, x []float32"},
	{name: "rsqrt", params: "dst, x []float32"},
	{name: "exp", params: "dst, x []float32"},
	{name: "log", params: "dst, x []float32"},
	{name: "tanh", params: "dst, x []float32"},
	{name: "sigmoid", params: "dst, x []float32"},
	{name: "relu", params: "dst, x []float32"},
	{name: "gelu", params: "dst, x []float32"},
	{name: "geluErf", params: "dst, x []float32"},
	{name: "silu", params: "dst, x []float32"},
	{name: "tanhGrad", params: "dst, y, dy []float32"},
	{name: "sigmoidGrad", params: "dst, y, dy []float32"},
	{name: "reluGrad", params: "dst, x, dy []float32"},
	{name: "geluGrad", params: "dst, x, dy []float32"},
	{name: "geluErfGrad", params: "dst, x, dy []float32"},
	{name: "siluGrad", params: "dst, x, dy []float32"},

	{name: "sum", params: "lanes *[32]float32, x []float32", fold: "zero"},
	{name: "dot", params: "lanes *[32]float32, a, b []float32", fold: "zero"},
	{name: "devSq", params: "lanes *[32]float32, x []float32, mean float32", fold: "zero"},
	{name: "sumSq64", params: "lanes *[32]float64, x []float32", blocks: true},
	{name: "maxOf", params: "lanes *[32]float32, x []float32", fold: "lowest"},
	{name: "allFinite", params: "x []float32", result: "bool", blocks: true},

	{name: "expSum", params: "lanes *[32]float32, dst, x []float32, top, scale float32", fold: "zero"},
	{name: "expShiftSum", params: "lanes *[32]float32, dst, x []float32, scale, top float32", fold: "zero"},
	{name: "expTotal", params: "lanes *[32]float32, x []float32, top float32", fold: "zero"},
	{name: "expScale", params: "dst, x []float32, lse, scale float32"},
	{name: "softmaxGrad", params: "dst, y, dy []float32, dot, scale float32"},
	{name: "attentionGradRow", params: "p, ds []float32, scale, lse, delta float32"},
	{name: "norm", params: "dst, x []float32, mean, rstd float32"},
	{name: "channelNorm", params: "dst, x []float32, mean, scale, shift float32"},
	{name: "channelNormGrad", params: "dst, dy, x []float32, mean, shift, slope, scale float32"},
	{name: "normScale", params: "dst, x, w []float32, mean, rstd float32"},
	{name: "normAffine", params: "dst, x, w, b []float32, mean, rstd float32"},
	{name: "normGradSums", params: "s, t *[32]float32, dy, x []float32, mean, rstd float32", fold: "zero"},
	{name: "normGradSumsScaled", params: "s, t *[32]float32, dy, x, w []float32, mean, rstd float32", fold: "zero"},
	{name: "normGrad", params: "dst, dy, x []float32, mean, rstd, c1, c2 float32"},
	{name: "normGradScaled", params: "dst, dy, x, w []float32, mean, rstd, c1, c2 float32"},
	{name: "normGradWeight", params: "dw, dy, x []float32, mean, rstd float32"},

	{name: "adamW", params: "p, g, m, v []float32, h *[8]float32"},
	{name: "sgd", params: "p, g []float32, h *[8]float32"},
	{name: "sgdMomentum", params: "p, g, buf []float32, h *[8]float32"},
	{name: "sgdNesterov", params: "p, g, buf []float32, h *[8]float32"},

	{name: "bf16ToF32", params: "dst []float32, src []uint16", blocks: true},
	{name: "f32ToBF16", params: "dst []uint16, src []float32", blocks: true},
	{name: "addRound", params: "dst []uint16, a, b []float32", blocks: true},
	{name: "addWide", params: "dst []float32, src []uint16", blocks: true},
	{name: "addBF16", params: "dst, a, b []uint16", blocks: true},
	{name: "subBF16", params: "dst, a, b []uint16", blocks: true},
	{name: "mulBF16", params: "dst, a, b []uint16", blocks: true},
	{name: "reluBF16", params: "dst, x []uint16", blocks: true},
	{name: "geluBF16", params: "dst, x []uint16", blocks: true},
	{name: "geluErfBF16", params: "dst, x []uint16", blocks: true},
	{name: "siluBF16", params: "dst, x []uint16", blocks: true},
	{name: "reluGradBF16", params: "dst, x, dy []uint16", blocks: true},
	{name: "geluGradBF16", params: "dst, x, dy []uint16", blocks: true},
	{name: "geluErfGradBF16", params: "dst, x, dy []uint16", blocks: true},
	{name: "siluGradBF16", params: "dst, x, dy []uint16", blocks: true},
	{name: "f16ToF32", params: "dst []float32, src []uint16", blocks: true},
	{name: "f32ToF16", params: "dst []uint16, src []float32", blocks: true},
}

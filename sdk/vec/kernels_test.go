package vec

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// kernelCase runs one function on slices of equal length: in are only read, out
// may be read and are written; the results are what it returns besides.
type kernelCase struct {
	name     string
	ins, out int
	run      func(in, out [][]float32) (results []float32)
}

func unaryCase(name string, f func(dst, x []float32)) kernelCase {
	return kernelCase{name, 1, 1, func(in, out [][]float32) []float32 { f(out[0], in[0]); return nil }}
}

func binaryCase(name string, f func(dst, a, b []float32)) kernelCase {
	return kernelCase{name, 2, 1, func(in, out [][]float32) []float32 { f(out[0], in[0], in[1]); return nil }}
}

func scalarCase(name string, f func(dst, x []float32, s float32)) kernelCase {
	return kernelCase{name, 1, 1, func(in, out [][]float32) []float32 { f(out[0], in[0], 0.7); return nil }}
}

func adamCase(name string, a AdamWParams) kernelCase {
	return kernelCase{name, 1, 3, func(in, out [][]float32) []float32 {
		Abs(out[2], out[2]) // second moments are not negative
		AdamW(out[0], in[0], out[1], out[2], a)
		return nil
	}}
}

func sgdCase(name string, s SGDParams) kernelCase {
	return kernelCase{name, 1, 2, func(in, out [][]float32) []float32 { SGD(out[0], in[0], out[1], s); return nil }}
}

func layerNormCase(name string, w, b bool) kernelCase {
	return kernelCase{name, 3, 1, func(in, out [][]float32) []float32 {
		if !w {
			in[1] = nil
		}
		if !b {
			in[2] = nil
		}
		mean, rstd := LayerNorm(out[0], in[0], in[1], in[2], 1e-5)
		return []float32{mean, rstd}
	}}
}

// kernelCases has every function on float32 slices but Gemm.
var kernelCases = []kernelCase{
	binaryCase("Add", Add), binaryCase("Sub", Sub), binaryCase("Mul", Mul), binaryCase("Div", Div),
	binaryCase("Max", Max), binaryCase("Min", Min), binaryCase("MulAddTo", MulAddTo),
	scalarCase("AddScalar", AddScalar), scalarCase("Scale", Scale), scalarCase("Axpy", Axpy),
	unaryCase("AddTo", AddTo), unaryCase("Neg", Neg), unaryCase("Abs", Abs), unaryCase("Square", Square),
	unaryCase("Sqrt", Sqrt), unaryCase("Rsqrt", Rsqrt), unaryCase("Exp", Exp), unaryCase("Log", Log),
	unaryCase("Tanh", Tanh), unaryCase("Sigmoid", Sigmoid), unaryCase("Relu", Relu), unaryCase("Gelu", Gelu),
	unaryCase("GeluErf", GeluErf), unaryCase("Silu", Silu),
	binaryCase("TanhGrad", TanhGrad), binaryCase("SigmoidGrad", SigmoidGrad), binaryCase("ReluGrad", ReluGrad),
	binaryCase("GeluGrad", GeluGrad), binaryCase("GeluErfGrad", GeluErfGrad), binaryCase("SiluGrad", SiluGrad),
	{"CopyEach", 3, 3, func(in, out [][]float32) []float32 { CopyEach(out, in); return nil }},
	{"Fill", 0, 1, func(_, out [][]float32) []float32 { Fill(out[0], 3); return nil }},

	{"Sum", 1, 0, func(in, _ [][]float32) []float32 { return []float32{Sum(in[0])} }},
	{"Dot", 2, 0, func(in, _ [][]float32) []float32 { return []float32{Dot(in[0], in[1])} }},
	{"MaxOf", 1, 0, func(in, _ [][]float32) []float32 { return []float32{MaxOf(in[0])} }},
	{"SumSq64", 1, 0, func(in, _ [][]float32) []float32 {
		u := math.Float64bits(SumSq64(in[0]))
		if f := math.Float64frombits(u); f != f {
			return nil
		}
		return []float32{math.Float32frombits(uint32(u >> 32)), math.Float32frombits(uint32(u))}
	}},
	{"AllFinite", 1, 0, func(in, _ [][]float32) []float32 {
		if AllFinite(in[0]) {
			return []float32{1}
		}
		return []float32{0}
	}},
	{"SumRowsTo", 1, 1, func(in, out [][]float32) []float32 { SumRowsTo(out[0], in[0], 1, len(in[0])); return nil }},

	{"Softmax", 1, 1, func(in, out [][]float32) []float32 { Softmax(out[0], in[0], 0.3); return nil }},
	{"SoftmaxGrad", 2, 1, func(in, out [][]float32) []float32 { SoftmaxGrad(out[0], in[0], in[1], 0.3); return nil }},
	{"LogSumExp", 1, 0, func(in, _ [][]float32) []float32 { return []float32{LogSumExp(in[0])} }},
	{"ExpShift", 1, 1, func(in, out [][]float32) []float32 { return []float32{ExpShift(out[0], in[0], 0.3, 0.5)} }},
	{"AttentionGrad", 0, 2, func(_, out [][]float32) []float32 { AttentionGrad(out[0], out[1], 0.3, 1.5, 0.1); return nil }},
	{"CrossEntropyGrad", 1, 1, func(in, out [][]float32) []float32 {
		if n := len(in[0]); n > 0 {
			CrossEntropyGrad(out[0], in[0], LogSumExp(in[0]), n/2, 0.25)
		}
		return nil
	}},
	layerNormCase("LayerNorm", true, true), layerNormCase("LayerNorm without bias", true, false),
	layerNormCase("LayerNorm without weight", false, true), layerNormCase("LayerNorm without both", false, false),
	{"ChannelNorm", 1, 1, func(in, out [][]float32) []float32 { ChannelNorm(out[0], in[0], 0.1, 0.9, -0.3); return nil }},
	{"ChannelNormGrad", 2, 1, func(in, out [][]float32) []float32 {
		ChannelNormGrad(out[0], in[0], in[1], 0.1, 0.02, 0.3, 0.9)
		return nil
	}},
	{"LayerNormGrad", 3, 1, func(in, out [][]float32) []float32 { LayerNormGrad(out[0], in[0], in[1], in[2], 0.1, 0.9); return nil }},
	{"LayerNormGrad without weight", 2, 1, func(in, out [][]float32) []float32 {
		LayerNormGrad(out[0], in[0], in[1], nil, 0.1, 0.9)
		return nil
	}},
	{"LayerNormGradParams", 2, 2, func(in, out [][]float32) []float32 {
		LayerNormGradParams(out[0], out[1], in[0], in[1], 0.1, 0.9)
		return nil
	}},
	{"RMSNorm", 2, 1, func(in, out [][]float32) []float32 { return []float32{RMSNorm(out[0], in[0], in[1], 1e-5)} }},
	{"RMSNormGrad", 3, 1, func(in, out [][]float32) []float32 { RMSNormGrad(out[0], in[0], in[1], in[2], 0.9); return nil }},
	{"RMSNormGradParams", 2, 1, func(in, out [][]float32) []float32 { RMSNormGradParams(out[0], in[0], in[1], 0.9); return nil }},

	adamCase("AdamW", AdamWParams{LR: 1e-3, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1, C1: 0.19, C2: 0.0975, GradScale: 0.5}),
	sgdCase("SGD", SGDParams{LR: 0.1, WeightDecay: 0.01, GradScale: 0.5}),
	sgdCase("SGD momentum", SGDParams{LR: 0.1, Momentum: 0.9, Dampening: 0.2, WeightDecay: 0.01, GradScale: 1}),
	sgdCase("SGD first step", SGDParams{LR: 0.1, Momentum: 0.9, Dampening: 0.2, GradScale: 1, First: true}),
	sgdCase("SGD Nesterov", SGDParams{LR: 0.1, Momentum: 0.9, GradScale: 1, Nesterov: true}),

	{"Dropout", 1, 1, func(in, out [][]float32) []float32 {
		Dropout(out[0], in[0], 0.3, Stream{Key: [2]uint32{1, 2}}, 8)
		return nil
	}},

	{"BF16", 1, 1, func(in, out [][]float32) []float32 {
		h := make([]uint16, len(in[0]))
		F32ToBF16(h, in[0])
		BF16ToF32(out[0], h)
		return nil
	}},
	{"F16", 1, 1, func(in, out [][]float32) []float32 {
		h := make([]uint16, len(in[0]))
		F32ToF16(h, in[0])
		F16ToF32(out[0], h)
		return nil
	}},
	halfCase("AddBF16"), halfCase("SubBF16"), halfCase("MulBF16"), halfCase("ReluBF16"), halfCase("GeluBF16"), halfCase("GeluErfBF16"),
	halfCase("SiluBF16"), halfCase("ReluGradBF16"), halfCase("GeluGradBF16"), halfCase("GeluErfGradBF16"), halfCase("SiluGradBF16"),
	{"AddWide", 1, 1, func(in, out [][]float32) []float32 { AddWide(out[0], rounded(in[0])); return nil }},
	{"AddRound", 2, 1, func(in, out [][]float32) []float32 {
		h := make([]uint16, len(in[0]))
		AddRound(h, in[0], in[1])
		BF16ToF32(out[0], h)
		return nil
	}},
}

// specials are values that arithmetic treats apart.
var specials = []float32{
	0, float32(math.Copysign(0, -1)), 1, -1, float32(math.Inf(1)), float32(math.Inf(-1)), float32(math.NaN()),
	math.MaxFloat32, -math.MaxFloat32, 0x1p-126, -0x1p-126, 0x1p-127, 0x1p-149, -0x1p-149, 0x1.fffffcp-127,
	88.72284, 88.8, 89, 90, -87.4, -103.9, -103.98, -104, -105, 200, -200, 201, -1e30, 1e30, 0.625, 0.62499994,
	65504, 65519.996, 65520, 0x1p-14, 0x1p-24, 0x1p-25, 0x1.8p-25, 0x1.ffcp-15, 1.00390625, 1.01171875,
}

// fillWith makes inputs of one of several kinds.
func fillWith(r *rand.Rand, kind string, x []float32) {
	for i := range x {
		switch kind {
		case "normal":
			x[i] = float32(r.NormFloat64())
		case "wide": // every exponent, NaN and infinities among them
			x[i] = math.Float32frombits(r.Uint32())
		case "moderate": // arguments on which exp and the rest do something
			x[i] = float32(r.NormFloat64() * 40)
		case "tiny": // products and sums are subnormal
			x[i] = float32(r.NormFloat64() * 0x1p-70)
		case "special":
			x[i] = specials[r.IntN(len(specials))]
		case "few special":
			x[i] = float32(r.NormFloat64())
			if r.IntN(50) == 0 {
				x[i] = specials[r.IntN(len(specials))]
			}
		}
	}
}

func clone(s [][]float32) [][]float32 {
	c := make([][]float32, len(s))
	for i := range s {
		c[i] = append([]float32(nil), s[i]...)
	}
	return c
}

// TestKernelSetsAgree compares every set's bits with plain Go's.
func TestKernelSetsAgree(t *testing.T) {
	lengths := []int{0, 1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 47, 63, 64, 65, 95, 96, 97, 127, 128, 129, 255, 257, 1000, 1021, 1<<14 + 37}
	for _, c := range kernelCases {
		t.Run(c.name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(9, 10))
			for _, n := range lengths {
				for _, kind := range []string{"normal", "wide", "moderate", "tiny", "special", "few special"} {
					in, out := make([][]float32, c.ins), make([][]float32, c.out)
					for _, s := range [][][]float32{in, out} {
						for i := range s {
							s[i] = make([]float32, n)
							fillWith(r, kind, s[i])
						}
					}
					var want, wantResults []float32
					for _, set := range Sets() {
						restore, err := Use(set)
						if err != nil {
							t.Fatal(err)
						}
						o := clone(out)
						results := c.run(clone(in), o)
						restore()
						var got []float32
						for _, x := range o {
							got = append(got, x...)
						}
						if set == "generic" {
							want, wantResults = got, results
							continue
						}
						compare(t, fmt.Sprintf("%s, %d %s elements", set, n, kind), got, want)
						compare(t, fmt.Sprintf("%s, %d %s elements, results", set, n, kind), results, wantResults)
					}
				}
			}
		})
	}
}

func compare(t *testing.T, what string, got, want []float32) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d values, want %d", what, len(got), len(want))
	}
	for i := range got {
		if !sameBits(got[i], want[i]) {
			t.Fatalf("%s: element %d is %x (%g), plain Go gives %x (%g)", what, i, math.Float32bits(got[i]), got[i], math.Float32bits(want[i]), want[i])
		}
	}
}

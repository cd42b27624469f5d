package graph_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"starling/core/device/ref"
	"starling/core/graph"
	"starling/core/tensor"
)

// gradCase is an operation on inputs whose gradients are compared with central differences.
type gradCase struct {
	op    *graph.Op
	attrs any
	in    []arg
}

// arg is an operand: a parameter of the shape (floating-point, checked), or an integer input with these values.
type arg struct {
	shape []int
	draw  func(r *rand.Rand, i int) float64
	dtype tensor.DType // Invalid for a parameter
}

func normal(r *rand.Rand, _ int) float64 { return r.NormFloat64() }

// away keeps a distance from zero, where some functions have no derivative.
func away(r *rand.Rand, _ int) float64 {
	return math.Copysign(0.3+math.Abs(r.NormFloat64()), r.Float64()-0.5)
}
func positive(r *rand.Rand, _ int) float64 { return 0.5 + 2*r.Float64() }

// distinct draws values at least 0.01 apart, so that no small step changes a maximum.
func distinct() func(*rand.Rand, int) float64 {
	var perm []int
	return func(r *rand.Rand, i int) float64 {
		if i == 0 {
			perm = r.Perm(4096)
		}
		return float64(perm[i]%4096)*0.01 - 20
	}
}

func param(shape ...int) arg { return arg{shape: shape, draw: normal} }

func (a arg) of(draw func(*rand.Rand, int) float64) arg { a.draw = draw; return a }

func ids(below int, shape ...int) arg {
	return arg{shape, func(r *rand.Rand, _ int) float64 { return float64(r.IntN(below)) }, tensor.I32}
}

func given(d tensor.DType, shape []int, v ...float64) arg {
	return arg{shape, func(_ *rand.Rand, i int) float64 { return v[i] }, d}
}

func scalarAttrs(v float64) any { return graph.ScalarAttrs{Value: v} }

func gradCases(r *rand.Rand) []gradCase {
	var cs []gradCase
	add := func(op *graph.Op, attrs any, in ...arg) { cs = append(cs, gradCase{op: op, attrs: attrs, in: in}) }

	for _, p := range [][2][]int{{{3, 4}, {3, 4}}, {{}, {}}, {{2, 3, 4}, {4}}, {{4}, {2, 3, 4}}, {{3, 1}, {1, 4}}, {{2, 1, 3}, {5, 1}}, {{}, {2, 3}}} {
		for _, op := range []*graph.Op{graph.OpAdd, graph.OpSub, graph.OpMul} {
			add(op, nil, param(p[0]...), param(p[1]...))
		}
		add(graph.OpDiv, nil, param(p[0]...), param(p[1]...).of(away))
		for _, op := range []*graph.Op{graph.OpMaximum, graph.OpMinimum} {
			add(op, nil, param(p[0]...).of(distinct()), param(p[1]...))
		}
	}
	for _, s := range [][]int{{}, {7}, {2, 3, 4}} {
		for _, op := range []*graph.Op{graph.OpNeg, graph.OpExp, graph.OpSquare, graph.OpTanh, graph.OpSigmoid, graph.OpGELU, graph.OpGELUErf, graph.OpSiLU} {
			add(op, nil, param(s...))
		}
		for _, op := range []*graph.Op{graph.OpAbs, graph.OpReLU} {
			add(op, nil, param(s...).of(away))
		}
		for _, op := range []*graph.Op{graph.OpLog, graph.OpSqrt, graph.OpRsqrt} {
			add(op, nil, param(s...).of(positive))
		}
		add(graph.OpScale, scalarAttrs(-1.5), param(s...))
		add(graph.OpScale, scalarAttrs(1), param(s...))
		add(graph.OpAddScalar, scalarAttrs(2), param(s...))
		for _, p := range []float64{0, 1, 2, 3, -1, 0.5, 1.7} {
			add(graph.OpPowScalar, scalarAttrs(p), param(s...).of(positive))
		}
		add(graph.OpSwiGLU, nil, param(s...), param(s...))
		add(graph.OpCast, graph.CastAttrs{To: tensor.F64}, param(s...))
	}

	add(graph.OpReshape, graph.ShapeAttrs{Shape: dims(4, 3)}, param(2, 6))
	add(graph.OpReshape, graph.ShapeAttrs{Shape: dims()}, param(1))
	for rank := 1; rank <= 5; rank++ {
		shape := make([]int, rank)
		for i := range shape {
			shape[i] = 1 + r.IntN(4)
		}
		add(graph.OpTranspose, graph.PermAttrs{Perm: dims(r.Perm(rank)...)}, param(shape...))
	}
	for axis, n := range []int{4, 3, 5} {
		add(graph.OpSlice, graph.SliceAttrs{Axis: axis, Start: 1, End: n}, param(4, 3, 5))
		add(graph.OpSlice, graph.SliceAttrs{Axis: axis, Start: 0, End: 1, Size: n}, param(4, 3, 5))
		add(graph.OpPadSlice, graph.SliceAttrs{Axis: axis, Start: 2, End: 2 + n, Size: 4 + n}, param(4, 3, 5))
		other := []int{4, 3, 5}
		other[axis] = 2
		add(graph.OpConcat, graph.AxisAttrs{Axis: axis}, param(4, 3, 5), param(other...), param(4, 3, 5))
	}
	for _, p := range [][2][]int{{{}, {3}}, {{3, 1}, {3, 4}}, {{1, 4}, {2, 3, 4}}, {{4}, {4}}, {{2, 1, 3}, {4, 2, 5, 3}}} {
		add(graph.OpBroadcastTo, graph.ShapeAttrs{Shape: dims(p[1]...)}, param(p[0]...))
		add(graph.OpSumTo, graph.ShapeAttrs{Shape: dims(p[0]...)}, param(p[1]...))
	}
	for _, axes := range [][]int{{}, {0}, {1}, {2}, {0, 2}, {0, 1, 2}} {
		for _, keep := range []bool{false, true} {
			at := graph.ReduceAttrs{Axes: dims(axes...), Keep: keep}
			add(graph.OpSum, at, param(2, 3, 4))
			add(graph.OpMean, at, param(2, 3, 4))
			add(graph.OpMax, at, param(2, 3, 4).of(distinct()))
		}
	}
	for _, s := range [][]int{{1}, {5}, {2, 3, 4}} {
		add(graph.OpSoftmax, nil, param(s...))
		add(graph.OpLogSoftmax, nil, param(s...))
	}

	for form := range 4 {
		at := graph.MatmulAttrs{TransA: form&1 != 0, TransB: form&2 != 0}
		a, b := []int{3, 4}, []int{4, 2}
		if at.TransA {
			a[0], a[1] = a[1], a[0]
		}
		if at.TransB {
			b[0], b[1] = b[1], b[0]
		}
		add(graph.OpMatmul, at, param(a...), param(b...))
		add(graph.OpMatmul, at, param(append([]int{2}, a...)...), param(append([]int{2}, b...)...))
		add(graph.OpMatmul, at, param(append([]int{2, 1}, a...)...), param(append([]int{3}, b...)...))
		add(graph.OpMatmul, at, param(append([]int{2}, a...)...), param(b...))
	}
	for _, rows := range [][]int{{}, {5}, {2, 3}} {
		add(graph.OpLinear, nil, param(append(rows, 4)...), param(3, 4))
		add(graph.OpLinear, nil, param(append(rows, 4)...), param(3, 4), param(3))
	}
	add(graph.OpEmbedding, nil, param(5, 3), ids(5, 2, 4))
	add(graph.OpEmbedding, nil, param(5, 3), ids(5))

	for _, s := range [][]int{{5}, {2, 3, 4}} {
		c := s[len(s)-1]
		add(graph.OpLayerNorm, graph.NormAttrs{Eps: 1e-5}, param(s...), param(c))
		add(graph.OpLayerNorm, graph.NormAttrs{Eps: 1e-5}, param(s...), param(c), param(c))
		add(graph.OpRMSNorm, graph.NormAttrs{Eps: 1e-5}, param(s...), param(c))
	}
	for _, s := range [][]int{{5, 3}, {2, 3, 4}, {2, 2, 3, 1}} {
		c := s[1]
		add(graph.OpBatchNorm, graph.NormAttrs{Eps: 1e-5}, param(s...), param(c), param(c), given(tensor.F32, []int{c}, 0, 0, 0), given(tensor.F32, []int{c}, 1, 1, 1))
	}
	for _, z := range []struct{ t, s, h, g int }{{3, 3, 1, 1}, {4, 4, 4, 2}, {2, 5, 3, 1}, {5, 2, 2, 2}, {1, 1, 2, 1}} {
		for _, causal := range []bool{false, true} {
			at := graph.AttentionAttrs{Causal: causal, Scale: 0.6}
			q, k := param(2, z.t, z.h, 3), param(2, z.s, z.g, 3)
			add(graph.OpAttention, at, q, k, k)
			add(graph.OpAttention, at, q, k, k, ids(2, 2, z.t), ids(2, 2, z.s))
		}
	}
	for _, inverse := range []bool{false, true} {
		add(graph.OpRotary, graph.RotaryAttrs{Base: 100, Offset: 3, Inverse: inverse}, param(2, 3, 2, 6))
	}
	rng := given(tensor.U32, []int{4}, 7, 9, 2, 1)
	add(graph.OpDropout, graph.DropoutAttrs{P: 0.4, Key: 0x123456789abcdef}, param(3, 17), rng)
	add(graph.OpDropout, graph.DropoutAttrs{P: 0, Key: 5}, param(3, 17), rng)

	for _, ignore := range []int{-1, 2} {
		at := graph.CrossEntropyAttrs{Ignore: ignore}
		add(graph.OpCrossEntropy, at, param(4, 5), ids(5, 4))
		add(graph.OpCrossEntropy, at, param(2, 3, 5), given(tensor.I32, []int{2, 3}, 0, -1, 2, 4, -7, 2))
		add(graph.OpCrossEntropy, at, param(5), ids(5))
	}

	conv := graph.ConvAttrs{StrideH: 1, StrideW: 1, DilationH: 1, DilationW: 1, Groups: 1}
	odd := graph.ConvAttrs{StrideH: 2, StrideW: 3, PadH: 1, PadW: 2, DilationH: 2, DilationW: 1, Groups: 1}
	grouped := graph.ConvAttrs{StrideH: 1, StrideW: 2, PadH: 1, DilationH: 1, DilationW: 2, Groups: 2}
	for _, bias := range []bool{false, true} {
		for _, c := range []struct {
			at      graph.ConvAttrs
			x, w, b []int
		}{{conv, []int{2, 3, 4, 5}, []int{2, 3, 2, 3}, []int{2}}, {odd, []int{1, 2, 7, 6}, []int{3, 2, 3, 2}, []int{3}}, {grouped, []int{2, 4, 4, 5}, []int{6, 2, 3, 2}, []int{6}}} {
			in := []arg{param(c.x...), param(c.w...), param(c.b...)}
			if !bias {
				in = in[:2]
			}
			add(graph.OpConv2D, c.at, in...)
		}
	}
	for _, at := range []graph.PoolAttrs{
		{KH: 2, KW: 2, StrideH: 2, StrideW: 2},
		{KH: 3, KW: 2, StrideH: 2, StrideW: 1, PadH: 1, PadW: 1},
		{KH: 3, KW: 3, StrideH: 1, StrideW: 1, PadH: 1, PadW: 1},
	} {
		add(graph.OpMaxPool, at, param(2, 2, 6, 5).of(distinct()))
		add(graph.OpAvgPool, at, param(2, 2, 6, 5))
	}
	return cs
}

// The gradients of every operation agree with central differences of the loss sum(y * c), c random.
func TestGradientsAgreeWithDifferences(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 13))
	checked := map[*graph.Op]bool{}
	for i, c := range gradCases(r) {
		checked[c.op] = true
		name := fmt.Sprintf("%s/%d", c.op.Name, i)
		for _, a := range c.in {
			name += tensor.Shape(a.shape).String()
		}
		t.Run(name, func(t *testing.T) { c.check(t, r) })
	}
	for _, name := range graph.Names() {
		op, err := graph.Lookup(name)
		if err != nil {
			t.Fatal(err)
		}
		if op.Grad != nil && !checked[op] {
			t.Errorf("the gradient of %s is not checked", name)
		}
	}
}

func (c gradCase) check(t *testing.T, r *rand.Rand) {
	b := newBuilder(t)
	feeds := ref.Feeds{}
	var in []*graph.Value
	for i, a := range c.in {
		name := fmt.Sprintf("p%d", i)
		var v *graph.Value
		if a.dtype == tensor.Invalid {
			v = b.param(name, a.shape...)
		} else {
			v = b.input(name, a.dtype, a.shape...)
		}
		x := graph.NewArray(v.Type)
		for j := range x.Data {
			x.Data[j] = a.draw(r, j)
		}
		feeds[name] = x
		in = append(in, v)
	}
	y := b.one(c.op, c.attrs, in...)
	weights := b.input("weights", y.DType, y.Shape...)
	loss := b.sum(b.one(graph.OpMul, nil, y, weights))
	b.Output("loss", loss)
	feeds["weights"] = graph.NewArray(weights.Type)
	for j := range feeds["weights"].Data {
		feeds["weights"].Data[j] = r.NormFloat64()
	}
	feeds["seed"] = &graph.Array{Type: loss.Type, Data: []float64{1}}
	for _, d := range b.differentiate(loss) {
		b.Output("grad:"+d.Param.Attrs.(graph.ParamAttrs).Name, d.Value)
	}

	run := func() map[string]*graph.Array {
		out, err := ref.Run(b.G, feeds)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	got := run()
	for i, a := range c.in {
		if a.dtype != tensor.Invalid {
			continue
		}
		name := fmt.Sprintf("p%d", i)
		grad := got["grad:"+name]
		for j := range feeds[name].Data {
			const h = 1e-5
			x := &feeds[name].Data[j]
			old := *x
			*x = old + h
			up := run()["loss"].Data[0]
			*x = old - h
			down := run()["loss"].Data[0]
			*x = old
			want, is := (up-down)/(2*h), 0.0
			if grad != nil {
				is = grad.Data[j]
			}
			if !(math.Abs(is-want) <= 2e-7*max(1, math.Abs(want))) {
				t.Fatalf("input %d, element %d: gradient %v, differences give %v", i, j, is, want)
			}
		}
	}
}

func TestFullyMaskedLossIsZeroWithZeroGradients(t *testing.T) {
	b := newBuilder(t)
	w := b.param("w", 2, 3)
	targets := b.input("targets", tensor.I32, 2)
	out := b.op(graph.OpCrossEntropy, graph.CrossEntropyAttrs{Ignore: -1}, w, targets)
	b.Output("loss", out[0])
	b.Output("weight", out[1])
	b.Output("grad", b.differentiate(out[0])[0].Value)
	got, err := ref.Run(b.G, ref.Feeds{
		"w":       {Type: w.Type, Data: []float64{1, 2, 3, math.Inf(1), -4, 5}},
		"targets": {Type: targets.Type, Data: []float64{-1, -1}},
		"seed":    {Type: out[0].Type, Data: []float64{1}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, a := range got {
		for i, v := range a.Data {
			if v != 0 {
				t.Errorf("%s, element %d is %v, want 0", name, i, v)
			}
		}
	}
}

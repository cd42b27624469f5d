package graph_test

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"starling/core/graph"
	"starling/core/tensor"
)

// Mistakes in shapes are told in plain words.
func TestShapeErrors(t *testing.T) {
	f := func(shape ...int) graph.Type { return graph.Type{DType: tensor.F32, Shape: shape} }
	i := func(shape ...int) graph.Type { return graph.Type{DType: tensor.I32, Shape: shape} }
	half := graph.Type{DType: tensor.BF16, Shape: tensor.Shape{3}}
	conv := graph.ConvAttrs{StrideH: 1, StrideW: 1, DilationH: 1, DilationW: 1, Groups: 1}
	grouped := conv
	grouped.Groups = 3
	for _, c := range []struct {
		op    *graph.Op
		attrs any
		in    []graph.Type
		want  string
	}{
		{graph.OpMatmul, graph.MatmulAttrs{}, []graph.Type{f(8, 128, 768), f(512, 192)}, "cannot multiply [8,128,768] by [512,192]: the inner sizes 768 and 512 differ"},
		{graph.OpMatmul, graph.MatmulAttrs{TransB: true}, []graph.Type{f(2, 3), f(4, 5)}, "cannot multiply [2,3] by [4,5] transposed: the inner sizes 3 and 5 differ"},
		{graph.OpMatmul, graph.MatmulAttrs{}, []graph.Type{f(3), f(3, 4)}, "cannot multiply [3] by [3,4]: both need at least two dimensions"},
		{graph.OpMatmul, graph.MatmulAttrs{}, []graph.Type{f(2, 3, 4), f(5, 4, 3)}, "cannot multiply [2,3,4] by [5,4,3]: the batch dimensions [2] and [5] do not broadcast"},
		{graph.OpLinear, nil, []graph.Type{f(8, 128, 768), f(512, 192)}, "cannot multiply [8,128,768] by a weight [512,192] [outputs, inputs]: the inner sizes 768 and 192 differ"},
		{graph.OpLinear, nil, []graph.Type{f(4, 3), f(2, 3), f(3)}, "b must be of shape [2], got [3]"},
		{graph.OpLinear, nil, []graph.Type{f(4, 3)}, "needs 2 to 3 inputs (x, w, b?), got 1"},
		{graph.OpLinear, nil, []graph.Type{f(), f(2, 3)}, "x is a scalar: at least one dimension is needed"},
		{graph.OpAdd, nil, []graph.Type{f(2, 3), f(4)}, "cannot broadcast [2,3] with [4]: 3 against 4"},
		{graph.OpAdd, nil, []graph.Type{f(3), half}, "the element types of f32[3] and bf16[3] differ"},
		{graph.OpAdd, nil, []graph.Type{i(3), i(3)}, "needs floating-point values, got i32[3]"},
		{graph.OpAdd, nil, []graph.Type{f(3)}, "needs 2 inputs (a, b), got 1"},
		{graph.OpScale, nil, []graph.Type{f(3)}, "needs attributes of type graph.ScalarAttrs, got <nil>"},
		{graph.OpReshape, graph.ShapeAttrs{Shape: dims(4, 2)}, []graph.Type{f(3, 3)}, "cannot reshape [3,3] to [4,2]: 9 elements against 8"},
		{graph.OpReshape, graph.ShapeAttrs{Shape: dims(-1, 9)}, []graph.Type{f(3, 3)}, "dimension 0 of [-1,9] is -1: every dimension is at least 1"},
		{graph.OpTranspose, graph.PermAttrs{Perm: dims(0, 0)}, []graph.Type{f(3, 4)}, "cannot transpose [3,4] by [0 0]: it is no permutation of its dimensions"},
		{graph.OpTranspose, graph.PermAttrs{Perm: dims(0)}, []graph.Type{f(3, 4)}, "cannot transpose [3,4] by a permutation of 1 dimensions"},
		{graph.OpSlice, graph.SliceAttrs{Axis: 1, Start: 2, End: 5}, []graph.Type{f(3, 4)}, "cannot slice [2, 5) from dimension 1 of [3,4]"},
		{graph.OpSlice, graph.SliceAttrs{Axis: 2, End: 1}, []graph.Type{f(3, 4)}, "[3,4] has no dimension 2"},
		{graph.OpPadSlice, graph.SliceAttrs{Axis: 0, Start: 1, End: 4, Size: 3}, []graph.Type{f(3)}, "cannot put [3] at [1, 4) of dimension 0 of extent 3"},
		{graph.OpConcat, graph.AxisAttrs{Axis: 0}, []graph.Type{f(2, 3), f(2, 4)}, "cannot join f32[2,3] and f32[2,4] along dimension 0"},
		{graph.OpConcat, graph.AxisAttrs{}, nil, "needs at least one input"},
		{graph.OpBroadcastTo, graph.ShapeAttrs{Shape: dims(3)}, []graph.Type{f(2, 3)}, "cannot broadcast [2,3] to [3]"},
		{graph.OpSumTo, graph.ShapeAttrs{Shape: dims(2)}, []graph.Type{f(2, 3)}, "cannot sum [2,3] to [2]: [2] does not broadcast to it"},
		{graph.OpSum, graph.ReduceAttrs{Axes: dims(1, 0)}, []graph.Type{f(2, 3)}, "cannot reduce [2,3] over axes [1 0]: axes are dimensions of it, ascending"},
		{graph.OpEmbedding, nil, []graph.Type{f(5, 3), f(4)}, "ids must be of type i32, got f32[4]"},
		{graph.OpEmbedding, nil, []graph.Type{f(5), i(4)}, "table must have 2 dimensions [rows, width], got [5]"},
		{graph.OpLayerNorm, graph.NormAttrs{}, []graph.Type{f(2, 3), f(4)}, "w must be of shape [3], got [4]"},
		{graph.OpAttention, graph.AttentionAttrs{}, []graph.Type{f(2, 4, 3, 8), f(2, 4, 2, 8), f(2, 4, 2, 8)}, "3 query heads cannot share 2 key heads: the first must be a multiple of the second"},
		{graph.OpAttention, graph.AttentionAttrs{}, []graph.Type{f(2, 4, 2, 8), f(2, 4, 2, 6), f(2, 4, 2, 6)}, "the head widths of q [2,4,2,8] and k [2,4,2,6] differ"},
		{graph.OpAttention, graph.AttentionAttrs{}, []graph.Type{f(1, 4, 2, 8), f(1, 4, 2, 8), f(1, 4, 2, 8), i(1, 4)}, "segments are needed for queries and keys, or for neither"},
		{graph.OpRotary, graph.RotaryAttrs{Base: 10000}, []graph.Type{f(1, 4, 2, 7)}, "the head width of [1,4,2,7] is odd: rotary positions turn pairs"},
		{graph.OpCrossEntropy, graph.CrossEntropyAttrs{}, []graph.Type{f(2, 3, 5), i(3, 2)}, "targets must be of shape [2,3], got [3,2]"},
		{graph.OpDropout, graph.DropoutAttrs{P: 1}, []graph.Type{f(3), {DType: tensor.U32, Shape: tensor.Shape{4}}}, "the probability 1 is not in [0, 1)"},
		{graph.OpConv2D, conv, []graph.Type{f(1, 3, 8, 8), f(4, 2, 3, 3)}, "cannot convolve [1,3,8,8] with kernels [4,2,3,3] in 1 groups: 3 channels a group against 2"},
		{graph.OpConv2D, grouped, []graph.Type{f(1, 3, 8, 8), f(4, 1, 3, 3)}, "3 groups do not divide 3 input and 4 output channels"},
		{graph.OpConv2D, conv, []graph.Type{f(1, 3, 2, 8), f(4, 3, 3, 3)}, "cannot convolve [1,3,2,8] with kernels [4,3,3,3]: a window of 3 (dilation 1) does not fit in an extent of 2 with padding 0"},
		{graph.OpMaxPool, graph.PoolAttrs{KH: 2, KW: 2, StrideH: 1, StrideW: 1, PadH: 2}, []graph.Type{f(1, 1, 8, 8)}, "cannot pool [1,1,8,8]: padding 2x0 is more than half of the window 2x2"},
		{graph.OpSGD, graph.SGDAttrs{}, []graph.Type{f(3), f(4), {DType: tensor.F64, Shape: tensor.Shape{8}}}, "grad must be of shape [3], got [4]"},
		{graph.OpParam, graph.ParamAttrs{Shape: dims(2)}, nil, "a parameter needs a name"},
		{graph.OpParam, graph.ParamAttrs{Name: "w", Shape: dims(1<<20, 1<<20, 1<<20)}, nil, "[1048576,1048576,1048576] has more than 2^40 elements"},
		{graph.OpParam, graph.ParamAttrs{Name: "w", Shape: graph.Dims{N: 9}}, nil, "a shape of 9 dimensions: at most 8 are possible"},
		{graph.OpInput, graph.InputAttrs{Name: "x"}, nil, "the element type invalid is not one that values can have"},
		{graph.OpConcat, graph.AxisAttrs{}, []graph.Type{f(1 << 40), f(1 << 40)}, "[2199023255552] has more than 2^40 elements"},
	} {
		b := newBuilder(t)
		var in []*graph.Value
		for j, typ := range c.in {
			in = append(in, b.input(string(rune('a'+j)), typ.DType, typ.Shape...))
		}
		b.Pos, b.Block = graph.Position{File: "net.star", Line: 4, Col: 7, Callers: []graph.Position{{File: "net.star", Line: 9, Col: 1}}}, "h.0"
		_, err := b.Apply(c.op, c.attrs, in...)
		var e *graph.Error
		if !errors.As(err, &e) {
			t.Errorf("%s%v: error %v, want %q", c.op.Name, c.in, err, c.want)
			continue
		}
		if want := "net.star:4:7: " + c.op.Name + ": " + c.want + "\n    in block h.0, called from net.star:9:1"; err.Error() != want {
			t.Errorf("error\n%v\nwant\n%s", err, want)
		}
	}
}

// No shapes and attributes, however hostile, make a rule panic or give a value that cannot be.
func TestShapeRulesSurviveHostileInput(t *testing.T) {
	size := rapid.OneOf(rapid.IntRange(1, 4), rapid.IntRange(1, 1<<20), rapid.SampledFrom([]int{1 << 31, 1 << 40}))
	number := rapid.OneOf(rapid.IntRange(-2, 5), rapid.Int())
	dtype := rapid.SampledFrom([]tensor.DType{tensor.F32, tensor.F32, tensor.I32, tensor.F64, tensor.U32})
	list := func(t *rapid.T) graph.Dims {
		d := graph.Dims{N: rapid.IntRange(-1, 9).Draw(t, "n")}
		for i := range d.D {
			d.D[i] = number.Draw(t, "d")
		}
		return d
	}
	attrs := func(t *rapid.T) any {
		n := func() int { return number.Draw(t, "attribute") }
		flag := func() bool { return rapid.Bool().Draw(t, "flag") }
		return rapid.SampledFrom([]any{
			nil, graph.InputAttrs{Name: "x", DType: tensor.DType(n()), Shape: list(t)}, graph.ParamAttrs{Name: "x", Shape: list(t)}, graph.FullAttrs{Shape: list(t)},
			graph.ScalarAttrs{}, graph.CastAttrs{To: tensor.DType(n())}, graph.ShapeAttrs{Shape: list(t)}, graph.PermAttrs{Perm: list(t)},
			graph.SliceAttrs{Axis: n(), Start: n(), End: n(), Size: n()}, graph.AxisAttrs{Axis: n()}, graph.ReduceAttrs{Axes: list(t), Keep: flag()},
			graph.MatmulAttrs{TransA: flag(), TransB: flag()}, graph.EmbeddingGradAttrs{Rows: n()}, graph.NormAttrs{}, graph.AttentionAttrs{},
			graph.RotaryAttrs{Base: float64(n())}, graph.DropoutAttrs{P: float64(n()) / 2}, graph.CrossEntropyAttrs{Ignore: n()},
			graph.ConvAttrs{StrideH: n(), StrideW: n(), PadH: n(), PadW: n(), DilationH: n(), DilationW: n(), Groups: n(), H: n(), W: n()},
			graph.PoolAttrs{KH: n(), KW: n(), StrideH: n(), StrideW: n(), PadH: n(), PadW: n(), H: n(), W: n()}, graph.AdamWAttrs{}, graph.SGDAttrs{Momentum: flag()},
		}).Draw(t, "attrs")
	}
	ops := graph.Names()
	rapid.Check(t, func(t *rapid.T) {
		var in []*graph.Value
		for range rapid.IntRange(0, 5).Draw(t, "inputs") {
			v := &graph.Value{Type: graph.Type{DType: dtype.Draw(t, "type")}}
			n := 1
			for _, d := range rapid.SliceOfN(size, 0, 5).Draw(t, "shape") {
				if d <= 1<<40/n { // no value is larger
					v.Shape = append(v.Shape, d)
					n *= d
				}
			}
			in = append(in, v)
		}
		at := attrs(t)
		for _, name := range ops {
			op, err := graph.Lookup(name)
			if err != nil {
				t.Fatal(err)
			}
			types, err := op.Infer(in, at)
			for _, typ := range types {
				if err == nil && (typ.Shape.Numel() < 1 || typ.Shape.Numel() > 1<<40 || typ.Bytes() < 1 || len(typ.Shape) > 8) {
					t.Errorf("%s%v gives %v", name, in, typ)
				}
			}
		}
	})
}

// Every operation says what it computes, and how its inputs and results look.
func TestDocs(t *testing.T) {
	for _, name := range graph.Names() {
		op, err := graph.Lookup(name)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(op.Doc, "(") || !strings.Contains(op.Doc, ") -> ") {
			t.Errorf("%s: the doc %q does not begin with (inputs) -> results", name, op.Doc)
		}
		if op.Ref == nil && op != graph.OpInput && op != graph.OpParam {
			t.Errorf("%s has no reference", name)
		}
	}
	if _, err := graph.Lookup("nonsense"); err == nil || err.Error() != `unknown operation "nonsense"` {
		t.Errorf("error %v", err)
	}
}

// Broadcasting and summing back are adjoint: <broadcast(x), y> = <x, sum_to(y)>.
func TestSumToIsTheAdjointOfBroadcasting(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		to := rapid.SliceOfN(rapid.IntRange(1, 4), 0, 5).Draw(rt, "shape")
		from := append([]int(nil), to[rapid.IntRange(0, len(to)).Draw(rt, "dropped"):]...)
		for i := range from {
			if rapid.Bool().Draw(rt, "stretched") {
				from[i] = 1
			}
		}
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0))
		x := graph.NewArray(graph.Type{DType: tensor.F64, Shape: from})
		y := graph.NewArray(graph.Type{DType: tensor.F64, Shape: to})
		for _, a := range []*graph.Array{x, y} {
			for i := range a.Data {
				a.Data[i] = float64(r.IntN(100)) // whole numbers: both sides are exact
			}
		}
		wide := compute(t, graph.OpBroadcastTo, graph.ShapeAttrs{Shape: dims(to...)}, x)[0]
		narrow := compute(t, graph.OpSumTo, graph.ShapeAttrs{Shape: dims(from...)}, y)[0]
		left, right := 0.0, 0.0
		for i, v := range wide.Data {
			left += v * y.Data[i]
		}
		for i, v := range narrow.Data {
			right += v * x.Data[i]
		}
		if left != right {
			rt.Fatalf("broadcasting %v to %v: %v against %v", from, to, left, right)
		}
	})
}

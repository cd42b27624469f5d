package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"starling/core/device"
	"starling/core/graph"
	"starling/core/tensor"
)

// sample is one operation on given shapes, large enough that its work is cut into several tasks.
type sample struct {
	op     string
	attrs  any
	in     []operand
	accum  bool
	inputs []int // results lie over these inputs
}

// operand is an input and how its values are drawn.
type operand struct {
	dtype tensor.DType
	shape tensor.Shape
	draw  func(r *rand.Rand) float64
}

// normal is about normally distributed: a sum, so that no function of package math, whose results differ between
// architectures, has a part in it.
func normal(r *rand.Rand) float64 {
	return math.Sqrt(3) * (r.Float64() + r.Float64() + r.Float64() + r.Float64() - 2)
}

func positive(r *rand.Rand) float64 { return 0.1 + math.Abs(normal(r)) }

func below(n int) func(*rand.Rand) float64 {
	return func(r *rand.Rand) float64 { return float64(r.IntN(n)) }
}

func fs(shape ...int) operand         { return operand{tensor.F32, shape, normal} }
func pos(shape ...int) operand        { return operand{tensor.F32, shape, positive} }
func ids(n int, shape ...int) operand { return operand{tensor.I32, shape, below(n)} }
func ints(lo int, sh ...int) operand {
	return operand{tensor.I32, sh, func(r *rand.Rand) float64 { return float64(lo + r.IntN(9)) }}
}
func numbers(v ...float64) operand {
	i := 0
	return operand{tensor.F64, tensor.Shape{len(v)}, func(*rand.Rand) float64 { i++; return v[(i-1)%len(v)] }}
}
func axes(a ...int) graph.Dims { return graph.MakeDims(a) }

// name is unique among samples.
func (s sample) name() string {
	n := s.op
	for _, o := range s.in {
		n += fmt.Sprintf(" %v%v", o.dtype, o.shape)
	}
	if s.attrs != nil {
		n += fmt.Sprintf(" %v", s.attrs)
	}
	if s.accum {
		n += " accumulating"
	}
	return n
}

var samples = buildSamples()

func buildSamples() []sample {
	var ss []sample
	add := func(op string, attrs any, in ...operand) { ss = append(ss, sample{op: op, attrs: attrs, in: in}) }
	inPlace := func(op string, attrs any, over []int, in ...operand) {
		ss = append(ss, sample{op: op, attrs: attrs, in: in, inputs: over})
	}
	accum := func(op string, attrs any, in ...operand) {
		ss = append(ss, sample{op: op, attrs: attrs, in: in, accum: true})
	}

	for _, op := range []string{"add", "sub", "mul", "div", "maximum", "minimum"} {
		right := fs
		if op == "div" {
			right = pos
		}
		add(op, nil, fs(70, 700), right(70, 700))
		add(op, nil, fs(8, 90, 70), right(70))
		add(op, nil, fs(8, 90, 70), right(90, 70))
		add(op, nil, fs(8, 90, 70), right(8, 90, 1))
		add(op, nil, fs(8, 1, 70), right(90, 1))
		add(op, nil, fs(), right(300, 170))
		add(op, nil, fs(300, 170), right())
		inPlace(op, nil, []int{0}, fs(300, 170), right(170))
		inPlace(op, nil, []int{1}, fs(170), right(300, 170))
	}
	add("accumulate", nil, fs(50001), fs(50001))
	for _, op := range []string{"tanh_grad", "sigmoid_grad", "relu_grad", "gelu_grad", "gelu_erf_grad", "silu_grad", "swiglu"} {
		add(op, nil, fs(21, 777), fs(21, 777))
		inPlace(op, nil, []int{0}, fs(21, 777), fs(21, 777))
		inPlace(op, nil, []int{1}, fs(21, 777), fs(21, 777))
	}
	add("swiglu_grad", nil, fs(21, 777), fs(21, 777), fs(21, 777))
	add("equal", nil, ids(3, 40000), ids(3, 40000))
	for _, op := range []string{"neg", "exp", "square", "abs", "tanh", "sigmoid", "relu", "gelu", "gelu_erf", "silu", "grad_store"} {
		add(op, nil, fs(21, 777))
	}
	for _, op := range []string{"log", "sqrt", "rsqrt"} {
		add(op, nil, pos(21, 777))
		inPlace(op, nil, []int{0}, pos(21, 777))
	}
	accum("grad_store", nil, fs(50001))
	add("scale", graph.ScalarAttrs{Value: 0.3}, fs(21, 777))
	add("add_scalar", graph.ScalarAttrs{Value: 0.3}, fs(21, 777))
	for _, v := range []float64{1, 2, 3, 0.5, -0.5, -1, 1.7} {
		add("pow_scalar", graph.ScalarAttrs{Value: v}, pos(21, 777))
	}
	for _, from := range []operand{fs(9999), ints(-4, 9999), {tensor.F64, tensor.Shape{9999}, normal}, {tensor.U8, tensor.Shape{9999}, below(256)}} {
		for _, to := range []tensor.DType{tensor.F32, tensor.F64, tensor.BF16, tensor.F16, tensor.I32, tensor.I64, tensor.U32, tensor.U8} {
			add("cast", graph.CastAttrs{To: to}, from)
		}
	}
	add("cast", graph.CastAttrs{To: tensor.F32}, operand{tensor.BF16, tensor.Shape{9999}, normal})
	add("cast", graph.CastAttrs{To: tensor.F32}, operand{tensor.F16, tensor.Shape{9999}, normal})
	add("cast", graph.CastAttrs{To: tensor.F64}, operand{tensor.F16, tensor.Shape{9999}, normal})
	add("cast", graph.CastAttrs{To: tensor.F16}, operand{tensor.BF16, tensor.Shape{9999}, normal})

	add("const", graph.FullAttrs{Value: 2.5, Shape: axes(3, 20000)})
	add("reshape", graph.ShapeAttrs{Shape: axes(600, 70)}, fs(60, 700))
	add("stop_gradient", nil, fs(60, 700))
	for _, p := range []graph.Dims{axes(0, 2, 1, 3), axes(3, 2, 1, 0), axes(0, 1, 3, 2), axes(1, 0, 3, 2), axes(0, 1, 2, 3), axes(2, 3, 0, 1), axes(3, 0, 1, 2)} {
		add("transpose", graph.PermAttrs{Perm: p}, fs(5, 33, 7, 41))
		add("transpose", graph.PermAttrs{Perm: p}, fs(3, 1, 70, 1))
		add("transpose", graph.PermAttrs{Perm: p}, ids(100, 2, 3, 4, 5))
	}
	add("transpose", graph.PermAttrs{Perm: axes(1, 0)}, fs(130, 333))
	for axis, size := range []int{31, 40, 29} {
		add("slice", graph.SliceAttrs{Axis: axis, Start: 3, End: 17}, fs(31, 40, 29))
		s := tensor.Shape{31, 40, 29}
		s[axis] = 14
		add("pad_slice", graph.SliceAttrs{Axis: axis, Start: 3, End: 17, Size: size}, fs(s...))
		a, b, c := tensor.Shape{31, 40, 29}, tensor.Shape{31, 40, 29}, tensor.Shape{31, 40, 29}
		a[axis], b[axis], c[axis] = 1, 20, 5
		add("concat", graph.AxisAttrs{Axis: axis}, fs(a...), fs(b...), fs(c...))
	}
	for _, s := range []tensor.Shape{{}, {50}, {30, 1}, {40, 1, 50}, {1, 30, 50}, {40, 30, 50}, {1, 1, 1}} {
		add("broadcast_to", graph.ShapeAttrs{Shape: axes(40, 30, 50)}, fs(s...))
		add("sum_to", graph.ShapeAttrs{Shape: axes(s...)}, fs(40, 30, 50))
	}
	for _, a := range []graph.Dims{axes(), axes(0), axes(1), axes(2), axes(0, 1), axes(0, 2), axes(1, 2), axes(0, 1, 2)} {
		for _, keep := range []bool{false, true} {
			at := graph.ReduceAttrs{Axes: a, Keep: keep}
			for _, op := range []string{"sum", "mean", "max"} {
				add(op, at, fs(37, 30, 41))
			}
		}
		add("sum", graph.ReduceAttrs{Axes: a}, fs(3, 2, 20001))
	}
	add("max_grad", graph.ReduceAttrs{Axes: axes(1)}, operand{tensor.F32, tensor.Shape{300, 9, 5}, below(4)},
		operand{tensor.F32, tensor.Shape{300, 5}, func(*rand.Rand) float64 { return 3 }}, fs(300, 5))
	add("max_grad", graph.ReduceAttrs{Axes: axes(0, 2)}, operand{tensor.F32, tensor.Shape{30, 90, 5}, below(4)},
		operand{tensor.F32, tensor.Shape{90}, func(*rand.Rand) float64 { return 3 }}, fs(90))
	add("argmax", nil, operand{tensor.F32, tensor.Shape{300, 70}, below(30)})
	for _, n := range []int{1, 7, 64, 1000} {
		add("softmax", nil, fs(129, n))
		add("softmax_grad", nil, pos(129, n), fs(129, n))
		add("log_softmax", nil, fs(129, n))
		add("log_softmax_grad", nil, operand{tensor.F32, tensor.Shape{129, n}, func(r *rand.Rand) float64 { return -positive(r) }}, fs(129, n))
	}

	for _, tr := range []graph.MatmulAttrs{{}, {TransA: true}, {TransB: true}, {TransA: true, TransB: true}} {
		a, b := tensor.Shape{131, 70}, tensor.Shape{70, 97}
		if tr.TransA {
			a[0], a[1] = a[1], a[0]
		}
		if tr.TransB {
			b[0], b[1] = b[1], b[0]
		}
		batch := func(s tensor.Shape, n ...int) operand { return fs(append(n, s...)...) }
		add("matmul", tr, fs(a...), fs(b...))
		add("matmul", tr, batch(a, 3), fs(b...))
		add("matmul", tr, batch(a, 2, 1), batch(b, 3))
		add("matmul", tr, fs(a...), batch(b, 2, 2))
	}
	add("linear", nil, fs(5, 77, 50), fs(170, 50))
	add("linear", nil, fs(5, 77, 50), fs(170, 50), fs(170))
	add("linear", nil, fs(1, 600), fs(700, 600), fs(700))
	add("linear_grad_x", nil, fs(5, 77, 170), fs(170, 50))
	add("linear_grad_w", nil, fs(5, 77, 170), fs(5, 77, 50))
	accum("linear_grad_w", nil, fs(5, 77, 170), fs(5, 77, 50))
	add("linear_grad_b", nil, fs(5, 77, 170))
	accum("linear_grad_w_wide", nil, fs(5, 77, 170), fs(5, 77, 50))
	add("embedding", nil, fs(100, 65), ints(-2, 5, 200))
	add("embedding", nil, fs(100, 65), ids(102, 5, 200))
	add("embedding_grad", graph.EmbeddingGradAttrs{Rows: 100}, fs(5, 200, 65), ids(102, 5, 200))
	accum("embedding_grad", graph.EmbeddingGradAttrs{Rows: 1700}, fs(5, 200, 65), ints(-1, 5, 200))
	accum("embedding_grad", graph.EmbeddingGradAttrs{Rows: 1}, fs(5, 200, 65), ids(2, 5, 200))
	for _, c := range []int{33, 96, 256} {
		n := graph.NormAttrs{Eps: 1e-5}
		add("layer_norm", n, fs(7, 50, c), fs(c), fs(c))
		add("layer_norm", n, fs(7, 50, c), fs(c))
		add("layer_norm_grad", nil, fs(7, 50, c), fs(7, 50, c), fs(c), fs(350, 2))
		add("rms_norm", n, fs(7, 50, c), fs(c))
		for _, x := range []operand{fs(50, c), fs(5, c, 9, 8)} {
			add("batch_norm", n, x, fs(c), fs(c), fs(c), fs(c))
			add("batch_norm_fixed", n, x, fs(c), fs(c), fs(c), pos(c))
			add("batch_norm_grad", nil, x, x, fs(c), fs(c, 2))
		}
		add("rms_norm_grad", nil, fs(7, 50, c), fs(7, 50, c), fs(c), pos(350))
	}
	for _, a := range []graph.AttentionAttrs{{Scale: 0.2}, {Causal: true, Scale: 0.2}} {
		for _, s := range [][6]int{{2, 64, 64, 4, 4, 24}, {1, 150, 290, 4, 2, 16}, {2, 131, 131, 2, 1, 7}, {1, 70, 20, 2, 2, 8}} {
			q, kv := tensor.Shape{s[0], s[1], s[3], s[5]}, tensor.Shape{s[0], s[2], s[4], s[5]}
			lse := operand{tensor.F32, tensor.Shape{s[0], s[3], s[1]}, func(r *rand.Rand) float64 { return 4 + normal(r) }}
			add("attention", a, fs(q...), fs(kv...), fs(kv...))
			add("attention", a, fs(q...), fs(kv...), fs(kv...), ids(3, s[0], s[1]), ids(3, s[0], s[2]))
			add("attention_grad", a, fs(q...), fs(q...), fs(kv...), fs(kv...), fs(q...), lse)
			add("attention_grad", a, fs(q...), fs(q...), fs(kv...), fs(kv...), fs(q...), lse, ids(3, s[0], s[1]), ids(3, s[0], s[2]))
			joint := graph.JointAttentionAttrs{AttentionAttrs: a, Heads: q[2]}
			side := fs(q[0], q[1], 3*q[2]*q[3])
			add("attention_joint", joint, side)
			add("attention_joint_grad", joint, fs(q...), side, fs(q...), lse)
		}
	}
	add("rotary", graph.RotaryAttrs{Base: 10000, Offset: 3}, fs(2, 100, 4, 24))
	add("rotary", graph.RotaryAttrs{Base: 10000, Inverse: true}, fs(2, 100, 4, 24))
	rng := operand{tensor.U32, tensor.Shape{4}, func(r *rand.Rand) float64 { return float64(r.Uint32()) }}
	add("dropout", graph.DropoutAttrs{P: 0.1, Key: 0x123456789abcdef0}, fs(30001), rng)
	inPlace("dropout", graph.DropoutAttrs{P: 0.7, Key: 5}, []int{0}, fs(30001), rng)
	add("dropout", graph.DropoutAttrs{Key: 5}, fs(30001), rng)
	add("dropout", graph.DropoutAttrs{P: 0.02566, Key: 5}, fs(30001), rng) // its factor is not that of the rounded probability
	for _, v := range []int{10, 256} {
		at := graph.CrossEntropyAttrs{Ignore: 3}
		add("cross_entropy", at, fs(4, 100, v), ids(v, 4, 100))
		add("cross_entropy", at, fs(4, 100, v), ints(-2, 4, 100))
		add("cross_entropy", at, fs(4, 100, v), ids(v+1, 4, 100))
		lse := operand{tensor.F32, tensor.Shape{400}, func(r *rand.Rand) float64 { return 4 + normal(r) }}
		add("cross_entropy_grad", at, fs(), fs(4, 100, v), ids(v, 4, 100), lse)
		add("cross_entropy_grad", at, fs(), fs(4, 100, v), ids(v+1, 4, 100), lse)
	}
	for _, rows := range []int{64, 384, 500} {
		at := graph.LinearLossAttrs{CrossEntropyAttrs: graph.CrossEntropyAttrs{Ignore: 3}, Rows: rows}
		w := operand{tensor.F32, tensor.Shape{300, 70}, func(r *rand.Rand) float64 { return 0.1 * normal(r) }}
		add("linear_cross_entropy", at, fs(4, 100, 70), w, ints(-2, 4, 100))
		add("linear_cross_entropy_grads", at, fs(), fs(4, 100, 70), w, ints(-2, 4, 100))
		accum("linear_cross_entropy_grads", at, fs(), fs(4, 100, 70), w, ints(-2, 4, 100))
	}

	conv := graph.ConvAttrs{StrideH: 1, StrideW: 1, PadH: 1, PadW: 1, DilationH: 1, DilationW: 1, Groups: 1}
	wide := graph.ConvAttrs{StrideH: 2, StrideW: 3, PadH: 2, PadW: 0, DilationH: 2, DilationW: 1, Groups: 2}
	addConv := func(a graph.ConvAttrs, x, w tensor.Shape) {
		oh := (x[2]+2*a.PadH-a.DilationH*(w[2]-1)-1)/a.StrideH + 1
		ow := (x[3]+2*a.PadW-a.DilationW*(w[3]-1)-1)/a.StrideW + 1
		y := tensor.Shape{x[0], w[0], oh, ow}
		add("conv2d", a, fs(x...), fs(w...))
		add("conv2d", a, fs(x...), fs(w...), fs(w[0]))
		a.H, a.W = x[2], x[3]
		add("conv2d_grad_x", a, fs(y...), fs(w...))
		a.H, a.W = w[2], w[3]
		add("conv2d_grad_w", a, fs(y...), fs(x...))
		add("conv2d_grad_w_wide", a, fs(y...), fs(x...))
	}
	addConv(conv, tensor.Shape{3, 20, 17, 19}, tensor.Shape{13, 20, 3, 3})
	addConv(wide, tensor.Shape{3, 6, 40, 37}, tensor.Shape{8, 3, 3, 2})
	addConv(conv, tensor.Shape{2, 2, 90, 90}, tensor.Shape{5, 2, 5, 5})
	pool := graph.PoolAttrs{KH: 3, KW: 2, StrideH: 2, StrideW: 2, PadH: 1, PadW: 1}
	add("max_pool", pool, operand{tensor.F32, tensor.Shape{4, 9, 21, 20}, below(10)})
	add("avg_pool", pool, fs(4, 9, 21, 20))
	pool.H, pool.W = 21, 20
	add("max_pool_grad", pool, fs(4, 9, 11, 11), ids(21*20, 4, 9, 11, 11))
	add("avg_pool_grad", pool, fs(4, 9, 11, 11))

	add("sum_squares", nil, fs(3, 20001))
	hyper := numbers(1e-3, 0.9, 0.95, 1e-8, 0.1, 0.271, 0.142625, 0.5)
	add("adamw", graph.AdamWAttrs{}, fs(30001), fs(30001), fs(30001), pos(30001), hyper)
	inPlace("adamw", graph.AdamWAttrs{}, []int{0, 2, 3}, fs(30001), fs(30001), fs(30001), pos(30001), hyper)
	for _, h := range []operand{
		numbers(0.1, 0.9, 0.1, 0.01, 0, 0, 0, 0.5), numbers(0.1, 0.9, 0.1, 0.01, 1, 0, 0, 0.5),
		numbers(0.1, 0, 0.1, 0.01, 0, 0, 0, 0.5), numbers(0.1, 0, 0.1, 0.01, 1, 0, 0, 0.5),
	} {
		add("average", graph.AverageAttrs{Rate: 0.1, Weight: 0.3}, fs(3001), fs(3001))
		add("sgd", graph.SGDAttrs{}, fs(30001), fs(30001), h)
		for _, nesterov := range []bool{false, true} {
			at := graph.SGDAttrs{Momentum: true, Nesterov: nesterov}
			add("sgd", at, fs(30001), fs(30001), fs(30001), h)
			inPlace("sgd", at, []int{0, 2}, fs(30001), fs(30001), fs(30001), h)
		}
	}
	m16, v16 := operand{tensor.BF16, tensor.Shape{30001}, normal}, operand{tensor.BF16, tensor.Shape{30001}, positive}
	add("adamw_bf16", graph.AdamWAttrs{}, fs(30001), fs(30001), m16, v16, hyper)
	u8 := operand{tensor.U8, tensor.Shape{30001}, below(256)}
	add("adamw_int8", graph.AdamWAttrs{}, fs(30001), fs(30001), u8, pos(118), u8, pos(118), hyper)
	inPlace("adamw_int8", graph.AdamWAttrs{}, []int{0, 2, 3, 4, 5}, fs(30001), fs(30001), u8, pos(118), u8, pos(118), hyper)
	add("sum_abs", nil, fs(3, 20001))
	add("max_abs", nil, fs(3, 20001))
	add("clip_value", nil, fs(30001), numbers(0.3))
	inPlace("clip_value", nil, []int{0}, fs(30001), numbers(0.3))
	add("round_to", graph.RoundAttrs{To: tensor.BF16}, fs(30001))
	inPlace("round_to", graph.RoundAttrs{To: tensor.F16}, []int{0}, fs(30001))
	return ss
}

// bench holds a sample's operands in an arena, ready to be bound and run again and again.
type bench struct {
	node  *graph.Node
	call  device.Call
	start [][]byte // the operands' memory before a run: inputs, then results
}

// lay makes the operands of a sample on a device.
func (s sample) lay(t testing.TB, d device.Device) *bench {
	t.Helper()
	op, err := graph.Lookup(s.op)
	if err != nil {
		t.Fatal(err)
	}
	var in []*graph.Value
	for _, o := range s.in {
		in = append(in, &graph.Value{Type: graph.Type{DType: o.dtype, Shape: o.shape}})
	}
	types, err := op.Infer(in, s.attrs)
	if err != nil {
		t.Fatalf("%s: %v", s.name(), err)
	}
	b := &bench{node: &graph.Node{Op: op, In: in, Attrs: s.attrs}, call: device.Call{Op: op, Attrs: s.attrs, Accum: s.accum}}
	for _, ty := range types {
		b.node.Out = append(b.node.Out, &graph.Value{Type: ty})
	}
	place := func(ty graph.Type) device.Tensor {
		a, err := d.Alloc("test", ty.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(a.Free)
		return device.Tensor{Type: ty, Arena: a}
	}
	r := rand.New(rand.NewPCG(1, 2))
	for _, o := range s.in {
		x := place(graph.Type{DType: o.dtype, Shape: o.shape})
		put := writer(x)
		for i := range o.shape.Numel() {
			put(i, graph.Round(o.dtype, o.draw(r)))
		}
		b.call.In = append(b.call.In, x)
	}
	for i, ty := range types {
		if i < len(s.inputs) {
			b.call.Out = append(b.call.Out, b.call.In[s.inputs[i]])
			continue
		}
		y := place(ty)
		if s.accum {
			put := writer(y)
			for i := range ty.Shape.Numel() {
				put(i, graph.Round(ty.DType, normal(r)))
			}
		} else {
			fill(y.Bytes(), 0x7f) // a kernel writes every element of its results
		}
		b.call.Out = append(b.call.Out, y)
	}
	for _, x := range append(append([]device.Tensor{}, b.call.In...), b.call.Out...) {
		b.start = append(b.start, append([]byte(nil), x.Bytes()...))
	}
	return b
}

// reset restores the operands.
func (b *bench) reset() {
	for i, x := range append(append([]device.Tensor{}, b.call.In...), b.call.Out...) {
		copy(x.Bytes(), b.start[i])
	}
}

// results copies the results' memory.
func (b *bench) results() [][]byte {
	var out [][]byte
	for _, y := range b.call.Out {
		out = append(out, append([]byte(nil), y.Bytes()...))
	}
	return out
}

// reference computes the results in float64.
func (b *bench) reference() []*graph.Array {
	var in []*graph.Array
	for i, x := range b.call.In {
		a := graph.NewArray(x.Type)
		copyOf := device.Tensor{Type: x.Type, Arena: &arena{mem: b.start[i]}}
		read := reader(copyOf)
		for i := range a.Data {
			a.Data[i] = read(i)
		}
		in = append(in, a)
	}
	return b.node.Op.Ref(b.node, in)
}

package cpu

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"starling/core/graph"
	"starling/core/tensor"
	"starling/sdk/vec"
)

// hs is a bfloat16 operand.
func hs(shape ...int) operand { return operand{tensor.BF16, shape, normal} }

// halfSamples has every operation on bfloat16 operands.
func halfSamples() []sample {
	var ss []sample
	add := func(op string, attrs any, in ...operand) { ss = append(ss, sample{op: op, attrs: attrs, in: in}) }
	for _, op := range []string{"add", "sub", "mul"} {
		add(op, nil, hs(70, 700), hs(70, 700))
		add(op, nil, hs(8, 90, 70), hs(90, 70))
		add(op, nil, hs(8, 90, 70), hs(8, 90, 1))
		add(op, nil, hs(), hs(30, 1700))
	}
	for _, op := range []string{"relu", "gelu", "gelu_erf", "silu"} {
		add(op, nil, hs(21, 777))
	}
	for _, op := range []string{"relu_grad", "gelu_grad", "gelu_erf_grad", "silu_grad", "swiglu"} {
		add(op, nil, hs(21, 777), hs(21, 777))
	}
	add("swiglu_grad", nil, hs(21, 777), hs(21, 777), hs(21, 777))
	add("reshape", graph.ShapeAttrs{Shape: axes(600, 70)}, hs(60, 700))
	add("slice", graph.SliceAttrs{Axis: 1, Start: 3, End: 17}, hs(31, 40, 29))
	add("pad_slice", graph.SliceAttrs{Axis: 1, Start: 3, End: 17, Size: 40}, hs(31, 14, 29))
	add("concat", graph.AxisAttrs{Axis: 2}, hs(31, 4, 29), hs(31, 4, 3), hs(31, 4, 8))
	for _, c := range []int{33, 96, 256} {
		n := graph.NormAttrs{Eps: 1e-5}
		add("layer_norm", n, hs(7, 50, c), hs(c), hs(c))
		add("layer_norm", n, hs(7, 50, c), hs(c))
		add("layer_norm_grad", nil, hs(7, 50, c), hs(7, 50, c), hs(c), fs(350, 2))
		add("rms_norm", n, hs(7, 50, c), hs(c))
		add("rms_norm_grad", nil, hs(7, 50, c), hs(7, 50, c), hs(c), pos(350))
	}
	add("linear_grad_b", nil, hs(5, 77, 170))
	for _, l := range [][6]int{{2, 7, 7, 2, 2, 8}, {1, 64, 128, 4, 2, 64}, {1, 150, 150, 2, 1, 33}, {1, 70, 201, 2, 2, 64}, {1, 201, 70, 3, 1, 20}, {1, 192, 192, 2, 2, 64}} {
		q, kv, lse := []int{l[0], l[1], l[3], l[5]}, []int{l[0], l[2], l[4], l[5]}, operand{tensor.F32, tensor.Shape{l[0], l[3], l[1]}, func(r *rand.Rand) float64 { return 4 + normal(r) }}
		for _, causal := range []bool{false, true} {
			a := graph.AttentionAttrs{Scale: 0.3, Causal: causal}
			add("attention", a, hs(q...), hs(kv...), hs(kv...))
			add("attention_grad", a, hs(q...), hs(q...), hs(kv...), hs(kv...), hs(q...), lse)
			add("attention", a, hs(q...), hs(kv...), hs(kv...), ids(3, l[0], l[1]), ids(3, l[0], l[2]))
			add("attention_grad", a, hs(q...), hs(q...), hs(kv...), hs(kv...), hs(q...), lse, ids(3, l[0], l[1]), ids(3, l[0], l[2]))
			if l[1] == l[2] && l[3] == l[4] {
				joint, side := graph.JointAttentionAttrs{AttentionAttrs: a, Heads: l[3]}, hs(l[0], l[1], 3*l[3]*l[5])
				add("attention_joint", joint, side)
				add("attention_joint_grad", joint, hs(q...), side, hs(q...), lse)
			}
		}
	}
	for _, l := range [][2]int{{50, 170}, {64, 96}, {800, 130}} {
		add("linear", nil, hs(5, 77, l[0]), hs(l[1], l[0]))
		add("linear", nil, hs(3, 177, l[0]), hs(l[1], l[0]), hs(l[1]))
		add("linear_grad_x", nil, hs(3, 177, l[1]), hs(l[1], l[0]))
		add("linear_grad_w_wide", nil, hs(5, 77, l[1]), hs(5, 77, l[0]))
		ss = append(ss, sample{op: "linear_grad_w_wide", in: []operand{hs(5, 77, l[1]), hs(5, 77, l[0])}, accum: true})
	}
	for _, z := range []struct {
		n, c, h, w, o, kh, kw int
		at                    graph.ConvAttrs
	}{
		{2, 3, 9, 8, 5, 3, 3, graph.ConvAttrs{StrideH: 1, StrideW: 1, PadH: 1, PadW: 1, DilationH: 1, DilationW: 1, Groups: 1}},
		{2, 66, 7, 9, 33, 3, 3, graph.ConvAttrs{StrideH: 1, StrideW: 1, PadH: 1, PadW: 1, DilationH: 1, DilationW: 1, Groups: 1}},
		{3, 64, 8, 8, 70, 3, 3, graph.ConvAttrs{StrideH: 2, StrideW: 2, PadH: 1, PadW: 1, DilationH: 1, DilationW: 1, Groups: 1}},
		{37, 130, 4, 4, 20, 1, 1, graph.ConvAttrs{StrideH: 1, StrideW: 1, DilationH: 1, DilationW: 1, Groups: 1}},
		{2, 40, 21, 19, 6, 3, 2, graph.ConvAttrs{StrideH: 2, StrideW: 3, PadH: 2, PadW: 1, DilationH: 2, DilationW: 1, Groups: 2}},
		{1, 4, 40, 39, 4, 3, 3, graph.ConvAttrs{StrideH: 1, StrideW: 1, PadH: 1, PadW: 1, DilationH: 1, DilationW: 1, Groups: 4}},
		{1, 1, 1, 1, 1, 1, 1, graph.ConvAttrs{StrideH: 1, StrideW: 1, DilationH: 1, DilationW: 1, Groups: 1}},
	} {
		x, w := []int{z.n, z.c, z.h, z.w}, []int{z.o, z.c / z.at.Groups, z.kh, z.kw}
		oh := (z.h+2*z.at.PadH-z.at.DilationH*(z.kh-1)-1)/z.at.StrideH + 1
		ow := (z.w+2*z.at.PadW-z.at.DilationW*(z.kw-1)-1)/z.at.StrideW + 1
		y, at := []int{z.n, z.o, oh, ow}, z.at
		add("conv2d", at, hs(x...), hs(w...))
		add("conv2d", at, hs(x...), hs(w...), hs(z.o))
		at.H, at.W = z.h, z.w
		add("conv2d_grad_x", at, hs(y...), hs(w...))
		at.H, at.W = z.kh, z.kw
		add("conv2d_grad_w_wide", at, hs(y...), hs(x...))
	}
	loss := graph.LinearLossAttrs{CrossEntropyAttrs: graph.CrossEntropyAttrs{Ignore: 3}, Rows: 64}
	small := operand{tensor.BF16, tensor.Shape{130, 70}, func(r *rand.Rand) float64 { return 0.1 * normal(r) }}
	add("linear_cross_entropy", loss, hs(2, 100, 70), small, ints(-2, 2, 100))
	add("linear_cross_entropy_grads", loss, fs(), hs(2, 100, 70), small, ints(-2, 2, 100))
	return ss
}

// Every operation that takes bfloat16 has a sample here.
func TestHalfKernelsHaveSamples(t *testing.T) {
	have := map[string]bool{}
	for _, s := range halfSamples() {
		have[s.op] = true
	}
	for _, family := range [][]kernel{halfKernels, halfProductKernels, halfConvKernels, halfAttentionKernels, linearLossKernels} {
		for _, k := range family {
			if !have[k.op] {
				t.Errorf("%s on %s has no sample", k.op, k.in)
			}
		}
	}
}

// eachClass runs a test with every kernel set and every class of bfloat16 products that it has.
func eachClass(t *testing.T, f func(t *testing.T)) {
	for _, set := range vec.Sets() {
		t.Run(set, func(t *testing.T) {
			defer use(t, set)()
			for _, class := range vec.BF16Classes() {
				t.Run(class, func(t *testing.T) {
					back, err := vec.UseBF16(class)
					if err != nil {
						t.Fatal(err)
					}
					defer back()
					f(t)
				})
			}
		})
	}
}

func TestHalfKernels(t *testing.T) {
	eachClass(t, func(t *testing.T) {
		d, alone := open(t, Config{Threads: 3}), open(t, Config{Threads: 1})
		for _, s := range halfSamples() {
			t.Run(s.name(), func(t *testing.T) {
				b := s.lay(t, d)
				want := b.reference()
				if s.accum {
					for i, v := range f32(b.call.Out[0]) {
						want[0].Data[i] += float64(v)
					}
				}
				run, err := d.Bind(b.call)
				if err != nil {
					t.Fatal(err)
				}
				run()
				for k, y := range b.call.Out {
					near(t, k, y, want[k])
				}
				first := b.results()
				b.reset()
				if run, err = alone.Bind(b.call); err != nil {
					t.Fatal(err)
				}
				run()
				again := b.results()
				if n := min(testing.AllocsPerRun(2, run), testing.AllocsPerRun(2, run)); n > 0 {
					t.Errorf("a run allocates %v times", n)
				}
				for k, r := range again {
					if !bytes.Equal(r, first[k]) {
						t.Errorf("result %d has other bits on one thread", k)
					}
				}
			})
		}
	})
}

// What is no product gives the bits of the fp32 kernel on widened operands, rounded once; in class fma attention does too.
func TestHalfKernelsRoundOnce(t *testing.T) {
	eachClass(t, roundOnce)
}

func roundOnce(t *testing.T) {
	d := open(t, Config{Threads: 2})
	for i, s := range halfSamples() {
		switch s.op {
		case "linear", "linear_grad_x", "linear_grad_w_wide", "conv2d", "conv2d_grad_x", "conv2d_grad_w_wide", "linear_cross_entropy", "linear_cross_entropy_grads":
			continue
		}
		if strings.HasPrefix(s.op, "attention") && vec.BF16Class() != vec.BF16FMA {
			continue
		}
		t.Run(fmt.Sprint(i, " ", s.name()), func(t *testing.T) {
			half := s.lay(t, d)
			wide := s
			wide.in = nil
			for _, o := range s.in {
				if o.dtype == tensor.BF16 {
					o.dtype = tensor.F32
				}
				wide.in = append(wide.in, o)
			}
			full := wide.lay(t, d)
			for k, x := range half.call.In {
				if x.DType == tensor.BF16 {
					vec.BF16ToF32(f32(full.call.In[k]), bf16(x))
				} else {
					copy(full.call.In[k].Bytes(), x.Bytes())
				}
			}
			for _, b := range []*bench{half, full} {
				run, err := d.Bind(b.call)
				if err != nil {
					t.Fatal(err)
				}
				run()
			}
			for k, y := range half.call.Out {
				want := full.call.Out[k].Bytes()
				if y.DType == tensor.BF16 {
					w := f32(full.call.Out[k])
					rounded := make([]uint16, len(w))
					vec.F32ToBF16(rounded, w)
					want = tensor.Bytes(rounded)
				}
				if !bytes.Equal(y.Bytes(), want) {
					t.Errorf("result %d is not the fp32 result rounded once", k)
				}
			}
		})
	}
}

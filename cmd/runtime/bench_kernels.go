package main

import (
	"fmt"
	"strings"
	"time"

	"starling/core/device"
	"starling/core/device/cpu"
	"starling/core/graph"
	"starling/core/plan"
	"starling/core/tensor"
)

// commonKernels lists operations with the types of their inputs: the products of two transformers and of squares, and what else
// such a model runs.
func commonKernels() []commonKernel {
	f := func(shape ...int) graph.Type { return graph.Type{DType: tensor.F32, Shape: shape} }
	ids := func(shape ...int) graph.Type { return graph.Type{DType: tensor.I32, Shape: shape} }
	var ks []commonKernel
	add := func(op string, attrs any, in ...graph.Type) { ks = append(ks, commonKernel{op, attrs, in}) }
	linear := func(rows, in, out int) {
		add("linear", nil, f(rows, in), f(out, in))
		add("linear_grad_x", nil, f(rows, out), f(out, in))
		add("linear_grad_w", nil, f(rows, out), f(rows, in))
	}
	for _, n := range []int{512, 1024} {
		for _, a := range []graph.MatmulAttrs{{}, {TransB: true}, {TransA: true}} {
			add("matmul", a, f(n, n), f(n, n))
		}
	}
	linear(3072, 384, 1152)
	linear(3072, 384, 384)
	linear(3072, 384, 1536)
	linear(3072, 1536, 384)
	linear(256, 768, 2304)
	linear(256, 768, 3072)
	linear(256, 3072, 768)
	linear(256, 768, 50304)
	linear(512, 96, 288)
	linear(512, 256, 96)
	h := func(shape ...int) graph.Type { return graph.Type{DType: tensor.BF16, Shape: shape} }
	for _, l := range [][3]int{{3072, 384, 1152}, {3072, 384, 1536}, {3072, 1536, 384}, {1024, 1024, 1024}} {
		rows, in, out := l[0], l[1], l[2]
		add("linear", nil, h(rows, in), h(out, in))
		add("linear_grad_x", nil, h(rows, out), h(out, in))
		add("linear_grad_w_wide", nil, h(rows, out), h(rows, in))
	}
	q := f(12, 256, 6, 64)
	attention := graph.AttentionAttrs{Causal: true, Scale: 0.125}
	add("attention", attention, q, q, q)
	add("attention_grad", attention, q, q, q, q, q, f(12, 6, 256))
	x, w := f(3072, 384), f(384)
	add("layer_norm", graph.NormAttrs{Eps: 1e-5}, x, w, w)
	add("layer_norm_grad", nil, x, x, w, f(3072, 2))
	add("rms_norm", graph.NormAttrs{Eps: 1e-5}, x, w)
	add("rms_norm_grad", nil, x, x, w, f(3072))
	wide := f(3072, 1536)
	add("gelu", nil, wide)
	add("gelu_grad", nil, wide, wide)
	add("swiglu", nil, wide, wide)
	add("swiglu_grad", nil, wide, wide, wide)
	add("add", nil, x, x)
	add("rotary", graph.RotaryAttrs{Base: 10000}, q)
	add("embedding", nil, f(50304, 384), ids(3072))
	add("embedding_grad", graph.EmbeddingGradAttrs{Rows: 256}, x, ids(3072))
	add("cross_entropy", graph.CrossEntropyAttrs{Ignore: -1}, f(256, 50304), ids(256))
	add("cross_entropy_grad", graph.CrossEntropyAttrs{Ignore: -1}, f(), f(256, 50304), ids(256), f(256))
	add("conv2d", graph.ConvAttrs{StrideH: 1, StrideW: 1, PadH: 1, PadW: 1, DilationH: 1, DilationW: 1, Groups: 1}, f(16, 64, 32, 32), f(64, 64, 3, 3))
	hyper := graph.Type{DType: tensor.F64, Shape: tensor.Shape{graph.HyperCount}}
	p := f(10_000_000)
	add("adamw", graph.AdamWAttrs{}, p, p, p, p, hyper)
	add("sum_squares", nil, p)
	add("cast", graph.CastAttrs{To: tensor.BF16}, wide)
	return ks
}

type commonKernel struct {
	op    string
	attrs any
	in    []graph.Type
}

// common times kernels one by one.
func (r *opsResult) common(dev *cpu.Device, o opsOptions) error {
	for _, k := range commonKernels() {
		if !strings.Contains(k.op, o.match) {
			continue
		}
		s, err := timeKernel(dev, k, o.rounds)
		if err != nil {
			return fmt.Errorf("%s: %w", k.op, err)
		}
		r.add(s, 0)
	}
	return nil
}

func timeKernel(dev *cpu.Device, k commonKernel, rounds int) (*sampleOf, error) {
	op, err := graph.Lookup(k.op)
	if err != nil {
		return nil, err
	}
	b := graph.NewBuilder()
	var in []*graph.Value
	for i, t := range k.in {
		v, err := b.Apply(graph.OpInput, graph.InputAttrs{Name: fmt.Sprint(i), DType: t.DType, Shape: graph.MakeDims(t.Shape)})
		if err != nil {
			return nil, err
		}
		in = append(in, v[0])
	}
	out, err := b.Apply(op, k.attrs, in...)
	if err != nil {
		return nil, err
	}
	var mem device.Memory
	var operands []device.Operand
	call := device.Call{Op: op, Attrs: k.attrs}
	at := int64(0)
	place := func(v *graph.Value) device.Operand {
		o := device.Operand{Type: v.Type, Space: device.IO, Offset: at}
		at += (v.Bytes() + device.Align - 1) / device.Align * device.Align
		return o
	}
	for _, v := range in {
		operands = append(operands, place(v))
	}
	results := []device.Operand{}
	for i, v := range out {
		if op == graph.OpAdamW { // which updates in place
			results = append(results, operands[[]int{0, 2, 3}[i]])
			continue
		}
		results = append(results, place(v))
	}
	a, err := dev.Alloc("bench", at)
	if err != nil {
		return nil, err
	}
	defer a.Free()
	mem.Arenas[device.IO] = a
	for _, o := range operands {
		fillInput(mem, o)
		call.In = append(call.In, device.Tensor{Type: o.Type, Arena: a, Offset: o.Offset})
	}
	for _, o := range results {
		call.Out = append(call.Out, device.Tensor{Type: o.Type, Arena: a, Offset: o.Offset})
	}
	run, err := dev.Bind(call)
	if err != nil {
		return nil, err
	}
	s := &sampleOf{op: k.op, shapes: shapesOf(operands), calls: 1}
	s.flops, s.bytes = plan.Cost(out[0].Def)
	if m, ok := k.attrs.(graph.MatmulAttrs); ok {
		s.op += map[graph.MatmulAttrs]string{{}: " nn", {TransB: true}: " nt", {TransA: true}: " tn"}[m]
	}
	run()
	t0 := time.Now()
	run()
	calls := int(max(1, min(1000, 20*time.Millisecond/max(time.Since(t0), time.Microsecond))))
	meter := newMeter(dev)
	for range rounds {
		t0 := time.Now()
		for range calls {
			run()
		}
		took := time.Since(t0)
		s.seconds = append(s.seconds, took.Seconds()/float64(calls))
		s.total += took.Seconds()
		s.used += meter.used(took)
	}
	return s, nil
}

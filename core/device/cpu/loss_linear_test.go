package cpu

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"starling/core/device"
	"starling/core/graph"
	"starling/core/tensor"
	"starling/sdk/vec"
)

// The bits are those of the operations that the chunks stand for. Tiles of bfloat16 take products in groups, so a chunk of half values has a
// whole number of them.
func TestLossInChunksHasTheBitsOfTheWhole(t *testing.T) {
	const in, classes = 70, 301
	for _, set := range vec.Sets() {
		for _, dtype := range []tensor.DType{tensor.F32, tensor.BF16} {
			for _, threads := range []int{1, 3} {
				for _, rows := range []int{1, 200, 450} {
					for _, chunk := range []int{7, 64, 384} {
						if dtype == tensor.BF16 && chunk%64 != 0 || chunk == 7 && rows > 200 {
							continue
						}
						t.Run(fmt.Sprintf("%s %v %d threads, %d rows in chunks of %d", set, dtype, threads, rows, chunk), func(t *testing.T) {
							defer use(t, set)()
							lossBits(t, open(t, Config{Threads: threads}), dtype, rows, chunk, in, classes)
						})
					}
				}
			}
		}
	}
}

func lossBits(t *testing.T, d *Device, dtype tensor.DType, rows, chunk, in, classes int) {
	r := rand.New(rand.NewPCG(uint64(rows), uint64(chunk)))
	place := func(dtype tensor.DType, shape ...int) device.Tensor {
		y := device.Tensor{Type: graph.Type{DType: dtype, Shape: shape}}
		a, err := d.Alloc("test", y.Type.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(a.Free)
		y.Arena = a
		return y
	}
	run := func(op string, attrs any, accum bool, in, out []device.Tensor) {
		o, err := graph.Lookup(op)
		if err != nil {
			t.Fatal(err)
		}
		f, err := d.Bind(device.Call{Op: o, Attrs: attrs, In: in, Out: out, Accum: accum})
		if err != nil {
			t.Fatal(err)
		}
		f()
	}
	type T = []device.Tensor
	cast := func(x device.Tensor, to tensor.DType) device.Tensor {
		if x.DType == to {
			return x
		}
		y := place(to, x.Shape...)
		run("cast", graph.CastAttrs{To: to}, false, T{x}, T{y})
		return y
	}
	draw := func(scale float64, shape ...int) device.Tensor {
		x := place(tensor.F32, shape...)
		for i := range f32(x) {
			f32(x)[i] = float32(scale * normal(r))
		}
		return cast(x, dtype)
	}
	x, w, seed, targets := draw(1, rows, in), draw(0.2, classes, in), place(tensor.F32), place(tensor.I32, rows)
	f32(seed)[0] = 0.0317
	for i := range i32(targets) {
		i32(targets)[i] = int32(r.IntN(classes+20) - 20)
	}
	at := graph.CrossEntropyAttrs{Ignore: 5}
	scalar := func() device.Tensor { return place(tensor.F32) }

	for _, accum := range []bool{false, true} {
		logits, lse, dwide := place(dtype, rows, classes), place(tensor.F32, rows), place(tensor.F32, rows, classes)
		want := T{place(tensor.F32, classes, in), place(dtype, rows, in), scalar(), scalar()}
		got := T{place(tensor.F32, classes, in), place(dtype, rows, in), scalar(), scalar(), place(dtype, min(chunk, rows), classes)}
		for i := range f32(want[0]) {
			f32(want[0])[i] = float32(normal(r))
		}
		copy(got[0].Bytes(), want[0].Bytes())
		run("linear", nil, false, T{x, w}, T{logits})
		run("cross_entropy", at, false, T{cast(logits, tensor.F32), targets}, T{want[2], want[3], lse})
		run("cross_entropy_grad", at, false, T{seed, cast(logits, tensor.F32), targets, lse}, T{dwide})
		dlogits := cast(dwide, dtype)
		run("linear_grad_x", nil, false, T{dlogits, w}, T{want[1]})
		run("linear_grad_w_wide", nil, accum, T{dlogits, x}, T{want[0]})

		a := graph.LinearLossAttrs{CrossEntropyAttrs: at, Rows: chunk}
		run("linear_cross_entropy_grads", a, accum, T{seed, x, w, targets}, got)
		for i, what := range []string{"the weight's gradient", "x's gradient", "the loss", "the weight of the loss"} {
			if !bytes.Equal(got[i].Bytes(), want[i].Bytes()) {
				t.Errorf("accumulating %v: %s has other bits", accum, what)
			}
		}
		forward := T{scalar(), scalar(), got[4]}
		run("linear_cross_entropy", a, false, T{x, w, targets}, forward)
		for i := range 2 {
			if !bytes.Equal(forward[i].Bytes(), want[2+i].Bytes()) {
				t.Errorf("without gradients: result %d has other bits", i)
			}
		}
	}
}

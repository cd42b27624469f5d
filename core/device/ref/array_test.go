package ref

import (
	"math"
	"strings"
	"testing"

	"starling/core/device"
	"starling/core/graph"
	"starling/core/tensor"
)

// Every value of the 16-bit types survives reading and writing, bit for bit (NaN as a NaN).
func TestHalvesSurvive(t *testing.T) {
	const n = 1 << 16
	a, err := Open().Alloc("test", 2*n)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []tensor.DType{tensor.BF16, tensor.F16} {
		x := device.Tensor{Type: graph.Type{DType: d, Shape: tensor.Shape{n}}, Arena: a}
		bits := tensor.View[uint16](x.Bytes())
		for i := range bits {
			bits[i] = uint16(i)
		}
		values := Read(x)
		Write(x, values)
		again := Read(x)
		for i, v := range values.Data {
			switch {
			case math.IsNaN(v) && !math.IsNaN(again.Data[i]):
				t.Fatalf("%v: NaN %#x came back as %v", d, i, again.Data[i])
			case !math.IsNaN(v) && bits[i] != uint16(i):
				t.Fatalf("%v: %#x was read as %v and written as %#x", d, i, v, bits[i])
			}
		}
	}
	for h, want := range map[uint16]float64{0x3c00: 1, 0xc000: -2, 0x7bff: 65504, 0x0001: math.Ldexp(1, -24), 0x0400: math.Ldexp(1, -14), 0x3555: 0.333251953125, 0xfc00: math.Inf(-1)} {
		if got := fromHalf(h); got != want {
			t.Errorf("f16 %#x is %v, want %v", h, got, want)
		}
	}
}

func TestRunNamesWhatIsMissing(t *testing.T) {
	b := graph.NewBuilder()
	x, err := b.Apply(graph.OpInput, graph.InputAttrs{Name: "x", DType: tensor.F32, Shape: graph.MakeDims([]int{2})})
	if err != nil {
		t.Fatal(err)
	}
	y, err := b.Apply(graph.OpNeg, nil, x[0])
	if err != nil {
		t.Fatal(err)
	}
	b.Output("y", y[0])
	for _, c := range []struct {
		feeds Feeds
		want  string
	}{
		{nil, "no value for input x"},
		{Feeds{"x": graph.NewArray(graph.Type{DType: tensor.F32, Shape: tensor.Shape{3}})}, "the value for input x is f32[3] with 3 elements, the graph has f32[2]"},
	} {
		if _, err := Run(b.G, c.feeds); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want %q", err, c.want)
		}
	}
	out, err := Run(b.G, Feeds{"x": {Type: x[0].Type, Data: []float64{1, -2}}})
	if err != nil || out["y"].Data[0] != -1 || out["y"].Data[1] != 2 {
		t.Errorf("got %v, %v", out["y"], err)
	}
}

func TestBindRefusesCallsThatTheShapeRuleRefuses(t *testing.T) {
	a, err := Open().Alloc("test", 256)
	if err != nil {
		t.Fatal(err)
	}
	at := func(shape ...int) device.Tensor {
		return device.Tensor{Type: graph.Type{DType: tensor.F32, Shape: shape}, Arena: a}
	}
	for _, c := range []struct {
		call device.Call
		want string
	}{
		{device.Call{Op: graph.OpAdd, In: []device.Tensor{at(2), at(3)}, Out: []device.Tensor{at(2)}}, "cannot broadcast [2] with [3]"},
		{device.Call{Op: graph.OpNeg, In: []device.Tensor{at(2)}, Out: []device.Tensor{at(3)}}, "result 0 of neg is f32[2], the call has f32[3]"},
		{device.Call{Op: graph.OpNeg, In: []device.Tensor{at(2)}}, "neg has 1 results, the call 0"},
		{device.Call{Op: graph.OpNeg, In: []device.Tensor{at(2)}, Out: []device.Tensor{at(2)}, Accum: true}, "cannot accumulate"},
	} {
		if _, err := Open().Bind(c.call); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want %q", err, c.want)
		}
	}
}

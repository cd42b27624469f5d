package cpu

import (
	"fmt"
	"slices"
	"strings"

	"starling/core/device"
	"starling/core/tensor"
)

// maker makes the kernel of a call whose element types and shapes fit the operation.
type maker func(d *Device, c device.Call) (func(), error)

// kernel is one entry of the table: an operation, the element types of its inputs and what makes the kernel.
// A last type with "..." behind it stands for any number of inputs of that type.
type kernel struct {
	op, in string
	make   maker
}

// table holds every kernel, by operation and types.
var table = index(
	elementwiseKernels, unaryKernels, castKernels,
	layoutKernels, reduceKernels, softmaxKernels,
	productKernels, attentionKernels, rotaryKernels,
	normKernels, batchNormKernels, lossKernels, embeddingKernels, dropoutKernels,
	halfProductKernels, halfConvKernels, halfKernels, halfAttentionKernels, linearLossKernels,
	convKernels, windowKernels, optimizerKernels, gradientKernels, smallStateKernels,
)

func index(families ...[]kernel) map[string][]kernel {
	t := map[string][]kernel{}
	for _, f := range families {
		for _, k := range f {
			t[k.op] = append(t[k.op], k)
		}
	}
	return t
}

// accepts reports whether the entry takes inputs of these types.
func (k *kernel) accepts(in []device.Tensor) bool {
	want := strings.Fields(k.in)
	if n := len(want) - 1; n >= 0 && strings.HasSuffix(want[n], "...") {
		last := strings.TrimSuffix(want[n], "...")
		want = want[:n]
		for len(want) < len(in) {
			want = append(want, last)
		}
	}
	return slices.EqualFunc(in, want, func(t device.Tensor, name string) bool { return t.DType.String() == name })
}

// find returns the maker for a call.
func find(c device.Call) (maker, error) {
	entries := table[c.Op.Name]
	for i := range entries {
		if entries[i].accepts(c.In) {
			return entries[i].make, nil
		}
	}
	var types []string
	for _, t := range c.In {
		types = append(types, t.DType.String())
	}
	have := "the device has no kernel for that operation"
	if len(entries) > 0 {
		var forms []string
		for _, k := range entries {
			forms = append(forms, "("+k.in+")")
		}
		have = "the device takes " + strings.Join(forms, " or ")
	}
	return nil, fmt.Errorf("cpu: no kernel for %s(%s): %s", c.Op.Name, strings.Join(types, " "), have)
}

// f32 views a tensor's memory as float32; i32, u32 and f64 likewise.
func f32(t device.Tensor) []float32 { return tensor.View[float32](t.Bytes()) }
func f64(t device.Tensor) []float64 { return tensor.View[float64](t.Bytes()) }
func i32(t device.Tensor) []int32   { return tensor.View[int32](t.Bytes()) }
func u32(t device.Tensor) []uint32  { return tensor.View[uint32](t.Bytes()) }

// attrs returns a call's attributes as the type that its operation has.
func attrs[T any](c device.Call) (T, error) {
	a, ok := c.Attrs.(T)
	if !ok {
		return a, fmt.Errorf("attributes of type %T where %T belong", c.Attrs, a)
	}
	return a, nil
}

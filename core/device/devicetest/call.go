package devicetest

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"starling/core/device"
	"starling/core/device/ref"
	"starling/core/graph"
)

// poison fills memory that no kernel may write. Results are filled with all ones, which is NaN in every floating-point type.
const poison, unset = 0xA5, 0xFF

// call is one case on a device: operands in one arena with a poisoned gap behind each.
type call struct {
	node   *graph.Node
	in     []*graph.Array
	arena  device.Arena
	call   device.Call
	masked bool // see testCase
}

// newCall draws the inputs of a case and lays the operands out.
func newCall(dev device.Device, op *graph.Op, c testCase, r *rand.Rand) (*call, error) {
	k := &call{masked: c.masked}
	for _, o := range c.in {
		a := graph.NewArray(o.Type)
		for i := range a.Data {
			a.Data[i] = graph.Round(a.DType, o.fill(r, i))
		}
		k.in = append(k.in, a)
	}
	if c.derive != nil {
		c.derive(k.in)
		for _, a := range k.in {
			for i, v := range a.Data {
				a.Data[i] = graph.Round(a.DType, v)
			}
		}
	}
	var err error
	if k.node, err = apply(op, c.attrs, k.in); err != nil {
		return nil, err
	}
	k.call = device.Call{Op: op, Attrs: c.attrs}
	size := int64(device.Align)
	place := func(t graph.Type) device.Tensor {
		at := size
		size += (t.Bytes()+device.Align-1)/device.Align*device.Align + device.Align
		return device.Tensor{Type: t, Offset: at}
	}
	for _, a := range k.in {
		k.call.In = append(k.call.In, place(a.Type))
	}
	for _, v := range k.node.Out {
		k.call.Out = append(k.call.Out, place(v.Type))
	}
	if k.arena, err = dev.Alloc("test", size); err != nil {
		return nil, err
	}
	if k.arena.Bytes() == nil {
		return nil, fmt.Errorf("devicetest needs arenas that the host can address")
	}
	for i := range k.call.In {
		k.call.In[i].Arena = k.arena
	}
	for i := range k.call.Out {
		k.call.Out[i].Arena = k.arena
	}
	return k, nil
}

// apply makes the node of a call.
func apply(op *graph.Op, attrs any, in []*graph.Array) (*graph.Node, error) {
	b := graph.NewBuilder()
	var values []*graph.Value
	for i, a := range in {
		v, err := b.Apply(graph.OpInput, graph.InputAttrs{Name: fmt.Sprint("x", i), DType: a.DType, Shape: graph.MakeDims(a.Shape)})
		if err != nil {
			return nil, err
		}
		values = append(values, v[0])
	}
	out, err := b.Apply(op, attrs, values...)
	if err != nil {
		return nil, err
	}
	return out[0].Def, nil
}

// reference computes an operation in float64.
func reference(op *graph.Op, attrs any, in ...*graph.Array) []*graph.Array {
	n, err := apply(op, attrs, in)
	if err != nil {
		panic(err) // a mistake in a row
	}
	return n.Op.Ref(n, in)
}

// reset writes the inputs, unset results and poison everywhere else.
func (k *call) reset() {
	mem := k.arena.Bytes()
	for i := range mem {
		mem[i] = poison
	}
	for i, x := range k.call.In {
		ref.Write(x, k.in[i])
	}
	for _, t := range k.call.Out {
		b := t.Bytes()
		for i := range b {
			b[i] = unset
		}
	}
}

// inside checks that the poison is untouched.
func (k *call) inside(t *testing.T, what string) {
	t.Helper()
	mem := bytes.Clone(k.arena.Bytes())
	for _, ts := range [][]device.Tensor{k.call.In, k.call.Out} {
		for _, x := range ts {
			b := mem[x.Offset : x.Offset+x.Type.Bytes()]
			for i := range b {
				b[i] = poison
			}
		}
	}
	for i, b := range mem {
		if b != poison {
			t.Errorf("%sbyte %d of the arena was written, which belongs to no operand", what, i)
			return
		}
	}
}

// unchanged checks that the inputs are what they were.
func (k *call) unchanged(t *testing.T, what string) {
	t.Helper()
	for i, x := range k.call.In {
		now := ref.Read(x).Data
		for j, v := range k.in[i].Data {
			if got := now[j]; got != v && !(math.IsNaN(got) && math.IsNaN(v)) {
				t.Errorf("%selement %d of input %d was changed from %v to %v", what, j, i, v, got)
				return
			}
		}
	}
}

// results copies the memory of the results.
func (k *call) results() [][]byte {
	var out [][]byte
	for _, x := range k.call.Out {
		out = append(out, bytes.Clone(x.Bytes()))
	}
	return out
}

// same compares the results with earlier ones, bit by bit.
func (k *call) same(t *testing.T, what string, first [][]byte) {
	t.Helper()
	for j, x := range k.call.Out {
		if !bytes.Equal(x.Bytes(), first[j]) {
			t.Errorf("%s gives other bits in result %d", what, j)
		}
	}
}

// onInputs runs the call with result j lying on input on[j] and expects the same bits.
func (k *call) onInputs(t *testing.T, dev device.Device, on []int, first [][]byte) {
	t.Helper()
	placed := *k
	placed.call.Out = append([]device.Tensor(nil), k.call.Out...)
	for j, i := range on {
		placed.call.Out[j].Offset = k.call.In[i].Offset
	}
	run, err := dev.Bind(placed.call)
	if err != nil {
		t.Errorf("Bind with results on inputs %v: %v", on, err)
		return
	}
	k.reset()
	run()
	placed.same(t, fmt.Sprintf("a run with results on inputs %v", on), first)
}

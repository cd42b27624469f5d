package devicetest

import (
	"fmt"
	"hash/fnv"
	"maps"
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"starling/core/device"
	"starling/core/device/ref"
	"starling/core/graph"
)

// Run checks the device that open makes, one subtest for each operation.
func Run(t *testing.T, open func() device.Device) {
	t.Run("memory", func(t *testing.T) { memory(t, open) })
	for name := range rows {
		if _, err := graph.Lookup(name); err != nil {
			t.Errorf("devicetest has a row for %s: %v", name, err)
		}
	}
	for _, name := range graph.Names() {
		if name == graph.OpInput.Name || name == graph.OpParam.Name {
			continue // no device computes these
		}
		row, ok := rows[name]
		if !ok {
			t.Errorf("devicetest has no row for operation %s", name)
			continue
		}
		t.Run(name, func(t *testing.T) { row.run(t, name, open) })
	}
}

// memory checks what a device promises about arenas.
func memory(t *testing.T, open func() device.Device) {
	dev := open()
	defer dev.Close()
	for _, size := range []int64{64, 4096, 1<<20 + 64} {
		a, err := dev.Alloc("test", size)
		if err != nil {
			t.Fatal(err)
		}
		mem := a.Bytes()
		if a.Size() != size || int64(len(mem)) != size {
			t.Fatalf("an arena of %d bytes has size %d and %d bytes that the host can address", size, a.Size(), len(mem))
		}
		if uintptr(unsafe.Pointer(&mem[0]))%device.Align != 0 {
			t.Errorf("an arena of %d bytes is not aligned to %d", size, device.Align)
		}
		for i, b := range mem {
			if b != 0 {
				t.Fatalf("byte %d of a new arena is %d", i, b)
			}
		}
		a.Free()
	}
	x := operand{f32(3), normal}
	c := testCase{in: []operand{x}}
	k, err := newCall(dev, graph.OpReLU, c, rand.New(rand.NewPCG(1, 1)))
	if err != nil {
		t.Fatal(err)
	}
	defer k.arena.Free()
	k.call.Accum = true
	if _, err := dev.Bind(k.call); err == nil {
		t.Error("the device made an accumulating form of relu, which has none")
	}
}

// row is what the suite knows about one operation.
type row struct {
	// A result may differ from the reference by rel of its own magnitude, plus abs of the greatest in the tensor, plus least.
	rel, abs, least float64
	cases           func(r *rand.Rand) []testCase
	// nan lists the inputs in which a NaN must show in the results as it does in the reference, and nowhere else.
	nan []int
	// renews lists, for operations that renew several inputs in place, the input that each result lies on.
	renews []int
}

var rows = merge(elementwiseRows(), shapeRows(), reduceRows(), productRows(), layerRows(), imageRows(), optimRows())

func merge(families ...map[string]row) map[string]row {
	all := map[string]row{}
	for _, f := range families {
		maps.Copy(all, f)
	}
	return all
}

// testCase is one call of an operation.
type testCase struct {
	name  string
	attrs any
	in    []operand
	// masked says that some products do not count, so that a NaN in one of them may or may not show.
	masked bool
	// derive computes inputs that must agree with others, such as the result of the forward operation.
	derive func(in []*graph.Array)
}

func (row row) run(t *testing.T, name string, open func() device.Device) {
	op, err := graph.Lookup(name)
	if err != nil {
		t.Fatal(err)
	}
	dev := open()
	defer dev.Close()
	h := fnv.New64a()
	h.Write([]byte(name))
	seed := h.Sum64()
	for i, c := range row.cases(rand.New(rand.NewPCG(seed, 0))) {
		c.name = fmt.Sprintf("%02d %s%v", i, c.name, c.shapes())
		t.Run(c.name, func(t *testing.T) {
			k, err := newCall(dev, op, c, rand.New(rand.NewPCG(seed, uint64(i))))
			if err != nil {
				t.Fatal(err)
			}
			defer k.arena.Free()
			row.check(t, dev, k)
		})
	}
}

func (c testCase) shapes() string {
	s := ""
	for _, o := range c.in {
		s += o.Shape.String()
	}
	return s
}

// check runs one case in every way that a program may.
func (row row) check(t *testing.T, dev device.Device, k *call) {
	k.reset()
	run, err := dev.Bind(k.call)
	if err != nil {
		t.Fatalf("Bind: %v", err)
	}
	want := k.node.Op.Ref(k.node, k.in)
	run()
	row.compare(t, k, "", want)
	k.unchanged(t, "")
	first := k.results()

	k.reset()
	run()
	k.same(t, "a second run", first)

	if k.node.Op.Accumulates {
		row.accumulates(t, dev, k, want)
	}
	if row.renews != nil {
		k.onInputs(t, dev, row.renews[:len(k.call.Out)], first)
	} else if k.node.Op.InPlace {
		for i, in := range k.call.In {
			if in.DType == k.call.Out[0].DType && in.Shape.Equal(k.call.Out[0].Shape) {
				k.onInputs(t, dev, []int{i}, first)
			}
		}
	}
	for _, i := range row.nan {
		if i < len(k.in) && !k.masked {
			row.withNaN(t, k, run, i)
		}
	}
}

// accumulates checks the form that continues the sum in its result.
func (row row) accumulates(t *testing.T, dev device.Device, k *call, product []*graph.Array) {
	c := k.call
	c.Accum = true
	run, err := dev.Bind(c)
	if err != nil {
		t.Fatalf("Bind of the accumulating form: %v", err)
	}
	k.reset()
	r := rand.New(rand.NewPCG(3, 5))
	want := graph.NewArray(product[0].Type)
	for i := range want.Data {
		want.Data[i] = graph.Round(want.DType, normal(r, i))
	}
	ref.Write(c.Out[0], want)
	for i, p := range product[0].Data {
		want.Data[i] += p
	}
	run()
	row.compare(t, k, "accumulating form: ", append([]*graph.Array{want}, product[1:]...))
	k.unchanged(t, "accumulating form: ")
}

// withNaN makes one element of an input NaN and compares what comes of it.
func (row row) withNaN(t *testing.T, k *call, run func(), input int) {
	x := k.in[input]
	if !x.DType.IsFloat() {
		return
	}
	at := (len(x.Data) - 1) / 2
	old := x.Data[at]
	x.Data[at] = math.NaN()
	defer func() { x.Data[at] = old }()
	k.reset()
	run()
	row.compare(t, k, fmt.Sprintf("with a NaN in input %d: ", input), k.node.Op.Ref(k.node, k.in))
}

// compare checks the results against the reference, and that nothing was written beside them.
func (row row) compare(t *testing.T, k *call, what string, want []*graph.Array) {
	t.Helper()
	for j, out := range k.call.Out {
		scale := 0.0
		for _, w := range want[j].Data {
			if !math.IsInf(w, 0) && !math.IsNaN(w) {
				scale = max(scale, math.Abs(w))
			}
		}
		results, bad := ref.Read(out).Data, 0
		for i, w := range want[j].Data {
			w, got := graph.Round(out.DType, w), results[i]
			bound := row.rel*math.Abs(w) + row.abs*scale + row.least
			if math.IsNaN(w) && math.IsNaN(got) || w == got || math.Abs(got-w) <= bound {
				continue
			}
			if bad++; bad <= 3 {
				t.Errorf("%sresult %d, element %d of %v: got %v, want %v (within %.2g)", what, j, i, out.Type, got, w, bound)
			}
		}
		if bad > 3 {
			t.Errorf("%sresult %d: %d of %d elements are wrong", what, j, bad, len(want[j].Data))
		}
	}
	k.inside(t, what)
}

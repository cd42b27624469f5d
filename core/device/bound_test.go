package device_test

import (
	"errors"
	"strings"
	"testing"

	"starling/core/device"
	"starling/core/device/ref"
	"starling/core/graph"
	"starling/core/tensor"
)

func vector(space device.Space, at int64, n int) device.Operand {
	return device.Operand{Type: graph.Type{DType: tensor.F32, Shape: tensor.Shape{n}}, Space: space, Offset: at}
}

// open allocates every arena at 4 KB, and a stack of gradient buffers.
func open(t *testing.T, buffers int) (device.Device, device.Memory) {
	t.Helper()
	dev := ref.Open()
	t.Cleanup(dev.Close)
	var m device.Memory
	for s := range m.Arenas {
		a, err := dev.Alloc(device.Space(s).String(), 4096)
		if err != nil {
			t.Fatal(err)
		}
		m.Arenas[s] = a
	}
	for range buffers {
		a, err := dev.Alloc("grads", 4096)
		if err != nil {
			t.Fatal(err)
		}
		m.Stack = append(m.Stack, a)
		m.Arenas[device.Grads] = a
	}
	return dev, m
}

func TestBindRefusesWrongPlaces(t *testing.T) {
	dev, m := open(t, 1)
	node := &graph.Node{Op: graph.OpNeg, Block: "h.0", Pos: graph.Position{File: "x.star", Line: 3}}
	for _, c := range []struct {
		out  device.Operand
		want string
	}{
		{vector(device.Work, 4096, 1), "outside the arena"},
		{vector(device.Work, 4032, 17), "outside the arena"},
		{vector(device.Work, 4, 1), "not aligned"},
		{vector(device.Work, -64, 1), "outside the arena"},
	} {
		seg := &device.Segment{Name: "test", Instrs: []device.Instr{{Op: graph.OpNeg, In: []device.Operand{vector(device.Work, 0, c.out.Shape[0])}, Out: []device.Operand{c.out}, Node: node}}}
		_, err := device.Bind(dev, seg, m)
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "block h.0, x.star:3") {
			t.Errorf("%v: error %v, want one with %q and the node's place", c.out, err, c.want)
		}
	}
	seg := &device.Segment{Instrs: []device.Instr{{Op: graph.OpNeg, Accum: true, In: []device.Operand{vector(device.Work, 0, 1)}, Out: []device.Operand{vector(device.Work, 64, 1)}}}}
	if _, err := device.Bind(dev, seg, m); err == nil || !strings.Contains(err.Error(), "cannot accumulate") {
		t.Errorf("an operation that cannot accumulate: error %v", err)
	}
}

// recorder notes the collectives that a run asks for.
type recorder struct{ calls []string }

func (r *recorder) Start(in *device.Instr) error {
	r.calls = append(r.calls, "start "+in.Collective)
	return nil
}
func (r *recorder) Wait(in *device.Instr) error {
	r.calls = append(r.calls, "wait "+in.Collective)
	return nil
}

func TestInstructionsRunAtTheirMoment(t *testing.T) {
	dev, m := open(t, 3)
	bucket := vector(device.Grads, 0, 2)
	seg := &device.Segment{Name: "micro", Instrs: []device.Instr{
		{Op: graph.OpGradStore, Accum: true, In: []device.Operand{vector(device.IO, 0, 2)}, Out: []device.Operand{bucket}},
		{Kind: device.Fold, When: device.LastInLane, Out: []device.Operand{bucket}},
		{Kind: device.Start, When: device.LastOnRank, Collective: "all_reduce", Out: []device.Operand{bucket}},
		{Kind: device.Wait, When: device.LastOnRank, Collective: "all_reduce", Out: []device.Operand{bucket}},
	}}
	b, err := device.Bind(dev, seg, m)
	if err != nil {
		t.Fatal(err)
	}
	x := device.View[float32](m, vector(device.IO, 0, 2))
	x[0], x[1] = 1, 2
	read := func(k int) []float32 {
		mem := m
		mem.Arenas[device.Grads] = m.Stack[k]
		return device.View[float32](mem, bucket)
	}
	read(0)[0], read(1)[0] = 100, 10
	var r recorder
	for i, e := range []device.Env{
		{FirstInLane: true, Comm: &r},
		{Comm: &r},
		{LastInLane: true, LastOnRank: true, Merges: 2, Comm: &r},
	} {
		if err := b.Run(&e); err != nil {
			t.Fatal(err)
		}
		if want := float32(i + 1); read(2)[0] != want || read(2)[1] != 2*want {
			t.Errorf("after run %d the accumulator holds %v, want %v and %v", i, read(2), want, 2*want)
		}
	}
	if read(1)[0] != 13 || read(0)[0] != 113 {
		t.Errorf("after two merges the buffers below hold %v and %v, want 13 and 113", read(1)[0], read(0)[0])
	}
	if got := strings.Join(r.calls, ", "); got != "start all_reduce, wait all_reduce" {
		t.Errorf("collectives %q", got)
	}
}

// A Renew runs in the last run of a rank alone, idle or not; what is to be done between instructions is, and its failure ends the run; parts
// of a segment run by themselves.
func TestRenewingAndParts(t *testing.T) {
	dev, m := open(t, 1)
	x, y := vector(device.IO, 0, 1), vector(device.Work, 0, 1)
	seg := &device.Segment{Name: "micro", Instrs: []device.Instr{
		{Op: graph.OpNeg, In: []device.Operand{x}, Out: []device.Operand{y}},
		{Kind: device.Renew, When: device.LastOnRank, Bucket: 3},
		{Op: graph.OpNeg, In: []device.Operand{y}, Out: []device.Operand{x}},
	}}
	b, err := device.Bind(dev, seg, m)
	if err != nil {
		t.Fatal(err)
	}
	var renewed []int
	renew := func(bucket int) { renewed = append(renewed, bucket) }
	calls := 0
	between := func() error { calls++; return nil }
	for _, e := range []device.Env{{LastInLane: true, Renew: renew}, {LastOnRank: true, Renew: renew, Between: between}, {LastOnRank: true, Idle: true, Renew: renew, Between: between}} {
		if err := b.Run(&e); err != nil {
			t.Fatal(err)
		}
	}
	if len(renewed) != 2 || renewed[0] != 3 {
		t.Errorf("renewed %v, want bucket 3 in the two last runs", renewed)
	}
	if calls != 3+1 {
		t.Errorf("called %d times between instructions, want behind each that ran: 3 and 1", calls)
	}
	at := func(o device.Operand) *float32 { return &device.View[float32](m, o)[0] }
	*at(x), *at(y) = 1, 5
	if err := b.RunPart(&device.Env{}, 2, 3); err != nil || *at(x) != -5 || *at(y) != 5 {
		t.Errorf("the last part alone: %v and %v, %v", *at(x), *at(y), err)
	}
	failed := errors.New("no")
	*at(x) = 1
	between = func() error { return failed }
	if err := b.Run(&device.Env{Between: between}); err != failed || *at(x) != 1 {
		t.Errorf("error %v, and %v where nothing more should have run", err, *at(x))
	}
}

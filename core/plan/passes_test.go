package plan

import (
	"strings"
	"testing"

	"starling/core/device"
	"starling/core/device/ref"
	"starling/core/graph"
	"starling/core/tensor"
)

// count counts the nodes of an operation after a pass of the list.
func count(t *testing.T, p *Plan, pass string, op *graph.Op) int {
	t.Helper()
	for _, r := range p.Passes {
		if r.Pass.Name != pass {
			continue
		}
		n := 0
		for _, x := range r.Graph.Nodes {
			if x.Op == op {
				n++
			}
		}
		return n
	}
	t.Fatalf("there is no pass %s", pass)
	return 0
}

// sumLoss closes a training graph over x, a matrix.
func sumLoss(m *tracer, x *graph.Value) *graph.Graph {
	m.b.Output(OutputLoss, m.op(graph.OpSum, graph.ReduceAttrs{Axes: graph.MakeDims([]int{0, 1})}, m.op(graph.OpTanh, nil, x)))
	m.b.Output(OutputWeight, m.op(graph.OpConst, graph.FullAttrs{Value: 1}))
	return m.b.G
}

func TestGradientsOfAdjoiningSlicesAreJoined(t *testing.T) {
	for _, c := range []struct {
		name  string
		cuts  [][2]int
		joins int
		left  int // pad_slice nodes that remain
	}{
		{"three pieces", [][2]int{{0, 2}, {2, 5}, {5, 6}}, 1, 0},
		{"in another order", [][2]int{{5, 6}, {0, 2}, {2, 5}}, 1, 0},
		{"with a gap", [][2]int{{0, 2}, {3, 6}}, 0, 2},
		{"that overlap", [][2]int{{0, 3}, {2, 6}}, 0, 2},
		{"one of them twice", [][2]int{{0, 3}, {0, 3}, {3, 6}}, 1, 1},
	} {
		m := newTracer(t)
		x := m.linear("in", m.input("x", tensor.F32, 3, 4), 6)
		var sum *graph.Value
		for i, cut := range c.cuts {
			y := m.op(graph.OpSum, graph.ReduceAttrs{Axes: graph.MakeDims([]int{1}), Keep: true}, m.op(graph.OpScale, graph.ScalarAttrs{Value: float64(i + 1)}, m.slice(x, 1, cut[0], cut[1])))
			if sum != nil {
				y = m.op(graph.OpAdd, nil, sum, y)
			}
			sum = y
		}
		g := sumLoss(m, sum)
		checkStep(t, g, settings(1, 0), func(k int) ref.Feeds { return randomBatch(g, k, 2) })
		p := mustBuild(t, g, settings(1, 0))
		if got := count(t, p, "prune", graph.OpConcat); got != c.joins {
			t.Errorf("slices %s: %d concatenations, want %d\n%s", c.name, got, c.joins, dump(t, p, "passes"))
		}
		if left := count(t, p, "prune", graph.OpPadSlice); left != c.left {
			t.Errorf("slices %s: %d pad_slice nodes are left, want %d", c.name, left, c.left)
		}
	}
}

// Equal expressions are computed once within a phase; draws under different keys stay two.
func TestShareAndPrune(t *testing.T) {
	m := newTracer(t)
	x, rng := m.input("x", tensor.F32, 3, 4), m.input("rng", tensor.U32, 4)
	w := m.param("w", 3, 4)
	a := m.op(graph.OpGELU, nil, m.op(graph.OpMul, nil, x, w))
	b := m.op(graph.OpGELU, nil, m.op(graph.OpMul, nil, x, w))
	m.op(graph.OpExp, nil, b) // nobody looks at it
	d1 := m.op(graph.OpDropout, graph.DropoutAttrs{P: 0.5, Key: 1}, a, rng)
	d2 := m.op(graph.OpDropout, graph.DropoutAttrs{P: 0.5, Key: 2}, b, rng)
	g := sumLoss(m, m.op(graph.OpAdd, nil, d1, d2))
	checkStep(t, g, settings(1, 0), func(k int) ref.Feeds { return randomBatch(g, k, 2) })
	p := mustBuild(t, g, settings(1, 0))
	for _, c := range []struct {
		op   *graph.Op
		want int
	}{{graph.OpGELU, 1}, {graph.OpExp, 0}, {graph.OpDropout, 4}} {
		if got := count(t, p, "prune", c.op); got != c.want {
			t.Errorf("%d nodes %s, want %d", got, c.op.Name, c.want)
		}
	}
}

// A weight's gradient is made before the gradient of the layer's input, so that the input itself is free by then.
func TestWeightGradientsComeFirst(t *testing.T) {
	p := mustBuild(t, gpt(t, tinyGPT, true), settings(1, 0))
	seen := map[string]bool{}
	for _, in := range p.Segments[SegmentMicro].Instrs {
		if in.Kind != device.Kernel {
			continue
		}
		place := in.Node.Pos.String()
		switch in.Op {
		case graph.OpLinearGradW:
			seen[place] = true
		case graph.OpLinearGradX:
			if !seen[place] {
				t.Errorf("%v runs before the gradient of its weight", in.Node)
			}
		}
	}
	if len(seen) != 4*tinyGPT.Layers+1 {
		t.Errorf("%d weight gradients", len(seen))
	}
}

// A pass that breaks the graph is found by the verifier, and named.
func TestVerifierRunsAfterEachPass(t *testing.T) {
	g := gpt(t, tinyGPT, true)
	bad := Pass{Name: "bad", Run: func(s *State) error {
		c := clone(s.Graph)
		c.Nodes = c.Nodes[1:]
		s.Graph = c
		return nil
	}}
	_, err := runPasses(&State{Settings: settings(1, 0), Graph: g}, []Pass{{Name: "share", Run: share}, bad})
	if err == nil || !strings.Contains(err.Error(), "pass bad left a graph that is not valid") {
		t.Errorf("got %v", err)
	}
}

func TestBucketsFollowTheirSizes(t *testing.T) {
	g := gpt(t, tinyGPT, true)
	s := settings(2, 0)
	p := mustBuild(t, g, s)
	var end int64
	for i, b := range p.Buckets {
		if b.Index != i || b.Place.Offset != end {
			t.Errorf("bucket %d is number %d at %d, the last one ends at %d", i, b.Index, b.Place.Offset, end)
		}
		end += b.Place.Bytes()
		limit := s.BucketBytes
		if i == 0 {
			limit = s.FirstBucketBytes
		}
		if n := b.Place.Bytes() - 64*int64(s.World) + 64; n > limit && len(b.Grads) > 1 {
			t.Errorf("bucket %d has %d bytes, the limit is %d", i, b.Place.Bytes(), limit)
		}
	}
	if end != p.ArenaBytes[device.Grads] {
		t.Errorf("the buckets end at %d, the arena at %d", end, p.ArenaBytes[device.Grads])
	}
	s.BucketBytes, s.FirstBucketBytes = 2<<10, 2<<10
	p = mustBuild(t, g, s)
	notes := strings.Join(p.Notes, "\n")
	if !strings.Contains(notes, "the gradient of h.1.mlp.down.weight takes 4.0 KiB, more than a bucket of 2.0 KiB: it travels in a bucket of its own") {
		t.Errorf("notes: %s", notes)
	}
}

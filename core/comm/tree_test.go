package comm

import (
	"fmt"
	"math"
	"math/bits"
	"reflect"
	"testing"

	"starling/sdk/vec"

	"pgregory.net/rapid"
)

func TestTreeShape(t *testing.T) {
	for _, c := range []struct {
		lanes int
		want  string
	}{
		{1, "0"}, {2, "(0+1)"}, {3, "((0+1)+2)"}, {6, "(((0+1)+(2+3))+(4+5))"}, {7, "(((0+1)+(2+3))+((4+5)+6))"},
	} {
		tree := Tree{c.lanes}
		var show func(Range) string
		show = func(r Range) string {
			if !tree.IsNode(r) {
				t.Fatalf("%d lanes: %v is not recognised as a node", c.lanes, r)
			}
			left, right, ok := tree.Children(r)
			if !ok {
				return fmt.Sprint(r.Lo)
			}
			return "(" + show(left) + "+" + show(right) + ")"
		}
		if got := show(tree.Root()); got != c.want {
			t.Errorf("%d lanes: %s, want %s", c.lanes, got, c.want)
		}
	}
	for _, r := range []Range{{1, 3}, {0, 5}, {4, 7}, {2, 2}, {0, 8}} {
		if (Tree{6}).IsNode(r) {
			t.Errorf("%v is no node of a tree over 6 lanes", r)
		}
	}
}

func TestMaximalSubtrees(t *testing.T) {
	for _, c := range []struct {
		lanes, lo, hi int
		want          []Range
	}{
		{8, 0, 8, []Range{{0, 8}}},
		{8, 4, 8, []Range{{4, 8}}},
		{8, 1, 7, []Range{{1, 2}, {2, 4}, {4, 6}, {6, 7}}},
		{6, 3, 6, []Range{{3, 4}, {4, 6}}},
		{7, 2, 7, []Range{{2, 4}, {4, 7}}},
		{5, 2, 2, nil},
	} {
		if got := MaximalSubtrees(c.lanes, c.lo, c.hi); !reflect.DeepEqual(got, c.want) {
			t.Errorf("lanes %d..%d of %d: %v, want %v", c.lo, c.hi, c.lanes, got, c.want)
		}
	}
}

// laneValues are chosen so that any other order of additions gives other bits.
func laneValues(lanes, n int) [][]float32 {
	out := make([][]float32, lanes)
	state := uint32(1)
	for i := range out {
		out[i] = make([]float32, n)
		for j := range out[i] {
			state = state*1664525 + 1013904223
			out[i][j] = math.Float32frombits(0x3e000000+state>>7) - 0.4
		}
	}
	return out
}

// runFold executes a fold plan on the lanes of a rank and returns the sums of its nodes.
func runFold(f Fold, values [][]float32) [][]float32 {
	n := len(values[0])
	buf := make([][]float32, f.Buffers)
	for i := range buf {
		buf[i] = make([]float32, n)
	}
	for _, s := range f.Steps {
		copy(buf[s.Buffer], values[s.Lane])
		for _, a := range s.Adds {
			vec.Add(buf[a.Dst], buf[a.Dst], buf[a.Src])
		}
	}
	return buf[:len(f.Nodes)]
}

// treeSumOf is the definition: the sum of node r.
func treeSumOf(values [][]float32, r Range) []float32 {
	left, right, ok := Tree{len(values)}.Children(r)
	if !ok {
		return values[r.Lo]
	}
	out := make([]float32, len(values[0]))
	vec.Add(out, treeSumOf(values, left), treeSumOf(values, right))
	return out
}

func sameBits(a, b []float32) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
			return false
		}
	}
	return true
}

func TestFold(t *testing.T) {
	for lanes := 1; lanes <= 40; lanes++ {
		values := laneValues(lanes, 3)
		for ranks := 1; ranks <= lanes; ranks++ {
			for r, a := range Assign(lanes, ranks) {
				f := NewFold(lanes, a.Lo, a.Hi)
				for k, sum := range runFold(f, values) {
					if !sameBits(sum, treeSumOf(values, f.Nodes[k])) {
						t.Fatalf("%d lanes on %d ranks: rank %d's sum of %v differs from the tree's", lanes, ranks, r, f.Nodes[k])
					}
				}
				n := a.Len()
				if n&(n-1) == 0 && len(f.Nodes) == 1 && f.Buffers != bits.Len(uint(n)) {
					t.Errorf("%d aligned lanes take %d buffers, want log2(%d)+1", n, f.Buffers, n)
				}
				if f.Buffers > bits.Len(uint(lanes))+len(f.Nodes) {
					t.Errorf("%v of %d lanes takes %d buffers", a, lanes, f.Buffers)
				}
			}
		}
	}
}

func TestChunks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 5000).Draw(t, "n")
		ranks := rapid.IntRange(1, 17).Draw(t, "ranks")
		align := rapid.SampledFrom([]int{1, 4, 16, 64}).Draw(t, "align")
		chunks := Chunks(n, ranks, align)
		if err := checkChunks(chunks, ranks, n); err != nil {
			t.Fatal(err)
		}
		least, most := n, 0
		for i, c := range chunks {
			if i > 0 && c.Lo%align != 0 && c.Lo != n {
				t.Fatalf("chunk %d of %d elements starts at %d, no multiple of %d", i, n, c.Lo, align)
			}
			least, most = min(least, c.Len()), max(most, c.Len())
		}
		if most-least > 2*align || (n%(ranks*align) == 0 && most != least) {
			t.Fatalf("chunks of %d elements over %d ranks are uneven: %v", n, ranks, chunks)
		}
	})
}

func TestReductionRefusesGaps(t *testing.T) {
	for _, assign := range [][]Range{{{0, 2}, {3, 4}}, {{0, 2}, {2, 3}}, {{0, 3}, {2, 4}}, {{1, 4}}} {
		if _, err := NewReduction(4, assign); err == nil {
			t.Errorf("assignment %v of 4 lanes was accepted", assign)
		}
	}
}

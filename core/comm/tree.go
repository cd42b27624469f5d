package comm

import (
	"fmt"
	"math/bits"
)

// Range is the half-open interval [Lo, Hi), of lanes or of elements.
type Range struct{ Lo, Hi int }

// Len returns the number of integers in r.
func (r Range) Len() int { return r.Hi - r.Lo }

// Contains reports whether s lies inside r.
func (r Range) Contains(s Range) bool { return r.Lo <= s.Lo && s.Hi <= r.Hi }

// String prints r as [Lo,Hi).
func (r Range) String() string { return fmt.Sprintf("[%d,%d)", r.Lo, r.Hi) }

// Tree is the canonical summation tree over Lanes lanes: a node of n > 1 lanes has as its left child the largest power of
// two below n lanes, as its right child the rest. Every sum over lanes in a run is evaluated in this order, left + right,
// wherever the lanes were computed.
type Tree struct{ Lanes int }

// Root returns the node of all lanes.
func (t Tree) Root() Range { return Range{0, t.Lanes} }

// Children returns the two children of node r, and false if r is a leaf. r must be a node of the tree.
func (t Tree) Children(r Range) (left, right Range, ok bool) {
	n := r.Len()
	if n < 2 {
		return Range{}, Range{}, false
	}
	mid := r.Lo + 1<<(bits.Len(uint(n-1))-1)
	return Range{r.Lo, mid}, Range{mid, r.Hi}, true
}

// IsNode reports whether r is a node of the tree.
func (t Tree) IsNode(r Range) bool {
	at := t.Root()
	for at.Contains(r) && r.Len() > 0 {
		if at == r {
			return true
		}
		left, right, ok := t.Children(at)
		if !ok {
			return false
		}
		at = left
		if r.Lo >= right.Lo {
			at = right
		}
	}
	return false
}

// Assign spreads lanes over ranks: rank r gets lanes ⌊r·lanes/ranks⌋ … ⌊(r+1)·lanes/ranks⌋-1. With more ranks than lanes
// some ranges are empty.
func Assign(lanes, ranks int) []Range {
	out := make([]Range, ranks)
	for r := range out {
		out[r] = assigned(lanes, ranks, r)
	}
	return out
}

func assigned(lanes, ranks, r int) Range { return Range{r * lanes / ranks, (r + 1) * lanes / ranks} }

// MaximalSubtrees returns, in ascending order, the largest nodes of the tree over lanes that lie inside [lo, hi). An
// aligned range is one node; any range is at most about 2·log2(lanes).
func MaximalSubtrees(lanes, lo, hi int) []Range {
	var out []Range
	t, want := Tree{lanes}, Range{lo, hi}
	var walk func(Range)
	walk = func(r Range) {
		switch {
		case r.Hi <= lo || hi <= r.Lo:
		case want.Contains(r):
			out = append(out, r)
		default:
			left, right, _ := t.Children(r)
			walk(left)
			walk(right)
		}
	}
	if lanes > 0 && lo < hi {
		walk(t.Root())
	}
	return out
}

// Add says buffer[Dst] = buffer[Dst] + buffer[Src], element by element.
type Add struct{ Dst, Src int }

// FoldStep says what one lane does: it accumulates into Buffer (which must be zero when the lane starts), and when it has
// finished, Adds are carried out in order.
type FoldStep struct {
	Lane   int
	Buffer int
	Adds   []Add
}

// Fold is the plan by which one rank adds its lanes, run in ascending order, as far as the tree allows: a binary counter
// whose digits are gradient buffers. After the last step buffer k holds the sum of Nodes[k].
type Fold struct {
	Steps   []FoldStep
	Nodes   []Range // the maximal subtrees of the rank's lanes
	Buffers int     // how many gradient buffers the plan uses: log2(n)+1 for an aligned range of n lanes
}

// NewFold plans the lanes [lo, hi) of a tree over lanes.
func NewFold(lanes, lo, hi int) Fold {
	var f Fold
	t := Tree{lanes}
	depth := 0 // buffers in use: finished sums, a stack
	var walk func(Range)
	walk = func(r Range) {
		left, right, ok := t.Children(r)
		if !ok {
			f.Steps = append(f.Steps, FoldStep{Lane: r.Lo, Buffer: depth})
			depth++
			f.Buffers = max(f.Buffers, depth)
			return
		}
		walk(left)
		walk(right)
		depth--
		last := &f.Steps[len(f.Steps)-1]
		last.Adds = append(last.Adds, Add{Dst: depth - 1, Src: depth})
	}
	f.Nodes = MaximalSubtrees(lanes, lo, hi)
	for _, r := range f.Nodes {
		walk(r)
	}
	return f
}

// Chunks cuts n elements into one contiguous chunk per rank, boundaries at multiples of align (the last one at n). Chunks
// are equal where n divides evenly by ranks·align, and differ by at most one unit of align otherwise; some are empty
// where n is small.
func Chunks(n, ranks, align int) []Range {
	return chunksInto(make([]Range, 0, ranks), n, ranks, align)
}

// chunksInto appends the chunks to a list.
func chunksInto(out []Range, n, ranks, align int) []Range {
	units := (n + align - 1) / align
	for r := range ranks {
		c := assigned(units, ranks, r)
		out = append(out, Range{min(c.Lo*align, n), min(c.Hi*align, n)})
	}
	return out
}

package comm

import (
	"fmt"
	"hash/fnv"
)

// Reduction is the plan of a canonical tree sum over the ranks of a group: which subtrees each rank contributes and in
// which order the owner of a chunk adds them. It depends on lanes and assignment only, is immutable, and serves every
// bucket.
type Reduction struct {
	lanes  int
	assign []Range
	leaves []leaf    // every rank's nodes, in ascending lane order
	first  []int     // first[r] is the index in leaves of rank r's first node; len is ranks+1
	sums   []treeSum // evaluation order; values 0..len(leaves)-1 are the leaves, the following ones the sums
	temp   []int     // per sum: which intermediate place it takes while it is needed
	temps  int       // how many of those there are
	digest uint64    // of lanes and assignment, compared between ranks
	// element is the type to which every node is rounded: see Rounded.
	element Element
}

type leaf struct {
	rank int
	node Range
}

// treeSum computes value len(leaves)+i as left + right.
type treeSum struct{ left, right int }

// NewReduction plans the sum over lanes lanes where rank r of a group holds assign[r]. The ranges must be ascending and
// cover all lanes exactly once; empty ranges are allowed.
func NewReduction(lanes int, assign []Range) (*Reduction, error) {
	if lanes < 1 {
		return nil, fmt.Errorf("comm: a reduction needs at least one lane, not %d", lanes)
	}
	at := 0
	for r, a := range assign {
		if a.Lo != at || a.Hi < a.Lo {
			return nil, fmt.Errorf("comm: rank %d is assigned lanes %v; the ranges must cover 0..%d in order, and the next lane is %d", r, a, lanes-1, at)
		}
		at = a.Hi
	}
	if at != lanes {
		return nil, fmt.Errorf("comm: %d ranks are assigned lanes 0..%d of %d; every lane needs a rank", len(assign), at-1, lanes)
	}
	return newReduction(lanes, Tree{lanes}.Root(), assign), nil
}

// newReduction plans the sum over one node of the tree, root, which the ranges of assign cover in order.
func newReduction(lanes int, root Range, assign []Range) *Reduction {
	red := &Reduction{lanes: lanes, element: Float32, assign: append([]Range(nil), assign...)}
	h := fnv.New64a()
	fmt.Fprint(h, lanes, root, assign)
	red.digest = h.Sum64()
	index := map[Range]int{}
	for r, a := range assign {
		red.first = append(red.first, len(red.leaves))
		for _, n := range MaximalSubtrees(lanes, a.Lo, a.Hi) {
			index[n] = len(red.leaves)
			red.leaves = append(red.leaves, leaf{r, n})
		}
	}
	red.first = append(red.first, len(red.leaves))
	t := Tree{lanes}
	var walk func(Range) int
	walk = func(r Range) int {
		if i, ok := index[r]; ok {
			return i
		}
		left, right, _ := t.Children(r)
		s := treeSum{left: walk(left), right: walk(right)}
		red.sums = append(red.sums, s)
		return len(red.leaves) + len(red.sums) - 1
	}
	walk(root)
	red.planTemps()
	return red
}

// Lanes returns the number of lanes.
func (r *Reduction) Lanes() int { return r.lanes }

// Ranks returns the number of ranks.
func (r *Reduction) Ranks() int { return len(r.assign) }

// Assigned returns the lanes of a rank.
func (r *Reduction) Assigned(rank int) Range { return r.assign[rank] }

// Nodes returns the subtrees a rank contributes, in the order in which their sums are passed to the collectives.
func (r *Reduction) Nodes(rank int) []Range {
	return MaximalSubtrees(r.lanes, r.assign[rank].Lo, r.assign[rank].Hi)
}

// Fold returns the plan by which a rank adds its own lanes.
func (r *Reduction) Fold(rank int) Fold {
	return NewFold(r.lanes, r.assign[rank].Lo, r.assign[rank].Hi)
}

// SentBytes returns the payload bytes a rank sends in one AllReduceTree of n elements cut into chunks: each of its nodes
// to every other owner, and its finished chunk to every other rank. For aligned ranges and equal chunks this is
// 2·(N-1)/N of the vector.
func (r *Reduction) SentBytes(rank int, chunks []Range) int {
	total := 0
	for o, c := range chunks {
		if o != rank {
			total += c.Len() * len(r.Nodes(rank))
		}
	}
	return r.element.Size() * (total + (len(chunks)-1)*chunks[rank].Len())
}

// StagingBytes returns the bytes of staging memory a group of this rank needs for one tree collective over chunks with
// pieces of pieceBytes (Options.PieceBytes; 0 means the default): room for the other ranks' subtrees of a few pieces of its
// own chunk. A group keeps the largest need it has met, so the planner counts the maximum over all buckets.
func (r *Reduction) StagingBytes(rank int, chunks []Range, pieceBytes int) int {
	if r.element != Float32 {
		out, in := r.halfStaging(rank, chunks)
		return 4 * ((out+1)/2 + (in+1)/2)
	}
	piece := r.pieceFloats(pieceBytes)
	n := chunks[rank].Len()
	foreign := len(r.leaves) - (r.first[rank+1] - r.first[rank])
	return 4 * foreign * min(piece, n) * min(stagingDepth, pieces(n, piece))
}

// stagingDepth is how many pieces of a rank's own chunk are in flight: while one is added, others arrive, and the word that
// there is room for more is on its way to those who send.
const stagingDepth = 4

// stagingBudget bounds the staging memory, and thereby the pieces of a sum over many ranks, as long as those are not below
// leastPiece. Larger pieces cost fewer hand-overs between the goroutines that move and add them.
const (
	stagingBudget = 8 << 20
	leastPiece    = 64 << 10
)

// pieceFloats returns the elements of a piece, alike on all ranks.
func (r *Reduction) pieceFloats(pieceBytes int) int {
	if pieceBytes <= 0 {
		pieceBytes = DefaultPieceBytes
	}
	return pieceFloats(min(pieceBytes, max(stagingBudget/(stagingDepth*len(r.leaves)), leastPiece)&^63))
}

func pieceFloats(bytes int) int { return max(bytes/4, 1) }

// pieces returns how many pieces of at most piece elements n elements make.
func pieces(n, piece int) int { return (n + piece - 1) / piece }

// pieceOf returns piece p of chunk c.
func pieceOf(c Range, p, piece int) Range {
	return Range{c.Lo + p*piece, min(c.Lo+(p+1)*piece, c.Hi)}
}

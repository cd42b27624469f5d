package plan

import (
	"fmt"
	"hash/fnv"
	"slices"

	"starling/core/comm"
	"starling/core/compress"
)

// GradientPlace is where a gradient lies in its bucket's vector: elements At … At+Size-1.
type GradientPlace struct {
	Gradient
	Param    *Param
	At, Size int
}

// GradientPlaces lists a bucket's gradients with their places in its vector, ascending.
func (p *Plan) GradientPlaces(b Bucket) []GradientPlace {
	var out []GradientPlace
	for _, gr := range b.Grads {
		q := p.Param(gr.Param)
		use := q.Uses[gr.Use]
		out = append(out, GradientPlace{gr, q, int(use.Offset-b.Place.Offset) / 4, use.Shape.Numel()})
	}
	slices.SortFunc(out, func(a, b GradientPlace) int { return a.At - b.At })
	return out
}

// Matrices lists the matrices of a bucket's vector: gradients of two or more dimensions, all but the first of which are columns.
func (p *Plan) Matrices(b Bucket) []compress.Matrix {
	var out []compress.Matrix
	for _, g := range p.GradientPlaces(b) {
		if m, ok := g.Matrix(); ok {
			out = append(out, m)
		}
	}
	return out
}

// Matrix is the gradient as a matrix, if it is one.
func (g GradientPlace) Matrix() (compress.Matrix, bool) {
	shape := g.Param.Whole.Shape
	if len(shape) < 2 || g.Size == 0 {
		return compress.Matrix{}, false
	}
	h := fnv.New64a()
	fmt.Fprintf(h, "%s\x00%d", g.Gradient.Param, g.Use)
	return compress.Matrix{At: g.At, Rows: shape[0], Cols: g.Size / shape[0], Key: h.Sum64()}, true
}

// Hosting says where the plan's rank is among hosts whose ranks add before anything is compressed.
func (s Settings) Hosting() comm.Hosting {
	return comm.Hosting{Rank: s.Rank, Ranks: s.World, Each: max(1, s.PerHost)}
}

// Compressing says what the plan's rank compresses of a bucket.
func (p *Plan) Compressing(b Bucket) comm.Compressing {
	h := p.Settings.Hosting()
	switch {
	case p.Settings.Compress.Kind == compress.PowerSGD:
		return h.Whole(b.Place.Shape.Numel())
	case b.Unit >= 0:
		return h.Scatter(p.Units[b.Unit].Chunks)
	}
	return h.Sum(b.Place.Shape.Numel())
}

// compression counts what a compressed gradient sends from this rank in a step, once the warm-up is over, and the memory that
// it takes: what is not sent yet, and buffers.
func (s *Summary) compression(p *Plan) {
	s.compressed = p.Settings.Compress.String()
	s.CompressionBytes += p.coderBytes()
	lacking := int64(0) // a host's memory for sums to which this rank has nothing to add is shared by all buckets
	for _, b := range p.Buckets {
		if b.Buffers { // which travel as they are, a few numbers for each channel
			continue
		}
		at := p.Compressing(b)
		lacking = max(lacking, 4*int64(p.lacking()*at.Len()))
		if p.Settings.Compress.Kind == compress.PowerSGD {
			s.factors(p, b, at)
		} else {
			s.stream(p, b, at)
		}
		if p.Settings.PerHost > 1 { // whose ranks add as they do without compression
			for _, r := range p.sums() {
				s.stage(r.red, p.Settings.Rank, comm.Chunks(b.Place.Shape.Numel(), p.Settings.World, comm.ChunkAlign))
			}
		}
	}
	s.CompressionBytes += lacking
}

// coderBytes is the memory that a foreign method computes in, for the largest chunk.
func (p *Plan) coderBytes() int64 {
	x, ok := p.Settings.Compress.External.(interface{ CoderBytes(elements int) int64 })
	if !ok || p.Settings.World == 1 {
		return 0
	}
	most := 0
	for _, b := range p.Buckets {
		if b.Buffers {
			continue
		}
		for _, k := range p.Compressing(b).Chunks {
			most = max(most, k.Len())
		}
	}
	return x.CoderBytes(most)
}

// compressedSum is one sum that a step makes of each bucket: of all lanes, or of those of a round that are one subtree.
type compressedSum struct {
	red   *comm.Reduction
	nodes int // what this rank adds to it
	host  int // what its host does: subtrees
}

// sums lists them.
func (p *Plan) sums() []compressedSum {
	reds := []*comm.Reduction{p.Reduction}
	if p.Rounds != nil {
		reds = nil
		for _, r := range p.Rounds {
			for _, sum := range r.Sums {
				reds = append(reds, sum.Reduction)
			}
		}
	}
	var out []compressedSum
	h := p.Settings.Hosting()
	first := h.Host() * h.Each
	for _, red := range reds {
		lo, hi := red.Assigned(first).Lo, red.Assigned(first+h.Each-1).Hi
		out = append(out, compressedSum{red, len(red.Nodes(h.Rank)), len(comm.MaximalSubtrees(red.Lanes(), lo, hi))})
	}
	return out
}

// lacking is to how many subtrees of its host's lanes a rank has nothing to add, at most.
func (p *Plan) lacking() int {
	most := 0
	h := p.Settings.Hosting()
	first := h.Host() * h.Each
	for _, sum := range p.sums() {
		if h.Each == 1 {
			break
		}
		own, n := sum.red.Assigned(h.Rank), 0
		for _, t := range comm.MaximalSubtrees(sum.red.Lanes(), sum.red.Assigned(first).Lo, sum.red.Assigned(first+h.Each-1).Hi) {
			if own.Hi <= t.Lo || t.Hi <= own.Lo || own.Len() == 0 {
				n++
			}
		}
		most = max(most, n)
	}
	return most
}

// factors counts a bucket under PowerSGD.
func (s *Summary) factors(p *Plan, b Bucket, at comm.Compressing) {
	world, n := p.Settings.World, b.Place.Shape.Numel()
	c, h := p.Settings.Compress, p.Settings.Hosting()
	z := c.Payload(n, p.Matrices(b))
	s.UnsentBytes += z.State
	s.CompressionBytes += c.Kept(z.State) + z.Buffers
	if world == 1 {
		return
	}
	if h.Each == 1 {
		s.CompressionBytes += 8 * int64(z.Most) // parts of other ranks, and sums of them
	}
	part := func(n int) int { return comm.Chunks(n, h.Each, comm.ChunkAlign)[h.Place()].Len() }
	for _, n := range []int{z.First, z.Second} {
		n = part(n)
		own := comm.Chunks(n, h.Hosts(), comm.ChunkAlign)[h.Host()].Len()
		s.SentBytes += 4 * int64(n-own+(h.Hosts()-1)*own)
		s.insideBytes += 4 * int64((h.Each-1)*n)
	}
	own := comm.Chunks(part(n), h.Hosts(), comm.ChunkAlign)[h.Host()].Len()
	for _, sum := range p.sums() {
		s.insideBytes += 4 * int64(sum.nodes*(n-part(n))+sum.host*(h.Each-1)*part(n))
		s.denseBytes += 4 * int64(sum.host*(part(n)-own)+(h.Hosts()-1)*own)
	}
}

// stream counts a bucket under the other methods.
func (s *Summary) stream(p *Plan, b Bucket, at comm.Compressing) {
	c, h := p.Settings.Compress, p.Settings.Hosting()
	n := b.Place.Shape.Numel()
	own, owned := at.Chunk.Len(), 0
	if p.Settings.World == 1 {
		s.UnsentBytes += c.StateBytes(n, 0)
		s.CompressionBytes += c.Kept(c.StateBytes(n, 0))
		return
	}
	if b.Unit < 0 {
		owned = own
		s.SentBytes += int64(at.Contributors-1) * int64(c.Size(owned, c.Warmup))
		s.denseBytes += 4 * int64((at.Contributors-1)*owned)
		s.insideBytes += 4 * int64((h.Each-1)*at.Len())
	}
	sent, in, out := 0, at.Contributors*c.MaxSize(own), 0
	for m, k := range at.Chunks {
		if m != at.Contributor {
			sent += c.Size(k.Len(), c.Warmup)
		}
		out += c.MaxSize(k.Len())
	}
	if owned > 0 {
		in = max(in, out)
	}
	s.UnsentBytes += c.StateBytes(at.Len(), owned)
	s.CompressionBytes += c.Kept(c.StateBytes(at.Len(), owned)) + int64(in+out) + 4*int64(depth(at.Contributors)*own)
	for _, sum := range p.sums() {
		if sum.host > 0 {
			s.SentBytes += int64(sent)
		}
		s.denseBytes += 4 * int64(sum.host*(at.Len()-own))
		s.insideBytes += 4 * int64(sum.nodes*(n-at.Len()))
	}
}

// depth is how many sums are unfinished at once in a tree over n.
func depth(n int) int {
	d := 0
	for ; 1<<d < n; d++ {
	}
	return d
}

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

// compression counts what a compressed gradient sends from this rank in a step, once the warm-up is over, and the memory that
// it takes: what is not sent yet, and buffers. Between several hosts it is less of both.
func (s *Summary) compression(p *Plan) {
	s.compressed = p.Settings.Compress.String()
	s.CompressionBytes += p.coderBytes()
	for _, b := range p.Buckets {
		switch {
		case b.Buffers: // which travel as they are, a few numbers for each channel
		case p.Settings.Compress.Kind == compress.PowerSGD:
			s.factors(p, b)
		default:
			s.stream(p, b)
		}
	}
}

// coderBytes is the memory that a foreign method computes in, for the largest chunk.
func (p *Plan) coderBytes() int64 {
	x, ok := p.Settings.Compress.External.(interface{ CoderBytes(elements int) int64 })
	if !ok || p.Settings.World == 1 {
		return 0
	}
	most := 0
	for _, b := range p.Buckets {
		switch {
		case b.Buffers:
		case b.Unit >= 0:
			for _, k := range p.Units[b.Unit].Chunks {
				most = max(most, k.Len())
			}
		default:
			most = max(most, comm.Chunks(b.Place.Shape.Numel(), p.Settings.World, comm.ChunkAlign)[0].Len())
		}
	}
	return x.CoderBytes(most)
}

// factors counts a bucket under PowerSGD.
func (s *Summary) factors(p *Plan, b Bucket) {
	world, rank := p.Settings.World, p.Settings.Rank
	c := p.Settings.Compress
	first, second, state := c.Payload(b.Place.Shape.Numel(), p.Matrices(b))
	s.UnsentBytes += state
	s.CompressionBytes += c.Kept(state) + 4*int64(max(first, second))
	if world == 1 {
		return
	}
	most := max(first, second)
	if c.Warmup > 0 {
		most = b.Place.Shape.Numel()
	}
	s.CompressionBytes += 8 * int64(most) // parts of other ranks, and sums of them
	for _, n := range []int{first, second} {
		own := comm.Chunks(n, world, comm.ChunkAlign)[rank].Len()
		s.SentBytes += 4 * int64(n-own+(world-1)*own)
	}
}

// stream counts a bucket under the other methods.
func (s *Summary) stream(p *Plan, b Bucket) {
	world, rank := p.Settings.World, p.Settings.Rank
	c := p.Settings.Compress
	n := b.Place.Shape.Numel()
	chunks, owned := comm.Chunks(n, world, comm.ChunkAlign), 0
	switch {
	case world == 1:
		s.UnsentBytes += c.StateBytes(n, 0)
		s.CompressionBytes += c.Kept(c.StateBytes(n, 0))
		return
	case b.Unit >= 0:
		chunks = p.Units[b.Unit].Chunks
	default:
		owned = chunks[rank].Len()
		s.SentBytes += int64(world-1) * int64(c.Size(owned, c.Warmup))
	}
	own := chunks[rank].Len()
	sent, in, out := 0, world*c.MaxSize(own), 0
	for m, k := range chunks {
		if m != rank {
			sent += c.Size(k.Len(), c.Warmup)
		}
		out += c.MaxSize(k.Len())
	}
	if owned > 0 {
		in = max(in, out)
	}
	s.UnsentBytes += c.StateBytes(n, owned)
	s.CompressionBytes += c.Kept(c.StateBytes(n, owned)) + int64(in+out) + 4*int64(depth(world)*own)
	if p.Rounds == nil {
		s.SentBytes += int64(sent)
	}
	for _, r := range p.Rounds {
		if r.Lanes.Lo+rank < r.Lanes.Hi {
			s.SentBytes += int64(sent)
		}
	}
}

// depth is how many sums are unfinished at once in a tree over n.
func depth(n int) int {
	d := 0
	for ; 1<<d < n; d++ {
	}
	return d
}

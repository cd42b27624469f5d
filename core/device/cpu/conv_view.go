package cpu

import (
	"starling/core/graph"
	"starling/sdk/vec"
)

// conv is a convolution's geometry.
type conv struct {
	graph.ConvAttrs
	N, C, O            int // images, channels of a group, outputs of a group
	imageH, imageW     int
	KH, KW, OH, OW     int
	window             int // C*KH*KW
	image, plane, area int // elements of an image of all groups, of an input plane, of an output plane
	outputs            int // elements of a result's image of all groups
}

func newConv(a graph.ConvAttrs, x, w, y []int) *conv {
	g := &conv{
		ConvAttrs: a, N: x[0], C: w[1], O: w[0] / a.Groups, imageH: x[2], imageW: x[3],
		KH: w[2], KW: w[3], OH: y[2], OW: y[3],
	}
	g.window = g.C * g.KH * g.KW
	g.plane, g.area = g.imageH*g.imageW, g.OH*g.OW
	g.image, g.outputs = g.C*a.Groups*g.plane, w[0]*g.area
	return g
}

// view is what the pixels of a grid see of a source's planes through the places of a window. A step down or across the grid is a step
// down or across the source: where a convolution strides, the source's planes are split by the stride's phases first.
type view struct {
	h, w, pitch int // the grid; from one row of the source to the next
	places      []place
}

// place shows grid position (0, 0) element (row, col) of a plane of h by w, which begins so many elements after a channel's.
type place struct{ at, row, col, h, w int }

// shown is a piece of 16 columns, of an image of a block of them.
type shown struct {
	vec.Piece
	image, at int // at: where the piece's own elements begin, from the block's first image's
}

// units cuts the pixels of a block of images, whose elements lie so far apart, into pieces: 16 columns each.
func (v *view) units(images, image int) [][]shown {
	area := v.h * v.w
	units := make([][]shown, blocks(images*area, vec.PieceWidth))
	shifts := make([]int, len(v.places))
	for t, p := range v.places {
		shifts[t] = p.at + p.row*v.pitch + p.col
	}
	for u := range units {
		p0, p1 := span(u, vec.PieceWidth, images*area)
		for p := p0; p < p1; {
			n, row, col := p/area, p%area/v.w, p%v.w
			end := min((n+1)*area, p1) // rows follow each other without a gap
			if v.pitch != v.w {
				end = min(p+v.w-col, p1)
			}
			masks := make([]uint32, len(v.places))
			for t, place := range v.places {
				for q := p; q < end; q++ {
					h, w := q%area/v.w+place.row, q%v.w+place.col
					if h >= 0 && h < place.h && w >= 0 && w < place.w {
						masks[t] |= 1 << (q - p0)
					}
				}
			}
			units[u] = append(units[u], shown{vec.NewPiece(shifts, masks), n, n*image + row*v.pitch + col - (p - p0)})
			p = end
		}
	}
	return units
}

// pixels is how the pixels of a grid are cut into blocks: parts of one image, in whole units, or whole images.
type pixels struct {
	images, strip int // of a block, at most
	strips        int // of an image
	blocks        int
	most          int // pixels of a block, at most
}

func cutPixels(images, area, most int) pixels {
	p := pixels{images: 1, strip: area}
	if area > most {
		p.strip = min(evenly(area, most, 2*vec.PieceWidth), area)
	} else {
		p.images = min(images, most/area)
	}
	p.strips = blocks(area, p.strip)
	p.blocks = blocks(images, p.images) * p.strips
	p.most = p.images * p.strip
	return p
}

// block is the images of block i of so many, and the pixels of each that are in it.
func (p pixels) block(i, images, area int) (n0, n1, p0, p1 int) {
	n0, n1 = span(i/p.strips, p.images, images)
	p0, p1 = span(i%p.strips, p.strip, area)
	return n0, n1, p0, p1
}

// planes is a source that pieces are read from: x itself, or a copy in which a channel's planes are split by phases.
type planes struct {
	*conv
	view
	phases   []phase
	above    int // the rows of a phase that the first place sees before the pixel's own, as a negative number
	below    int // and the last place after it
	rows     int // of a phase in a copy
	channels int // of a copy
	units    [][]shown
}

type phase struct{ row, col int }

// floorDiv is a/b rounded down.
func floorDiv(a, b int) int {
	if a < 0 {
		return -blocks(-a, b)
	}
	return a / b
}

// sees makes the view of output pixels on the input, read so many channels at a time, in blocks cut so.
func (g *conv) sees(at pixels, channels int) *planes {
	s := &planes{conv: g, channels: channels}
	s.h, s.w, s.pitch = g.OH, g.OW, blocks(g.imageW, g.StrideW)
	for kh := range g.KH {
		for kw := range g.KW {
			h, w := kh*g.DilationH-g.PadH, kw*g.DilationW-g.PadW
			p := place{row: floorDiv(h, g.StrideH), col: floorDiv(w, g.StrideW)}
			of := phase{h - p.row*g.StrideH, w - p.col*g.StrideW}
			p.h, p.w = blocks(g.imageH-of.row, g.StrideH), blocks(g.imageW-of.col, g.StrideW)
			s.above, s.below = min(s.above, p.row), max(s.below, p.row)
			slot := 0
			for slot < len(s.phases) && s.phases[slot] != of {
				slot++
			}
			if slot == len(s.phases) {
				s.phases = append(s.phases, of)
			}
			p.at = slot
			s.places = append(s.places, p)
		}
	}
	s.rows = blocks(g.imageH, g.StrideH)
	if at.strips > 1 {
		s.rows = min(s.rows, blocks(at.strip, g.OW)+1+s.below-s.above)
	}
	image := g.image
	if s.copies() {
		image = channels * len(s.phases) * s.rows * s.pitch
	}
	for t := range s.places {
		s.places[t].at *= s.rows * s.pitch
	}
	s.units = s.view.units(at.images, image)
	return s
}

// copies reports whether phases have to be split.
func (s *planes) copies() bool { return s.StrideH > 1 || s.StrideW > 1 }

// floats is the room that a copy takes for so many images.
func (s *planes) floats(images int) int {
	if !s.copies() {
		return 0
	}
	return images * s.channels * len(s.phases) * s.rows * s.pitch
}

// source is where to find channels c0 to c1 of a group of images n0 to n1, as far as output pixels p0 to p1 need them. Where they have
// to be split, that is done now, into room.
func (s *planes) source(room, x []float32, group, n0, n1, c0, c1, p0, p1 int) vec.Source {
	first := n0*s.image + (group*s.C+c0)*s.plane
	if !s.copies() {
		return vec.Source{Data: x, At: first, Plane: s.plane}
	}
	size := s.rows * s.pitch // of a phase
	q0 := max(0, p0/s.OW+s.above)
	q1 := min(blocks(s.imageH, s.StrideH), (p1-1)/s.OW+1+s.below)
	for n := range n1 - n0 {
		for c := range c1 - c0 {
			plane := x[first+n*s.image+c*s.plane:][:s.plane]
			for slot, of := range s.phases {
				to := room[((n*s.channels+c)*len(s.phases)+slot)*size:][:size]
				for q := q0; q < q1 && q*s.StrideH+of.row < s.imageH; q++ {
					every(to[(q-q0)*s.pitch:][:s.pitch], plane[(q*s.StrideH+of.row)*s.imageW:][:s.imageW], of.col, s.StrideW)
				}
			}
		}
	}
	return vec.Source{Data: room, At: -q0 * s.pitch, Plane: len(s.phases) * size}
}

// every copies each stride-th element from the first on.
func every(to, from []float32, first, stride int) {
	if stride == 1 {
		copy(to, from)
		return
	}
	for i := range to {
		if first >= len(from) {
			return
		}
		to[i] = from[first]
		first += stride
	}
}

// eachPiece calls f for the pieces that units show; those of images from last on are absent.
func eachPiece(units [][]shown, from vec.Source, last int, f func(unit int, p *vec.Piece, from vec.Source, over bool)) {
	at := from.At
	for u, pieces := range units {
		for i := range pieces {
			if piece := &pieces[i]; piece.image < last {
				from.At = at + piece.at
				f(u, &piece.Piece, from, i > 0)
			}
		}
	}
}

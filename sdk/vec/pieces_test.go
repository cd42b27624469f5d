//go:build linux

package vec

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// windows is a matrix of windows by its definition: what row (plane, place) shows of column l.
type windows struct {
	shifts []int
	masks  []uint32
	plane  int
	planes int
}

// newWindows draws places whose shown elements lie in planes of size elements.
func newWindows(r *rand.Rand, planes, places, size int) windows {
	w := windows{plane: size, planes: planes}
	for range places {
		s := r.IntN(size+PieceWidth) - PieceWidth
		mask := uint32(0)
		for l := range PieceWidth {
			if s+l >= 0 && s+l < size && r.IntN(4) > 0 {
				mask |= 1 << l
			}
		}
		w.shifts, w.masks = append(w.shifts, s), append(w.masks, mask)
	}
	return w
}

func (w *windows) at(src []float32, row, col int) (v float32, shown bool) {
	t := row % len(w.shifts)
	if w.masks[t]>>col&1 == 0 {
		return 0, false
	}
	return src[row/len(w.shifts)*w.plane+w.shifts[t]+col], true
}

func TestPackPiece(t *testing.T) {
	const sentinel = 12345
	in, out := newGuarded(t), newGuarded(t)
	r := rand.New(rand.NewPCG(31, 32))
	eachSet(t, func(t *testing.T) {
		for i := range 400 {
			w := newWindows(r, 1+r.IntN(5), 1+r.IntN(10), 1+r.IntN(40))
			rows := w.planes * len(w.shifts)
			r0 := r.IntN(rows)
			r1 := r0 + 1 + r.IntN(rows-r0)
			ld := PieceWidth + r.IntN(9)
			cut := guarded.end
			if i&1 != 0 {
				cut = guarded.start
			}
			over := i&2 != 0
			src, dst := cut(in, w.planes*w.plane), cut(out, (r1-r0-1)*ld+PieceWidth)
			fillWith(r, "normal", src)
			Fill(dst, sentinel)
			p := NewPiece(w.shifts, w.masks)
			if faults(func() { PackPiece(dst, ld, &p, Source{Data: src, Plane: w.plane}, r0, r1, over) }) {
				t.Fatalf("rows [%d, %d) of %d planes of %d, shifts %v, masks %b: memory outside touched", r0, r1, w.planes, w.plane, w.shifts, w.masks)
			}
			for j, got := range dst {
				row, col := r0+j/ld, j%ld
				want := float32(sentinel)
				if col < PieceWidth {
					v, shown := w.at(src, row, col)
					if shown || !over {
						want = v
					}
				}
				if !sameBits(got, want) {
					t.Fatalf("row %d, column %d: %v, want %v (over %v)", row, col, got, want, over)
				}
			}
		}
	})
}

// A product with windows that were packed in pieces has the bits of the same product with the matrix of windows.
func TestGemmOfPieces(t *testing.T) {
	r := rand.New(rand.NewPCG(33, 34))
	eachSet(t, func(t *testing.T) {
		for i := range 60 {
			w := newWindows(r, 1+r.IntN(20), 1+r.IntN(9), 1+r.IntN(40))
			m, n, k := 1+r.IntN(40), 1+r.IntN(90), w.planes*len(w.shifts)
			p := newProduct(r, m, n, k, i&1 != 0, false, i&2 != 0)
			p.Packed = make([]float32, GemmPacked(&p.GemmArgs))
			fillWith(r, "normal", p.Packed)
			p.B, p.LDB = make([]float32, k*n), n
			src := make([]float32, w.planes*w.plane)
			fillWith(r, "normal", src)
			whole := NewPiece(w.shifts, w.masks)
			var halves [2]Piece // of the same columns: the second lies over the first
			for h := range halves {
				masks := slices.Clone(w.masks)
				for t := range masks {
					masks[t] &= []uint32{0x5a5a, 0xa5a5}[h]
				}
				halves[h] = NewPiece(w.shifts, masks)
			}
			for u := 0; u*PieceWidth < n; u++ {
				from := Source{Data: src, Plane: w.plane}
				if u&1 == 0 {
					GemmPackPiece(&p.GemmArgs, u, 0, &whole, from, 0, k, false)
				} else {
					GemmPackPiece(&p.GemmArgs, u, 0, &halves[0], from, 0, k, false)
					GemmPackPiece(&p.GemmArgs, u, 0, &halves[1], from, 0, k, true)
				}
			}
			for row := range k {
				for col := range n {
					p.B[row*n+col], _ = w.at(src, row, col%PieceWidth)
				}
			}
			q := p.GemmArgs
			q.Packed, q.C = nil, slices.Clone(p.C)
			scratch := make([]float32, GemmScratch(&q))
			Gemm(&q, 0, m, 0, n, scratch)
			p.B = nil
			Gemm(&p.GemmArgs, 0, m, 0, n, scratch)
			for j := range q.C {
				if !sameBits(p.C[j], q.C[j]) {
					t.Fatalf("%dx%dx%d: element %d is %v, want %v", m, n, k, j, p.C[j], q.C[j])
				}
			}
		}
	})
}

// What would be read or written outside is refused.
func TestPackPieceRefuses(t *testing.T) {
	p := NewPiece([]int{-1, 3}, []uint32{2, 1})
	src, dst := make([]float32, 14), make([]float32, 3*PieceWidth+PieceWidth)
	PackPiece(dst, PieceWidth, &p, Source{Data: src, Plane: 10}, 0, 4, false)
	for name, f := range map[string]func(){
		"a source too short":          func() { PackPiece(dst, PieceWidth, &p, Source{Data: src[:13], Plane: 10}, 0, 4, false) },
		"a source that begins later":  func() { PackPiece(dst, PieceWidth, &p, Source{Data: src, At: -1, Plane: 10}, 0, 4, false) },
		"a destination too short":     func() { PackPiece(dst[1:], PieceWidth, &p, Source{Data: src, Plane: 10}, 0, 4, false) },
		"rows closer than a piece":    func() { PackPiece(dst, PieceWidth-1, &p, Source{Data: src, Plane: 10}, 0, 2, false) },
		"a column past the 16th":      func() { NewPiece([]int{0}, []uint32{1 << 16}) },
		"as many masks as shifts not": func() { NewPiece([]int{0}, nil) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: accepted", name)
				}
			}()
			f()
		}()
	}
}

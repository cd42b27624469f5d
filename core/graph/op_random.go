package graph

import (
	"fmt"

	"starling/core/tensor"
)

// OpDropout zeroes elements at random.
var OpDropout = register(Op{
	Name: "dropout",
	Doc: "(x, rng u32[4]) -> y of x's shape: each element is dropped with probability P, else multiplied by float32(1/(1-P)). rng is seed lo, " +
		"seed hi, step, micro-batch. Element i is kept where word i%4 of Philox4x32-10 with key (lo Key ^ seed lo, hi Key ^ seed hi) and " +
		"counter (lo i/4, hi i/4, step, micro-batch) is at least floor(P * 2^32). Its own gradient: dropout(dy, rng)",
	InPlace: true,
	Grad:    gradDropout,
	Ref:     refDropout,
	Infer: func(in []*Value, attrs any) ([]Type, error) {
		a, err := attrsAs[DropoutAttrs](attrs)
		if err := all(err, arity(in, "x", "rng")); err != nil {
			return nil, err
		}
		if !(a.P >= 0 && a.P < 1) {
			return nil, fmt.Errorf("the probability %v is not in [0, 1)", a.P)
		}
		err = all(floats(in[0]), ofDType("rng", in[1], tensor.U32), ofShape("rng", in[1], 4))
		return []Type{in[0].Type}, err
	},
})

// DropoutStream is the random part of a dropout: the key and the last two words of the counter, and the threshold
// below which a word drops its element.
type DropoutStream struct {
	Key       [2]uint32
	Tail      [2]uint32 // step, micro-batch
	Threshold uint64    // floor(P * 2^32)
	Scale     float32   // of kept elements
}

// Stream joins the draw's own key with the state of the run: rng is seed lo, seed hi, step, micro-batch.
func (a DropoutAttrs) Stream(rng [4]uint32) DropoutStream {
	return DropoutStream{
		Key:       [2]uint32{uint32(a.Key) ^ rng[0], uint32(a.Key>>32) ^ rng[1]},
		Tail:      [2]uint32{rng[2], rng[3]},
		Threshold: uint64(a.P * (1 << 32)),
		Scale:     float32(1 / (1 - a.P)),
	}
}

// Words returns the random words of elements 4*block to 4*block+3.
func (s DropoutStream) Words(block uint64) [4]uint32 {
	return Philox(s.Key, [4]uint32{uint32(block), uint32(block >> 32), s.Tail[0], s.Tail[1]})
}

// DropoutKey is the key of a block's ordinal-th draw, for DropoutAttrs.
func DropoutKey(block string, ordinal int) uint64 {
	return HashName(fmt.Sprintf("%s#%d", block, ordinal))
}

func gradDropout(b *Builder, n *Node, dout []*Value) []*Value {
	return []*Value{b.do("dropout", n.Attrs, dout[0], n.In[1]), nil}
}

func refDropout(n *Node, in []*Array) []*Array {
	y := NewArray(n.Out[0].Type)
	var rng [4]uint32
	for i, v := range in[1].Data {
		rng[i] = uint32(v)
	}
	s := n.Attrs.(DropoutAttrs).Stream(rng)
	var words [4]uint32
	for i, x := range in[0].Data {
		if i%4 == 0 {
			words = s.Words(uint64(i / 4))
		}
		if uint64(words[i%4]) >= s.Threshold {
			y.Data[i] = x * float64(s.Scale)
		}
	}
	return []*Array{y}
}

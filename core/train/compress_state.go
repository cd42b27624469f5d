package train

import (
	"fmt"

	"starling/core/checkpoint"
	"starling/core/comm"
	"starling/core/plan"
	"starling/core/tensor"
	"starling/sdk/vec"
)

// piece is state of some elements of a gradient: of from … on of the parameter.
type piece struct {
	grad plan.GradientPlace
	from int
	data []float32
}

// pieces cuts state of parts of a bucket's vector, one behind the other, by gradient. No state has no pieces.
func (k *lossyBucket) pieces(state []float32, parts ...comm.Range) []piece {
	var out []piece
	for _, part := range parts {
		if len(state) == 0 {
			break
		}
		for _, g := range k.grads {
			lo, hi := max(g.At, part.Lo), min(g.At+g.Size, part.Hi)
			if lo < hi {
				out = append(out, piece{g, lo - g.At, state[lo-part.Lo : hi-part.Lo]})
			}
		}
		state = state[part.Len():]
	}
	return out
}

// rest cuts all that this rank's contributor has not sent, and kept the part of it that this rank stores.
func (k *lossyBucket) rest() []piece { return k.pieces(k.state.Rest(), k.at.Parts...) }

func (k *lossyBucket) kept() []piece {
	if k.factor == nil {
		return k.rest()
	}
	return k.pieces(k.state.Rest()[k.stored.Lo:k.stored.Hi], k.stored) // of the whole vector
}

func (k *lossyBucket) momentum() []piece { return k.pieces(k.stream.Momentum(), k.at.Parts...) }

// owned cuts what was not returned of the sum of this rank's chunk.
func (k *lossyBucket) owned() []piece { return k.pieces(k.stream.Owned(), k.at.Chunk) }

// name is that of a piece's tensor in checkpoints; of is a contributor, or "sum".
func (p piece) name(kind string, of any) string {
	s := fmt.Sprintf("%s/%s.%v", p.grad.Gradient.Param, kind, of)
	if p.grad.Use > 0 {
		s += fmt.Sprintf(".use%d", p.grad.Use)
	}
	return s
}

// The kinds of state in a checkpoint, each with the number of the contributor whose it is: a rank, or a host where several sum first.
const (
	keptResidual = "residual"
	keptMomentum = "dgc_momentum"
	keptFactor   = "powersgd.q"
)

// tensors lists this rank's state for a checkpoint.
func (z *compression) tensors() []checkpoint.Tensor {
	if z == nil {
		return nil
	}
	var out []checkpoint.Tensor
	add := func(p piece, kind string, of any) {
		out = append(out, checkpoint.Tensor{Name: p.name(kind, of), DType: checkpoint.F32, Shape: p.grad.Param.Whole.Shape, Offset: int64(p.from), Data: tensor.Bytes(p.data)})
	}
	for i := range z.buckets {
		k := &z.buckets[i]
		for _, p := range k.kept() {
			add(p, keptResidual, k.at.Contributor)
		}
		if k.factor != nil {
			for _, q := range k.matrices() {
				if z.env.Rank == 0 {
					out = append(out, checkpoint.Tensor{Name: q.name(keptFactor, "sum"), DType: checkpoint.F32, Shape: []int{len(q.data)}, Data: tensor.Bytes(q.data)})
				}
			}
			continue
		}
		for _, p := range k.momentum() {
			add(p, keptMomentum, k.at.Contributor)
		}
		for _, p := range k.owned() {
			add(p, keptResidual, "sum")
		}
	}
	return out
}

// matrices lists the factors of a bucket's matrices.
func (k *lossyBucket) matrices() []piece {
	var out []piece
	for _, g := range k.grads {
		if m, ok := g.Matrix(); ok {
			if q := k.factor.Q(m); q != nil {
				out = append(out, piece{grad: g, data: q})
			}
		}
	}
	return out
}

// load reads this rank's state from a checkpoint. Where it is of as many contributors each gets its own again; otherwise what
// they had is shared out, so that nothing of it is lost.
func (z *compression) load(c *checkpoint.Checkpoint) error {
	if z == nil {
		return nil
	}
	for i := range z.buckets {
		k := &z.buckets[i]
		for _, p := range k.rest() {
			if err := k.loadShared(c, p, keptResidual); err != nil {
				return err
			}
		}
		if k.factor != nil {
			for _, q := range k.matrices() {
				if err := q.read(c, q.name(keptFactor, "sum"), false); err != nil {
					return err
				}
			}
			continue
		}
		for _, p := range k.momentum() {
			if err := k.loadShared(c, p, keptMomentum); err != nil {
				return err
			}
		}
		owned := k.owned()
		alone := z.env.World == 1 || k.bucket.Unit >= 0 // nobody returns sums now
		if alone && k.at.Contributor == 0 {
			owned = k.rest()
		}
		for _, p := range owned {
			if name := p.name(keptResidual, "sum"); holdsTensor(c, name) {
				if err := p.read(c, name, alone); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func holdsTensor(c *checkpoint.Checkpoint, name string) bool {
	_, ok := c.Lookup(name)
	return ok
}

// loadShared reads a piece, which is the sum of what the checkpoint has of the contributors whose state this one takes over.
func (k *lossyBucket) loadShared(c *checkpoint.Checkpoint, p piece, kind string) error {
	for of, taken := 0, false; ; of++ {
		name := p.name(kind, of)
		if !holdsTensor(c, name) {
			return nil
		}
		if of%k.at.Contributors == k.at.Contributor {
			if err := p.read(c, name, taken); err != nil {
				return err
			}
			taken = true
		}
	}
}

// read reads a piece's elements from a tensor, or adds them.
func (p piece) read(c *checkpoint.Checkpoint, name string, add bool) error {
	if !add {
		return c.ReadRange(name, int64(p.from), tensor.Bytes(p.data))
	}
	v := make([]float32, len(p.data))
	if err := c.ReadRange(name, int64(p.from), tensor.Bytes(v)); err != nil {
		return err
	}
	vec.AddTo(p.data, v)
	return nil
}

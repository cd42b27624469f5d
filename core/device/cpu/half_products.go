package cpu

import (
	"starling/core/device"
	"starling/core/tensor"
	"starling/sdk/vec"
)

// Products of bfloat16 matrices: sums in float32, in the class of arithmetic that vec.BF16Class names, and one rounding of
// the result where it is bfloat16 too.
var halfProductKernels = []kernel{
	{"linear", "bf16 bf16", halfLinear}, {"linear", "bf16 bf16 bf16", halfLinear},
	{"linear_grad_x", "bf16 bf16", halfLinearGradX},
	{"linear_grad_w_wide", "bf16 bf16", halfLinearGradW},
	{"linear_grad_w_wide", "f32 f32", linearGradW},
	{"linear_grad_b", "bf16", halfLinearGradB},
}

// bf16 is a tensor's elements as bit patterns.
func bf16(t device.Tensor) []uint16 { return tensor.View[uint16](t.Bytes()) }

func halfLinear(d *Device, c device.Call) (func(), error) {
	out, in := c.In[1].Shape[0], c.In[1].Shape[1]
	x := bf16(c.In[0])
	g := vec.GemmBF16Args{M: len(x) / in, N: out, K: in, A: x, LDA: in, B: bf16(c.In[1]), LDB: in, TransB: true}
	var bias []uint16
	if len(c.In) == 3 {
		bias = bf16(c.In[2])
	}
	return d.halfProduct(g, c.Out[0], bias)
}

func halfLinearGradX(d *Device, c device.Call) (func(), error) {
	out, in := c.In[1].Shape[0], c.In[1].Shape[1]
	dy := bf16(c.In[0])
	return d.halfProduct(vec.GemmBF16Args{M: len(dy) / out, N: in, K: out, A: dy, LDA: out, B: bf16(c.In[1]), LDB: in}, c.Out[0], nil)
}

func halfLinearGradW(d *Device, c device.Call) (func(), error) {
	out, in := lastOf(c.In[0]), lastOf(c.In[1])
	x := bf16(c.In[1])
	return d.halfProduct(vec.GemmBF16Args{
		M: out, N: in, K: len(x) / in, A: bf16(c.In[0]), LDA: out, TransA: true, B: x, LDB: in, Accumulate: c.Accum,
	}, c.Out[0], nil)
}

// packedHalfMost bounds what is packed of the right operand at once, in float32 elements.
const packedHalfMost = 8 << 20

// halfProduct makes the kernel of g, whose result is y: float32, or bfloat16 with an offset for each column. The columns are cut
// into strips, each a product of its own; as many strips as packedHalfMost allows are packed and multiplied at a time.
// Sums are rounded a panel at a time, where the first-level cache has them.
func (d *Device) halfProduct(g vec.GemmBF16Args, y device.Tensor, bias []uint16) (func(), error) {
	cut := cutProduct(g.M, g.N, g.K)
	strips := make([]vec.GemmBF16Args, cut.cols)
	for s := range strips {
		j0, j1 := span(s, cut.nb, g.N)
		p := g
		p.N = j1 - j0
		if g.TransB {
			p.B = g.B[j0*g.LDB:]
		} else {
			p.B = g.B[j0:]
		}
		if y.DType == tensor.F32 {
			p.C, p.LDC = f32(y)[j0:], g.N
		} else {
			p.Out, p.LDO = bf16(y)[j0:], g.N
		}
		strips[s] = p
	}
	size := vec.GemmBF16Packed(&strips[0]) // the first is the widest
	group := min(cut.cols, max(1, packedHalfMost/size))
	if group < cut.cols && group > 1 {
		group &^= 1 // so that two threads share it evenly
	}
	need, offsets := vec.GemmBF16Scratch(&strips[0]), 0
	if bias != nil {
		offsets = cut.nb
	}
	if err := d.reserve(padded(4*need)+padded(4*offsets), 4*size*group); err != nil {
		return nil, err
	}
	pieces := make([]vec.GemmBF16Args, d.pool.threads) // of a product with offsets, which lie in a thread's scratch memory
	var steps []func()
	for first := 0; first < cut.cols; first += group {
		part := strips[first:min(first+group, cut.cols)]
		deep := vec.GemmBF16PackSteps(&g)
		across := blocks(cut.nb, packWidth)
		high := blocks(g.K, deep)
		steps = append(steps, func() {
			s := d.sharedScratch()
			packed := s.floats(size * group)
			for i := range part {
				part[i].Packed = packed[i*size : (i+1)*size]
			}
		}, d.parallel(len(part)*high*across, func(_, t int) {
			p := &part[t/(high*across)]
			k0, k1 := span(t/across%high, deep, g.K)
			j0, j1 := span(t%across, packWidth, p.N)
			if j0 < p.N {
				packHalf(p, k0, k1, j0, j1)
			}
		}), d.parallel(cut.rows*len(part), func(thread, t int) {
			own := d.ownScratch(thread)
			scratch := own.floats(need)
			p := &part[t%len(part)]
			i0, i1 := span(t/len(part), cut.mb, g.M)
			if bias != nil {
				q := &pieces[thread]
				*q = *p
				j0 := (first + t%len(part)) * cut.nb
				q.Bias = own.floats(offsets)[:q.N]
				vec.BF16ToF32(q.Bias, bias[j0:j0+q.N])
				p = q
			}
			vec.GemmBF16(p, i0, i1, 0, p.N, scratch)
		}))
	}
	return sequence(steps...), nil
}

// packHalf packs a piece of a strip; its C is of no concern, and may not exist yet.
func packHalf(p *vec.GemmBF16Args, k0, k1, j0, j1 int) {
	q := *p
	q.M = 0
	vec.GemmBF16Pack(&q, k0, k1, j0, j1)
}

// halfLinearGradB adds rows in order, in float32; tasks own columns.
func halfLinearGradB(d *Device, c device.Call) (func(), error) {
	dy, db, n := bf16(c.In[0]), bf16(c.Out[0]), lastOf(c.In[0])
	rows := len(dy) / n
	width := max(64, (blocks(n, 4)+31)/32*32)
	if err := d.reserve(padded(4*width), 0); err != nil {
		return nil, err
	}
	return d.parallel(blocks(n, width), func(thread, t int) {
		lo, hi := span(t, width, n)
		own := d.ownScratch(thread)
		sum := own.floats(width)[:hi-lo]
		clear(sum)
		for r := range rows {
			vec.AddWide(sum, dy[r*n+lo:r*n+hi])
		}
		vec.F32ToBF16(db[lo:hi], sum)
	}), nil
}

package cpu

import (
	"bytes"
	"testing"

	"starling/core/graph"
	"starling/sdk/vec"
)

// A convolution of bfloat16 has the bits of its images alone, and of all sets of kernels whose products are chains of multiply-adds.
func TestHalfConvolutionOfImagesAlone(t *testing.T) {
	a := graph.ConvAttrs{StrideH: 1, StrideW: 1, PadH: 1, PadW: 1, DilationH: 1, DilationW: 1, Groups: 1}
	grad := a
	grad.H, grad.W = 6, 5
	const n, c, o = 7, 70, 33
	fma := map[string][]byte{}
	for _, set := range vec.Sets() {
		t.Run(set, func(t *testing.T) {
			defer use(t, set)()
			d := open(t, Config{Threads: 2})
			for _, s := range []sample{
				{op: "conv2d", attrs: a, in: []operand{hs(n, c, 6, 5), hs(o, c, 3, 3)}},
				{op: "conv2d_grad_x", attrs: grad, in: []operand{hs(n, o, 6, 5), hs(o, c, 3, 3)}},
			} {
				all := s.lay(t, d)
				run, err := d.Bind(all.call)
				if err != nil {
					t.Fatal(err)
				}
				run()
				y, x := all.call.Out[0].Bytes(), all.call.In[0].Bytes()
				if vec.BF16Class() == vec.BF16FMA {
					if first, ok := fma[s.op]; ok && !bytes.Equal(first, y) {
						t.Errorf("%s: other bits than another set's", s.op)
					}
					fma[s.op] = bytes.Clone(y)
				}
				for i := range n {
					one := s
					one.in = []operand{hs(1, s.in[0].shape[1], 6, 5), s.in[1]}
					b := one.lay(t, d)
					size := len(b.call.In[0].Bytes())
					copy(b.call.In[0].Bytes(), x[i*size:])
					copy(b.call.In[1].Bytes(), all.call.In[1].Bytes())
					if run, err = d.Bind(b.call); err != nil {
						t.Fatal(err)
					}
					run()
					got := b.call.Out[0].Bytes()
					if !bytes.Equal(got, y[i*len(got):][:len(got)]) {
						t.Errorf("%s: image %d has other bits alone", s.op, i)
					}
				}
			}
		})
	}
}

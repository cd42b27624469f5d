package devicetest

import (
	"math/rand/v2"

	"starling/core/graph"
)

func imageRows() map[string]row {
	return map[string]row{
		// Kernels may multiply the zeros of the padding, so a NaN in a weight or in dy may show where the window leaves the image.
		"conv2d":        {abs: product, nan: []int{0, 2}, cases: func(*rand.Rand) []testCase { return convolutions("y") }},
		"conv2d_grad_x": {abs: product, nan: []int{0}, cases: func(*rand.Rand) []testCase { return convolutions("x") }},
		"conv2d_grad_w": {abs: product, cases: func(*rand.Rand) []testCase { return convolutions("w") }},
		"conv2d_grad_w_wide": {abs: product, cases: func(*rand.Rand) []testCase {
			cs := convolutions("w")
			for _, c := range convolutions("w") {
				in := append([]operand(nil), c.in...)
				for i := range in {
					in[i].Type = bf16(in[i].Shape...)
				}
				cs = append(cs, testCase{attrs: c.attrs, in: in})
			}
			return cs
		}},
		"max_pool": {nan: []int{0}, cases: func(*rand.Rand) []testCase { return pools(normal, whole(-2, 3), times(-1, positive)) }},
		"avg_pool": {rel: units, abs: units, nan: []int{0}, cases: func(*rand.Rand) []testCase { return pools(normal) }},
		"avg_pool_grad": {rel: units, abs: units, nan: []int{0}, cases: func(*rand.Rand) []testCase {
			var cs []testCase
			for _, c := range pools(normal) {
				dy := reference(graph.OpAvgPool, c.attrs, graph.NewArray(c.in[0].Type))[0].Type
				cs = append(cs, testCase{attrs: over(c), in: []operand{{dy, normal}}})
			}
			return cs
		}},
		"max_pool_grad": {rel: units, abs: units, nan: []int{0}, cases: func(*rand.Rand) []testCase {
			var cs []testCase
			for _, c := range pools(normal, whole(-2, 3)) {
				out := reference(graph.OpMaxPool, c.attrs, graph.NewArray(c.in[0].Type))
				// The indices come from pooling an image drawn like the case's.
				derive := func(in []*graph.Array) {
					r, x := rand.New(rand.NewPCG(uint64(len(in[0].Data)), 1)), graph.NewArray(c.in[0].Type)
					for i := range x.Data {
						x.Data[i] = c.in[0].fill(r, i)
					}
					in[1] = reference(graph.OpMaxPool, c.attrs, x)[1]
				}
				cs = append(cs, testCase{attrs: over(c), in: []operand{{out[0].Type, normal}, {out[1].Type, normal}}, derive: derive})
			}
			return cs
		}},
	}
}

// convolutions gives the calls of a convolution (y) or of its gradient with respect to x or w.
func convolutions(want string) []testCase {
	var cs []testCase
	for _, z := range []struct {
		n, c, h, w, o, kh, kw int
		at                    graph.ConvAttrs
	}{
		{1, 1, 1, 1, 1, 1, 1, graph.ConvAttrs{StrideH: 1, StrideW: 1, DilationH: 1, DilationW: 1, Groups: 1}},
		{2, 3, 6, 7, 4, 3, 3, graph.ConvAttrs{StrideH: 1, StrideW: 1, DilationH: 1, DilationW: 1, Groups: 1}},
		{2, 4, 5, 4, 5, 1, 1, graph.ConvAttrs{StrideH: 1, StrideW: 1, DilationH: 1, DilationW: 1, Groups: 1}},
		{2, 3, 8, 7, 4, 3, 3, graph.ConvAttrs{StrideH: 2, StrideW: 2, PadH: 1, PadW: 1, DilationH: 1, DilationW: 1, Groups: 1}},
		{1, 2, 9, 8, 3, 3, 2, graph.ConvAttrs{StrideH: 3, StrideW: 2, PadH: 2, PadW: 1, DilationH: 1, DilationW: 1, Groups: 1}},
		{2, 2, 9, 9, 3, 3, 3, graph.ConvAttrs{StrideH: 1, StrideW: 1, PadH: 2, PadW: 1, DilationH: 2, DilationW: 3, Groups: 1}},
		{2, 4, 6, 6, 6, 3, 3, graph.ConvAttrs{StrideH: 1, StrideW: 1, PadH: 1, PadW: 1, DilationH: 1, DilationW: 1, Groups: 2}},
		{1, 4, 7, 7, 4, 3, 3, graph.ConvAttrs{StrideH: 2, StrideW: 2, PadH: 1, PadW: 1, DilationH: 1, DilationW: 1, Groups: 4}},
		{3, 8, 17, 19, 33, 3, 3, graph.ConvAttrs{StrideH: 1, StrideW: 1, PadH: 1, PadW: 1, DilationH: 1, DilationW: 1, Groups: 1}},
		{2, 1, 28, 28, 8, 5, 5, graph.ConvAttrs{StrideH: 1, StrideW: 1, DilationH: 1, DilationW: 1, Groups: 1}},
		{23, 2, 5, 5, 3, 3, 3, graph.ConvAttrs{StrideH: 1, StrideW: 1, PadH: 1, PadW: 1, DilationH: 1, DilationW: 1, Groups: 1}},
		{2, 3, 53, 41, 4, 3, 3, graph.ConvAttrs{StrideH: 2, StrideW: 2, PadH: 1, PadW: 1, DilationH: 1, DilationW: 1, Groups: 1}},
		{2, 47, 7, 16, 15, 3, 3, graph.ConvAttrs{StrideH: 1, StrideW: 1, PadH: 1, PadW: 1, DilationH: 1, DilationW: 1, Groups: 1}},
		{1, 2, 31, 29, 2, 20, 21, graph.ConvAttrs{StrideH: 1, StrideW: 2, PadH: 3, PadW: 4, DilationH: 1, DilationW: 1, Groups: 1}},
		{3, 2, 12, 12, 17, 4, 4, graph.ConvAttrs{StrideH: 4, StrideW: 4, DilationH: 1, DilationW: 1, Groups: 1}},
		{1, 2, 3, 3, 2, 3, 3, graph.ConvAttrs{StrideH: 5, StrideW: 5, PadH: 3, PadW: 3, DilationH: 1, DilationW: 1, Groups: 1}},
	} {
		x, w := f32(z.n, z.c, z.h, z.w), f32(z.o, z.c/z.at.Groups, z.kh, z.kw)
		dy := reference(graph.OpConv2D, z.at, graph.NewArray(x), graph.NewArray(w))[0].Type
		at := z.at
		switch want {
		case "y":
			in := []operand{{x, normal}, {w, normal}, {f32(z.o), normal}}
			cs = append(cs, testCase{attrs: at, in: in[:2]}, testCase{attrs: at, in: in})
		case "x":
			at.H, at.W = z.h, z.w
			cs = append(cs, testCase{attrs: at, in: []operand{{dy, normal}, {w, normal}}})
		case "w":
			at.H, at.W = z.kh, z.kw
			cs = append(cs, testCase{attrs: at, in: []operand{{dy, normal}, {x, normal}}})
		}
	}
	return cs
}

func pools(fills ...filler) []testCase {
	var cs []testCase
	for _, z := range []struct {
		x  []int
		at graph.PoolAttrs
	}{
		{[]int{1, 1, 1, 1}, graph.PoolAttrs{KH: 1, KW: 1, StrideH: 1, StrideW: 1}},
		{[]int{2, 3, 8, 6}, graph.PoolAttrs{KH: 2, KW: 2, StrideH: 2, StrideW: 2}},
		{[]int{2, 3, 7, 8}, graph.PoolAttrs{KH: 3, KW: 3, StrideH: 2, StrideW: 2, PadH: 1, PadW: 1}},
		{[]int{1, 2, 9, 5}, graph.PoolAttrs{KH: 2, KW: 3, StrideH: 1, StrideW: 2, PadH: 1, PadW: 0}},
		{[]int{1, 5, 7, 7}, graph.PoolAttrs{KH: 7, KW: 7, StrideH: 1, StrideW: 1}},
		{[]int{1, 1, 11, 10}, graph.PoolAttrs{KH: 2, KW: 2, StrideH: 3, StrideW: 4}},
		{[]int{3, 4, 33, 35}, graph.PoolAttrs{KH: 3, KW: 3, StrideH: 1, StrideW: 1, PadH: 1, PadW: 1}},
	} {
		for _, fill := range fills {
			cs = append(cs, testCase{attrs: z.at, in: []operand{{f32(z.x...), fill}}})
		}
	}
	return cs
}

// over is the case's attributes with the extent of its image, as the gradient needs them.
func over(c testCase) graph.PoolAttrs {
	at := c.attrs.(graph.PoolAttrs)
	at.H, at.W = c.in[0].Shape[2], c.in[0].Shape[3]
	return at
}

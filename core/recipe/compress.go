package recipe

import (
	"strings"

	"go.starlark.net/starlark"

	"starling/core/compress"
)

// compressDeclarations are the values of parallel.mesh(compress = …).
func compressDeclarations() []declaration {
	return []declaration{
		{"int8(block = 256)", "eight bits an element, with a scale for each block of elements: a quarter of the bytes", func(c *call) (starlark.Value, error) {
			z := compress.Config{Kind: compress.Int8}
			return c.newCompression(&z, &z.Block)
		}},
		{"bf16()", "rounded to bfloat16: half of the bytes", func(c *call) (starlark.Value, error) {
			return c.newCompression(&compress.Config{Kind: compress.BF16})
		}},
		{"topk(ratio = 0.01, warmup = 0)", "the elements of largest magnitude, ratio of them all; over the first warmup updates more are sent, a quarter at first. " +
			"Under adaptive optimizers it learns noticeably worse: see compress.dgc", func(c *call) (starlark.Value, error) {
			z := compress.Config{Kind: compress.TopK}
			return c.newCompression(&z, &z.Ratio, &z.Warmup)
		}},
		{"dgc(ratio = 0.01, warmup = 200, clip = 0.0)", "Deep Gradient Compression, for optim.sgd with momentum alone: the largest elements of a momentum that each rank keeps; clip bounds the norm of the gradient " +
			"before it enters the momentum, in place of clip_norm", func(c *call) (starlark.Value, error) {
			z := compress.Config{Kind: compress.DGC}
			return c.newCompression(&z, &z.Ratio, &z.Warmup, &z.Clip)
		}},
		{"powersgd(rank = 4, warmup = 0)", "PowerSGD: matrices as products of that rank; over the first warmup updates of 8 times, 4 times and twice that rank", func(c *call) (starlark.Value, error) {
			z := compress.Config{Kind: compress.PowerSGD}
			return c.newCompression(&z, &z.Rank, &z.Warmup)
		}},
	}
}

// newCompression unpacks a method's settings, which are fields of z.
func (c *call) newCompression(z *compress.Config, into ...any) (starlark.Value, error) {
	if err := c.unpack(into...); err != nil {
		return nil, err
	}
	if err := z.Validate(); err != nil {
		name, _, _ := strings.Cut(err.Error(), " ")
		return nil, c.bad(name, "%v", err)
	}
	return c.newSetting("compression", *z), nil
}

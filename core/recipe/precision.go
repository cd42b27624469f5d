package recipe

import (
	"strings"

	"go.starlark.net/starlark"

	"starling/core/optim"
)

// precision is a number format of weights and activations, and the loss scale that goes with it.
type precision struct {
	name   string
	scale  optim.LossScale
	reduce string // the type of sums of gradients, "" for fp32
}

func precisionDeclarations() []declaration {
	const reduce = "; reduce_dtype (\"fp32\", \"bf16\" or \"fp16\") is the type in which gradients are added and travel"
	return []declaration{
		{"fp32(reduce_dtype = None)", "32-bit floating point throughout" + reduce, func(c *call) (starlark.Value, error) {
			p := precision{name: "fp32"}
			if err := c.unpack(&p.reduce); err != nil {
				return nil, err
			}
			return c.newPrecision(p)
		}},
		{"bf16(reduce_dtype = None)", "weights in use, products and activations in bfloat16; the optimizer's weights, sums of gradients, norms, softmax and loss in 32 bits" + reduce, func(c *call) (starlark.Value, error) {
			p := precision{name: "bf16"}
			if err := c.unpack(&p.reduce); err != nil {
				return nil, err
			}
			return c.newPrecision(p)
		}},
		{"fp16(loss_scale = None, reduce_dtype = None)", "as bf16, in IEEE half precision, whose range is small: the loss is scaled, by default by loss_scale.dynamic()" + reduce, func(c *call) (starlark.Value, error) {
			var scale *setting
			p := precision{name: "fp16", scale: optim.DefaultLossScale}
			if err := c.unpack(kindOf{"loss scale", "loss_scale.dynamic(…) or loss_scale.static(…)", &scale}, &p.reduce); err != nil {
				return nil, err
			}
			if scale != nil {
				p.scale = payload[optim.LossScale](scale)
			}
			return c.newPrecision(p)
		}},
	}
}

func (c *call) newPrecision(p precision) (starlark.Value, error) {
	switch p.reduce {
	case "fp32":
		p.reduce = ""
	case "", "bf16", "fp16":
	default:
		return nil, c.bad("reduce_dtype", "reduce_dtype = %q must be \"fp32\", \"bf16\" or \"fp16\"", p.reduce)
	}
	return c.newSetting("precision", p), nil
}

func lossScaleDeclarations() []declaration {
	return []declaration{
		{`dynamic(init = 32768.0, factor = 2.0, window = 2000, hysteresis = 1, floor = 1.0, backoff = "at_once")`,
			"grows by factor after window clean steps; a step that overflows is skipped, and the hysteresis-th such step since it grew divides the scale by factor, at_once or at the window_end; " +
				"an overflow at the floor ends the run", makeDynamicScale},
		{"static(scale)", "always the same; a step that overflows is skipped, a hundred in a row end the run", func(c *call) (starlark.Value, error) {
			var l optim.LossScale
			if err := c.unpack(&l.Init); err != nil {
				return nil, err
			}
			if !(l.Init > 0) {
				return nil, c.bad("scale", "scale = %v must be above 0", l.Init)
			}
			return c.newLossScale(l)
		}},
	}
}

func makeDynamicScale(c *call) (starlark.Value, error) {
	l := optim.LossScale{Dynamic: true}
	var backoff string
	if err := c.unpack(&l.Init, &l.Factor, &l.Window, &l.Hysteresis, &l.Floor, &backoff); err != nil {
		return nil, err
	}
	switch backoff {
	case "at_once":
	case "window_end":
		l.WindowEnd = true
	default:
		return nil, c.bad("backoff", "backoff = %q must be \"at_once\" (shrink with the overflow) or \"window_end\" (decide at every window-th step)", backoff)
	}
	if !(l.Init > 0) {
		return nil, c.bad("init", "init = %v must be above 0", l.Init)
	}
	return c.newLossScale(l)
}

func (c *call) newLossScale(l optim.LossScale) (starlark.Value, error) {
	if err := l.Validate(); err != nil {
		return nil, c.errorf("%s", strings.TrimPrefix(err.Error(), "loss_scale: "))
	}
	return c.newSetting("loss scale", l), nil
}

package recipe

import (
	"math"

	"go.starlark.net/starlark"

	"starling/core/graph"
	"starling/core/tensor/detmath"
)

// nnDeclarations are the primitives of the namespace nn that need Go: blocks, parameters and losses. The layers are
// Starlark, in the file nn.star of the standard library.
func nnDeclarations() []declaration {
	return []declaration{
		{"block(name, fn, *args, **kwargs)", "fn(*args, **kwargs), with the parameters made in it named name.…", nnBlock},
		{"param(name, shape, init, frozen = False)", "a trainable parameter, named by the blocks it is made in; frozen keeps it as it is", nnParam},
		{"table(name, rows, width, init = None)", "a table name.weight[rows, width] to look up or to share: see nn.embedding and nn.linear(tied = …); normal(0.02) by default", nnTable},
		{"batch_norm(name, x, eps = 1e-5, momentum = 0.1, init = None)", "each channel of x[N,C,…] to zero mean and unit variance over the micro-batch, times weight (1 at first unless init says otherwise), plus bias; evaluation uses the " +
			"running averages name.running_mean and name.running_var, which move by momentum once a step towards the mean over all micro-batches", nnBatchNorm},
		{"weighted(sum, weight)", "a loss or metric from two scalars: its value is sum over weight, taken over the whole global batch", nnWeighted},
	}
}

func initDeclarations() []declaration {
	constant := func(v float64) func(c *call) (starlark.Value, error) {
		return func(c *call) (starlark.Value, error) {
			if err := c.unpack(); err != nil {
				return nil, err
			}
			return c.newSetting("init", graph.Init{Kind: graph.InitConstant, A: v}), nil
		}
	}
	two := func(kind graph.InitKind, check func(a, b float64) string) func(c *call) (starlark.Value, error) {
		return func(c *call) (starlark.Value, error) {
			i := graph.Init{Kind: kind}
			if err := c.unpack(&i.A, &i.B); err != nil {
				return nil, err
			}
			if msg := check(i.A, i.B); msg != "" {
				return nil, c.errorf("%s", msg)
			}
			return c.newSetting("init", i), nil
		}
	}
	return []declaration{
		{"zeros()", "every element 0", constant(0)},
		{"ones()", "every element 1", constant(1)},
		{"constant(value)", "every element equal to value", func(c *call) (starlark.Value, error) {
			i := graph.Init{Kind: graph.InitConstant}
			if err := c.unpack(&i.A); err != nil {
				return nil, err
			}
			return c.newSetting("init", i), nil
		}},
		{"uniform(low, high)", "uniform in [low, high)", two(graph.InitUniform, func(a, b float64) string {
			if !(a <= b) {
				return "low must not be above high"
			}
			return ""
		})},
		{"normal(std = 0.02, mean = 0.0)", "a normal distribution", func(c *call) (starlark.Value, error) {
			i := graph.Init{Kind: graph.InitNormal}
			if err := c.unpack(&i.B, &i.A); err != nil {
				return nil, err
			}
			if !(i.B >= 0) {
				return nil, c.bad("std", "std = %v must be at least 0", i.B)
			}
			return c.newSetting("init", i), nil
		}},
	}
}

func nnBlock(c *call) (starlark.Value, error) {
	rest := *c
	bound := map[string]starlark.Value{}
	for _, name := range []string{"name", "fn"} {
		if len(rest.args) > 0 {
			bound[name], rest.args = rest.args[0], rest.args[1:]
			continue
		}
		for i, kv := range rest.kwargs {
			if kv[0] == starlark.String(name) {
				bound[name] = kv[1]
				rest.kwargs = append(append([]starlark.Tuple{}, rest.kwargs[:i]...), rest.kwargs[i+1:]...)
				break
			}
		}
		if bound[name] == nil {
			return nil, c.errorf("missing argument %q: %v", name, c.signature)
		}
	}
	name, ok := starlark.AsString(bound["name"])
	if !ok {
		return nil, c.bad("name", "name must be a string, not %s", describe(bound["name"]))
	}
	fn, ok := bound["fn"].(starlark.Callable)
	if !ok {
		return nil, c.bad("fn", "fn must be a function, not %s; its arguments follow it: nn.block(%q, layer, x)", describe(bound["fn"]), name)
	}
	if err := checkName(c, name); err != nil {
		return nil, err
	}
	t, err := c.tracing()
	if err != nil {
		return nil, err
	}
	return t.scoped(name, func() (starlark.Value, error) {
		return starlark.Call(c.thread, fn, rest.args, rest.kwargs)
	})
}

func nnParam(c *call) (starlark.Value, error) {
	var name string
	var shape []int
	var init *setting
	var frozen bool
	if err := c.unpack(&name, &shape, wantInit(&init), &frozen); err != nil {
		return nil, err
	}
	if err := checkName(c, name); err != nil {
		return nil, err
	}
	t, err := c.tracing()
	if err != nil {
		return nil, err
	}
	return t.param(c, graph.ParamAttrs{Name: name, Shape: graph.MakeDims(shape), Init: payload[graph.Init](init), Frozen: frozen})
}

func nnBatchNorm(c *call) (starlark.Value, error) {
	var name string
	var x *Tensor
	var a graph.NormAttrs
	var momentum float64
	var first *setting
	if err := c.unpack(&name, &x, &a.Eps, &momentum, wantInit(&first)); err != nil {
		return nil, err
	}
	if err := checkName(c, name); err != nil {
		return nil, err
	}
	switch {
	case len(x.value.Shape) < 2:
		return nil, c.bad("x", "x is %v: batch norm needs [batch, channels, …]", x.value.Type)
	case !(a.Eps > 0):
		return nil, c.bad("eps", "eps = %v must be above 0", a.Eps)
	case !(momentum > 0 && momentum <= 1):
		return nil, c.bad("momentum", "momentum = %v must be above 0 and at most 1", momentum)
	}
	t, err := c.tracing()
	if err != nil {
		return nil, err
	}
	scale := graph.Init{A: 1}
	if first != nil {
		scale = payload[graph.Init](first)
	}
	in := []*Tensor{x}
	for _, p := range []graph.ParamAttrs{
		{Name: "weight", Init: scale}, {Name: "bias"},
		{Name: "running_mean", Buffer: true, Rate: momentum}, {Name: "running_var", Buffer: true, Rate: momentum, Init: graph.Init{A: 1}},
	} {
		p.Name, p.Shape = name+"."+p.Name, graph.MakeDims(x.value.Shape[1:2])
		v, err := t.param(c, p)
		if err != nil {
			return nil, err
		}
		in = append(in, v)
	}
	if t.training {
		return t.apply1(c.name, "batch_norm", a, in...)
	}
	return t.apply1(c.name, "batch_norm_fixed", a, in...)
}

func wantInit(to **setting) kindOf {
	return kindOf{"init", "an initialiser such as init.normal(0.02)", to}
}

func nnTable(c *call) (starlark.Value, error) {
	var name string
	var rows, width int
	var init *setting
	if err := c.unpack(&name, &rows, &width, wantInit(&init)); err != nil {
		return nil, err
	}
	if err := checkName(c, name); err != nil {
		return nil, err
	}
	values := graph.Init{Kind: graph.InitNormal, B: 0.02}
	if init != nil {
		values = payload[graph.Init](init)
	}
	t, err := c.tracing()
	if err != nil {
		return nil, err
	}
	w, err := t.param(c, graph.ParamAttrs{Name: name + ".weight", Shape: graph.MakeDims([]int{rows, width}), Init: values})
	if err != nil {
		return nil, err
	}
	r := newRecord("table " + w.value.Type.String())
	r.set("weight", w)
	return r, nil
}

func nnWeighted(c *call) (starlark.Value, error) {
	var sum, weight *Tensor
	if err := c.unpack(&sum, &weight); err != nil {
		return nil, err
	}
	return newLoss(c.name, sum, weight)
}

// mathDeclarations are functions of numbers, the same bits on every machine.
func mathDeclarations() []declaration {
	unary := func(f func(float64) float64) func(c *call) (starlark.Value, error) {
		return func(c *call) (starlark.Value, error) {
			var x float64
			if err := c.unpack(&x); err != nil {
				return nil, err
			}
			return starlark.Float(f(x)), nil
		}
	}
	whole := func(f func(float64) float64) func(c *call) (starlark.Value, error) {
		return func(c *call) (starlark.Value, error) {
			var x float64
			if err := c.unpack(&x); err != nil {
				return nil, err
			}
			if v := f(x); math.Abs(v) < 1<<53 {
				return starlark.MakeInt64(int64(v)), nil
			}
			return nil, c.bad("x", "x = %v is too large", x)
		}
	}
	return []declaration{
		{"sqrt(x)", "square root", unary(math.Sqrt)},
		{"exp(x)", "e to the power of x", unary(detmath.Exp)},
		{"log(x)", "natural logarithm", unary(detmath.Log)},
		{"sin(x)", "sine of x radians", unary(detmath.Sin)},
		{"cos(x)", "cosine of x radians", unary(detmath.Cos)},
		{"pow(x, y)", "x to the power of y", func(c *call) (starlark.Value, error) {
			var x, y float64
			if err := c.unpack(&x, &y); err != nil {
				return nil, err
			}
			return starlark.Float(detmath.Pow(x, y)), nil
		}},
		{"floor(x)", "the greatest int that is not above x", whole(math.Floor)},
		{"ceil(x)", "the least int that is not below x", whole(math.Ceil)},
	}
}

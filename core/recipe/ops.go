package recipe

import (
	"fmt"
	"slices"
	"strings"

	"go.starlark.net/starlark"

	"starling/core/graph"
	"starling/core/tensor"
)

// opsDeclarations is the namespace ops: the differentiable primitives. Each is one operation of the graph, or
// a handful; shape rules and gradients are the graph's.
func opsDeclarations() []declaration {
	decls := []declaration{
		{"full(shape, value)", "a constant tensor with every element equal to value", opFull},
		{"cast(x, dtype)", `x in another element type, such as "i32" or "f32", rounded to nearest even`, opCast},
		{"pow(x, exponent)", "x to the power of a number", opPow},
		{"maximum(a, b)", "the greater of a and b, element by element; either may be a number", pairOp("maximum")},
		{"minimum(a, b)", "the lesser of a and b, element by element; either may be a number", pairOp("minimum")},
		{"equal(a, b)", "1.0 where the int tensors a and b are equal, else 0.0; no gradient", opEqual},
		{"gelu(x, exact = False)", "Gaussian error linear unit: the tanh form, or exact with erf", opGELU},
		{"swiglu(gate, up)", "silu(gate) * up", opSwiGLU},
		{"reshape(x, shape)", "the same elements in another shape; one entry may be -1, for what is left", opReshape},
		{"transpose(x, perm = None)", "dimension i of the result is dimension perm[i] of x; by default the last two change places", opTranspose},
		{"slice(x, axis, start, end)", "elements start to end-1 of one axis; negative numbers count from the end", opSlice},
		{"split(x, sizes, axis = -1)", "x cut along an axis into parts of the given sizes, as a list", opSplit},
		{"concat(xs, axis = -1)", "tensors one after another along an axis", opConcat},
		{"broadcast_to(x, shape)", "x repeated to a larger shape by NumPy's rule", opBroadcast},
		{"sum(x, axes = None, keep = False)", "the sum over axes, by default all of them; keep leaves them as 1", reduction("sum")},
		{"mean(x, axes = None, keep = False)", "the mean over axes, by default all of them; keep leaves them as 1", reduction("mean")},
		{"max(x, axes = None, keep = False)", "the maximum over axes, by default all of them; keep leaves them as 1", reduction("max")},
		{"matmul(a, b, trans_a = False, trans_b = False)", "matrix product of the last two dimensions [...,M,K] by [...,K,N]; the others broadcast", opMatmul},
		{"linear(x, weight, bias = None)", "x[...,I] times weight[O,I] transposed, plus bias[O]", opLinear},
		{"embedding(table, ids)", "rows of table[V,C] by the int tensor ids[...]: [...,C]", opEmbedding},
		{"layer_norm(x, weight, bias = None, eps = 1e-5)", "zero mean and unit variance over the last dimension, times weight, plus bias", opLayerNorm},
		{"rms_norm(x, weight, eps = 1e-5)", "unit root mean square over the last dimension, times weight", opRMSNorm},
		{"attention(q, k, v, causal = True, scale = None, segments = None)", "softmax(scale * q k) v for q[B,T,H,D] and k, v[B,S,G,D], H a multiple of G; " +
			"scale is 1/sqrt(D) by default; segments i32[B,T], or a pair for q and k: attend inside equal ids only", opAttention},
		{"rotary(x, base = 10000.0, offset = 0)", "rotary positions for x[B,T,H,D]: pairs (i, i + D/2) turn by position * base^(-2i/D)", opRotary},
		{"dropout(x, p)", "while training, zeroes elements with probability p and scales the others by 1/(1-p)", opDropout},
		{"cross_entropy(logits, targets, ignore = -1)", "(sum, weight): the summed cross-entropy of logits[...,V] and targets i32[...], and the number of rows that count; " +
			"targets that are negative or equal ignore do not", opCrossEntropy},
		{"conv2d(x, weight, bias = None, stride = 1, padding = 0, dilation = 1, groups = 1)", "convolution of x[N,C,H,W] by weight[O,C/groups,KH,KW]", opConv2D},
		{"max_pool(x, size, stride = None, padding = 0)", "the maximum of each window of x[N,C,H,W]; stride is size by default", pool("max_pool")},
		{"avg_pool(x, size, stride = None, padding = 0)", "the mean of each window of x[N,C,H,W], padding counted as zeros; stride is size by default", pool("avg_pool")},
	}
	for _, u := range []struct{ name, op, doc string }{
		{"neg", "neg", "-x"},
		{"exp", "exp", "e to the power of x"},
		{"log", "log", "natural logarithm"},
		{"sqrt", "sqrt", "square root"},
		{"rsqrt", "rsqrt", "1 / sqrt(x)"},
		{"square", "square", "x * x"},
		{"abs", "abs", "absolute value"},
		{"tanh", "tanh", "hyperbolic tangent"},
		{"sigmoid", "sigmoid", "1 / (1 + e^-x)"},
		{"relu", "relu", "the greater of x and 0"},
		{"silu", "silu", "x * sigmoid(x)"},
		{"softmax", "softmax", "softmax over the last dimension"},
		{"log_softmax", "log_softmax", "logarithm of the softmax over the last dimension"},
		{"argmax", "argmax", "index of the first maximum of the last dimension, i32; no gradient"},
		{"stop_gradient", "stop_gradient", "x, but no gradient flows into it"},
	} {
		decls = append(decls, declaration{u.name + "(x)", u.doc, func(c *call) (starlark.Value, error) {
			var x *Tensor
			return c.apply(c.unpack(&x), u.op, nil, &x)
		}})
	}
	for _, b := range []struct{ name, doc string }{
		{"add", "a + b, broadcasting; either may be a number"},
		{"sub", "a - b, broadcasting; either may be a number"},
		{"mul", "a * b, broadcasting; either may be a number"},
		{"div", "a / b, broadcasting; either may be a number"},
	} {
		decls = append(decls, declaration{b.name + "(a, b)", b.doc, operatorOp(b.name)})
	}
	return decls
}

// isOp reports whether ops has a function of that name.
func isOp(name string) bool {
	return slices.ContainsFunc(opsDeclarations(), func(d declaration) bool { return strings.HasPrefix(d.signature, name+"(") })
}

// apply runs one operation once the arguments are unpacked; inputs are given by reference, so that they can be named in the
// same expression as the unpacking. A nil input ends the list (an optional one that is absent).
func (c *call) apply(unpacked error, op string, attrs any, in ...**Tensor) (starlark.Value, error) {
	if unpacked != nil {
		return nil, unpacked
	}
	t, err := c.tracing()
	if err != nil {
		return nil, err
	}
	var xs []*Tensor
	for _, x := range in {
		if *x == nil {
			break
		}
		xs = append(xs, *x)
	}
	return t.apply1(c.name, op, attrs, xs...)
}

func opFull(c *call) (starlark.Value, error) {
	var shape []int
	var value float64
	if err := c.unpack(&shape, &value); err != nil {
		return nil, err
	}
	return c.apply(nil, "const", graph.FullAttrs{Value: value, Shape: graph.MakeDims(shape)})
}

func opCast(c *call) (starlark.Value, error) {
	var x *Tensor
	var name string
	if err := c.unpack(&x, &name); err != nil {
		return nil, err
	}
	d, err := tensor.ParseDType(name)
	if err != nil {
		return nil, c.bad("dtype", "%v", err)
	}
	return c.apply(nil, "cast", graph.CastAttrs{To: d}, &x)
}

func opPow(c *call) (starlark.Value, error) {
	var x *Tensor
	var e float64
	if err := c.unpack(&x, &e); err != nil {
		return nil, err
	}
	return c.apply(nil, "pow_scalar", graph.ScalarAttrs{Value: e}, &x)
}

func opEqual(c *call) (starlark.Value, error) {
	var a, b *Tensor
	return c.apply(c.unpack(&a, &b), "equal", nil, &a, &b)
}

// pairOp is an operation between tensors in which a number stands for a constant.
func pairOp(op string) func(c *call) (starlark.Value, error) {
	return func(c *call) (starlark.Value, error) {
		var a, b starlark.Value
		if err := c.unpack(&a, &b); err != nil {
			return nil, err
		}
		x, err := c.tensorOrNumber("a", a)
		if err != nil {
			return nil, err
		}
		y, err := c.tensorOrNumber("b", b)
		if err != nil {
			return nil, err
		}
		return c.apply(nil, op, nil, &x, &y)
	}
}

func (c *call) tensorOrNumber(arg string, v starlark.Value) (*Tensor, error) {
	if x, ok := v.(*Tensor); ok {
		return x, nil
	}
	f, ok := number(v)
	if !ok {
		return nil, c.bad(arg, "%s must be a tensor or a number, not %s", arg, describe(v))
	}
	x, err := c.apply(nil, "const", graph.FullAttrs{Value: f})
	if err != nil {
		return nil, err
	}
	return x.(*Tensor), nil
}

// operatorOp is an operator under its name.
func operatorOp(op string) func(c *call) (starlark.Value, error) {
	return func(c *call) (starlark.Value, error) {
		var a, b starlark.Value
		if err := c.unpack(&a, &b); err != nil {
			return nil, err
		}
		_, ta := a.(*Tensor)
		_, tb := b.(*Tensor)
		if !ta && !tb {
			return nil, c.errorf("one of a and b must be a tensor; they are %s and %s", describe(a), describe(b))
		}
		for token, name := range binaryOps {
			if name == op {
				return starlark.Binary(token, a, b)
			}
		}
		panic("recipe: no operator " + op)
	}
}

func opGELU(c *call) (starlark.Value, error) {
	var x *Tensor
	var exact bool
	if err := c.unpack(&x, &exact); err != nil {
		return nil, err
	}
	if exact {
		return c.apply(nil, "gelu_erf", nil, &x)
	}
	return c.apply(nil, "gelu", nil, &x)
}

func opSwiGLU(c *call) (starlark.Value, error) {
	var gate, up *Tensor
	return c.apply(c.unpack(&gate, &up), "swiglu", nil, &gate, &up)
}

func reduction(op string) func(c *call) (starlark.Value, error) {
	return func(c *call) (starlark.Value, error) {
		var x *Tensor
		var axes []int
		var keep bool
		if err := c.unpack(&x, &axes, &keep); err != nil {
			return nil, err
		}
		if axes == nil {
			for i := range x.value.Shape {
				axes = append(axes, i)
			}
		}
		for i, a := range axes {
			var err error
			if axes[i], err = c.axis("axes", x, a); err != nil {
				return nil, err
			}
		}
		slices.Sort(axes)
		if len(slices.Compact(slices.Clone(axes))) != len(axes) {
			return nil, c.bad("axes", "axes: an axis is named twice")
		}
		return c.apply(nil, op, graph.ReduceAttrs{Axes: graph.MakeDims(axes), Keep: keep}, &x)
	}
}

func opMatmul(c *call) (starlark.Value, error) {
	var a, b *Tensor
	var attrs graph.MatmulAttrs
	if err := c.unpack(&a, &b, &attrs.TransA, &attrs.TransB); err != nil {
		return nil, err
	}
	return c.apply(nil, "matmul", attrs, &a, &b)
}

func opLinear(c *call) (starlark.Value, error) {
	var x, w, b *Tensor
	return c.apply(c.unpack(&x, &w, &b), "linear", nil, &x, &w, &b)
}

func opEmbedding(c *call) (starlark.Value, error) {
	var table, ids *Tensor
	return c.apply(c.unpack(&table, &ids), "embedding", nil, &table, &ids)
}

func opLayerNorm(c *call) (starlark.Value, error) {
	var x, w, b *Tensor
	var attrs graph.NormAttrs
	if err := c.unpack(&x, &w, &b, &attrs.Eps); err != nil {
		return nil, err
	}
	return c.apply(nil, "layer_norm", attrs, &x, &w, &b)
}

func opRMSNorm(c *call) (starlark.Value, error) {
	var x, w *Tensor
	var attrs graph.NormAttrs
	if err := c.unpack(&x, &w, &attrs.Eps); err != nil {
		return nil, err
	}
	return c.apply(nil, "rms_norm", attrs, &x, &w)
}

func opRotary(c *call) (starlark.Value, error) {
	var x *Tensor
	var attrs graph.RotaryAttrs
	if err := c.unpack(&x, &attrs.Base, &attrs.Offset); err != nil {
		return nil, err
	}
	return c.apply(nil, "rotary", attrs, &x)
}

func opDropout(c *call) (starlark.Value, error) {
	var x *Tensor
	var p float64
	if err := c.unpack(&x, &p); err != nil {
		return nil, err
	}
	t, err := c.tracing()
	if err != nil {
		return nil, err
	}
	return t.dropout(c.name, x, p)
}

// checkClasses refuses logits of fewer classes than the data has labels.
func (t *trace) checkClasses(c *call, logits, targets *Tensor, ignore int) error {
	in, ok := targets.value.Def.Attrs.(graph.InputAttrs)
	rank := len(logits.value.Shape)
	if !ok || in.Name != "labels" || rank == 0 {
		return nil
	}
	last := t.classes - 1 // the greatest label
	if last == ignore {
		last--
	}
	n := logits.value.Shape[rank-1]
	if last < n {
		return nil
	}
	what := c.name
	if l := layer(t.thread); l != "" {
		what = l
	}
	return &layerError{fmt.Sprintf("%s: labels go to %d, logits have %d classes; make the model's last layer %d wide", what, last, n, t.classes)}
}

func opCrossEntropy(c *call) (starlark.Value, error) {
	var logits, targets *Tensor
	var ignore int
	if err := c.unpack(&logits, &targets, &ignore); err != nil {
		return nil, err
	}
	t, err := c.tracing()
	if err != nil {
		return nil, err
	}
	if err := t.checkClasses(c, logits, targets, ignore); err != nil {
		return nil, err
	}
	out, err := t.apply(c.name, "cross_entropy", graph.CrossEntropyAttrs{Ignore: ignore}, logits, targets)
	if err != nil {
		return nil, err
	}
	return starlark.Tuple{out[0], out[1]}, nil
}

package graph

import "starling/core/tensor"

// Gradient rules of element-by-element operations.
//
// The rules name operations by their names, not by the variables of their entries: an entry holds its rule, so a rule
// that mentioned entries would make the initialisation of the table circular.

// gradRule is the type of Op.Grad.
type gradRule = func(b *Builder, n *Node, dout []*Value) []*Value

// do appends the operation of that name and returns its first result.
func (b *Builder) do(name string, attrs any, in ...*Value) *Value {
	return b.Must(ops[name], attrs, in...)[0]
}

// unbroadcast sums a gradient back to the shape of an operand that was stretched.
func (b *Builder) unbroadcast(dy *Value, to tensor.Shape) *Value {
	if dy.Shape.Equal(to) {
		return dy
	}
	return b.do("sum_to", ShapeAttrs{MakeDims(to)}, dy)
}

func (b *Builder) scale(x *Value, c float64) *Value {
	if c == 1 {
		return x
	}
	return b.do("scale", ScalarAttrs{c}, x)
}

func gradAdd(b *Builder, n *Node, dout []*Value) []*Value {
	return []*Value{b.unbroadcast(dout[0], n.In[0].Shape), b.unbroadcast(dout[0], n.In[1].Shape)}
}

func gradSub(b *Builder, n *Node, dout []*Value) []*Value {
	return []*Value{
		b.unbroadcast(dout[0], n.In[0].Shape),
		b.do("neg", nil, b.unbroadcast(dout[0], n.In[1].Shape)),
	}
}

func gradMul(b *Builder, n *Node, dout []*Value) []*Value {
	x, y := n.In[0], n.In[1]
	return []*Value{
		b.unbroadcast(b.do("mul", nil, dout[0], y), x.Shape),
		b.unbroadcast(b.do("mul", nil, dout[0], x), y.Shape),
	}
}

func gradDiv(b *Builder, n *Node, dout []*Value) []*Value {
	dx := b.do("div", nil, dout[0], n.In[1])
	dy := b.do("neg", nil, b.unbroadcast(b.do("mul", nil, dx, n.Out[0]), n.In[1].Shape))
	return []*Value{b.unbroadcast(dx, n.In[0].Shape), dy}
}

func gradMaximum(b *Builder, n *Node, dout []*Value) []*Value {
	return gradExtremum(b, n, dout[0], 0, 1)
}
func gradMinimum(b *Builder, n *Node, dout []*Value) []*Value {
	return gradExtremum(b, n, dout[0], 1, 0)
}

// gradExtremum lets the gradient through to the first operand where in[i] > in[j], else to the second.
func gradExtremum(b *Builder, n *Node, dout *Value, i, j int) []*Value {
	first := b.do("relu_grad", nil, b.do("sub", nil, n.In[i], n.In[j]), dout)
	second := b.do("sub", nil, dout, first)
	return []*Value{b.unbroadcast(first, n.In[0].Shape), b.unbroadcast(second, n.In[1].Shape)}
}

func gradNeg(b *Builder, _ *Node, dout []*Value) []*Value {
	return []*Value{b.do("neg", nil, dout[0])}
}

func gradExp(b *Builder, n *Node, dout []*Value) []*Value {
	return []*Value{b.do("mul", nil, dout[0], n.Out[0])}
}

func gradLog(b *Builder, n *Node, dout []*Value) []*Value {
	return []*Value{b.do("div", nil, dout[0], n.In[0])}
}

func gradSqrt(b *Builder, n *Node, dout []*Value) []*Value {
	return []*Value{b.do("div", nil, b.scale(dout[0], 0.5), n.Out[0])}
}

func gradRsqrt(b *Builder, n *Node, dout []*Value) []*Value {
	cube := b.do("mul", nil, b.do("square", nil, n.Out[0]), n.Out[0])
	return []*Value{b.scale(b.do("mul", nil, dout[0], cube), -0.5)}
}

func gradSquare(b *Builder, n *Node, dout []*Value) []*Value {
	return []*Value{b.do("mul", nil, dout[0], b.scale(n.In[0], 2))}
}

func gradAbs(b *Builder, n *Node, dout []*Value) []*Value {
	above := b.do("relu_grad", nil, n.In[0], dout[0])
	below := b.do("relu_grad", nil, b.do("neg", nil, n.In[0]), dout[0])
	return []*Value{b.do("sub", nil, above, below)}
}

// gradByInput and gradByResult are the rules of activations with a gradient operation of
// their own, which reads the activation's input or its result.
func gradByInput(name string) gradRule {
	return func(b *Builder, n *Node, dout []*Value) []*Value {
		return []*Value{b.do(name, nil, n.In[0], dout[0])}
	}
}

func gradByResult(name string) gradRule {
	return func(b *Builder, n *Node, dout []*Value) []*Value {
		return []*Value{b.do(name, nil, n.Out[0], dout[0])}
	}
}

func gradScale(b *Builder, n *Node, dout []*Value) []*Value {
	return []*Value{b.scale(dout[0], n.Attrs.(ScalarAttrs).Value)}
}

func gradAddScalar(_ *Builder, _ *Node, dout []*Value) []*Value { return []*Value{dout[0]} }

func gradPowScalar(b *Builder, n *Node, dout []*Value) []*Value {
	switch p := n.Attrs.(ScalarAttrs).Value; p {
	case 0:
		return []*Value{nil}
	case 1:
		return []*Value{dout[0]}
	default:
		slope := b.scale(b.do("pow_scalar", ScalarAttrs{p - 1}, n.In[0]), p)
		return []*Value{b.do("mul", nil, dout[0], slope)}
	}
}

func gradSwiGLU(b *Builder, n *Node, dout []*Value) []*Value {
	return b.Must(ops["swiglu_grad"], nil, n.In[0], n.In[1], dout[0])
}

func gradCast(b *Builder, n *Node, dout []*Value) []*Value {
	return []*Value{b.do("cast", CastAttrs{n.In[0].DType}, dout[0])}
}

package graph

import (
	"fmt"
	"math"

	"starling/core/tensor"
)

// Element-by-element operations. All are InPlace: element i of the result depends on
// element i of the operands alone (where an operand is not broadcast).

// binary makes the entry of a broadcasting operation of two operands.
func binary(name, doc string, f func(a, b float64) float64, grad gradRule) Op {
	return Op{
		Name:    name,
		Doc:     "(a, b) -> y, both broadcast by NumPy's rule: " + doc,
		InPlace: true,
		Grad:    grad,
		Infer: func(in []*Value, attrs any) ([]Type, error) {
			if err := arity(in, "a", "b"); err != nil {
				return nil, err
			}
			if err := floats(in...); err != nil {
				return nil, err
			}
			s, err := tensor.Broadcast(in[0].Shape, in[1].Shape)
			return one(in[0].DType, s...), err
		},
		Ref: func(n *Node, in []*Array) []*Array {
			y := NewArray(n.Out[0].Type)
			ia, ib := broadcastIndex(in[0].Shape, y.Shape), broadcastIndex(in[1].Shape, y.Shape)
			for i := range y.Data {
				y.Data[i] = f(in[0].Data[ia(i)], in[1].Data[ib(i)])
			}
			return []*Array{y}
		},
	}
}

// broadcastIndex returns the map from an element of shape to to the element of shape from
// that broadcasting puts there.
func broadcastIndex(from, to tensor.Shape) func(int) int {
	if from.Equal(to) {
		return func(i int) int { return i }
	}
	if from.Numel() == 1 {
		return func(int) int { return 0 }
	}
	st, ts := from.Strides(), to.Strides()
	pad := len(to) - len(from)
	return func(i int) int {
		j := 0
		for d, s := range ts {
			c := i / s
			i -= c * s
			if d >= pad && from[d-pad] > 1 {
				j += c * st[d-pad]
			}
		}
		return j
	}
}

// unary makes the entry of an operation of one operand.
func unary(name, doc string, f func(x float64) float64, grad gradRule) Op {
	return Op{
		Name:    name,
		Doc:     "(x) -> y of the same shape: " + doc,
		InPlace: true,
		Grad:    grad,
		Infer: func(in []*Value, attrs any) ([]Type, error) {
			if err := arity(in, "x"); err != nil {
				return nil, err
			}
			return one(in[0].DType, in[0].Shape...), floats(in...)
		},
		Ref: func(n *Node, in []*Array) []*Array {
			y := NewArray(n.Out[0].Type)
			for i, x := range in[0].Data {
				y.Data[i] = f(x)
			}
			return []*Array{y}
		},
	}
}

// scalar makes the entry of an operation of one operand and one number.
func scalar(name, doc string, f func(x, c float64) float64, grad gradRule) Op {
	op := unary(name, doc, nil, grad)
	infer := op.Infer
	op.Infer = func(in []*Value, attrs any) ([]Type, error) {
		if _, err := attrsAs[ScalarAttrs](attrs); err != nil {
			return nil, err
		}
		return infer(in, attrs)
	}
	op.Ref = func(n *Node, in []*Array) []*Array {
		c := n.Attrs.(ScalarAttrs).Value
		y := NewArray(n.Out[0].Type)
		for i, x := range in[0].Data {
			y.Data[i] = f(x, c)
		}
		return []*Array{y}
	}
	return op
}

// unaryGrad makes the entry of the gradient of a unary operation, which takes what
// was kept of the forward pass (its input x or its result y) and the gradient dy.
func unaryGrad(name, kept, doc string, f func(x, dy float64) float64) Op {
	return Op{
		Name:    name,
		Doc:     fmt.Sprintf("(%s, dy) -> dx, all of one shape: %s", kept, doc),
		InPlace: true,
		Infer: func(in []*Value, attrs any) ([]Type, error) {
			if err := arity(in, kept, "dy"); err != nil {
				return nil, err
			}
			return one(in[0].DType, in[0].Shape...), all(floats(in...), ofShape("dy", in[1], in[0].Shape...))
		},
		Ref: func(n *Node, in []*Array) []*Array {
			dx := NewArray(n.Out[0].Type)
			for i, x := range in[0].Data {
				dx.Data[i] = f(x, in[1].Data[i])
			}
			return []*Array{dx}
		},
	}
}

// Arithmetic of two operands. NaN in either operand gives NaN, in maximum and minimum too.
var (
	OpAdd     = register(binary("add", "a + b", func(a, b float64) float64 { return a + b }, gradAdd))
	OpSub     = register(binary("sub", "a - b", func(a, b float64) float64 { return a - b }, gradSub))
	OpMul     = register(binary("mul", "a * b", func(a, b float64) float64 { return a * b }, gradMul))
	OpDiv     = register(binary("div", "a / b", func(a, b float64) float64 { return a / b }, gradDiv))
	OpMaximum = register(binary("maximum", "the greater of a and b; the gradient goes to b where they are equal",
		func(a, b float64) float64 { return max(a, b) }, gradMaximum))
	OpMinimum = register(binary("minimum", "the lesser of a and b; the gradient goes to b where they are equal",
		func(a, b float64) float64 { return min(a, b) }, gradMinimum))
)

// Functions of one operand.
var (
	OpNeg    = register(unary("neg", "-x", func(x float64) float64 { return -x }, gradNeg))
	OpExp    = register(unary("exp", "e^x", math.Exp, gradExp))
	OpLog    = register(unary("log", "natural logarithm", math.Log, gradLog))
	OpSqrt   = register(unary("sqrt", "square root", math.Sqrt, gradSqrt))
	OpRsqrt  = register(unary("rsqrt", "1/sqrt(x)", func(x float64) float64 { return 1 / math.Sqrt(x) }, gradRsqrt))
	OpSquare = register(unary("square", "x*x", func(x float64) float64 { return x * x }, gradSquare))
	OpAbs    = register(unary("abs", "|x|; the gradient at 0 is 0", math.Abs, gradAbs))
)

// Activations.
var (
	OpTanh    = register(unary("tanh", "hyperbolic tangent", math.Tanh, gradByResult("tanh_grad")))
	OpSigmoid = register(unary("sigmoid", "1/(1+e^-x)", sigmoid, gradByResult("sigmoid_grad")))
	OpReLU    = register(unary("relu", "max(x, 0); NaN stays NaN", func(x float64) float64 { return max(x, 0) }, gradByInput("relu_grad")))
	OpGELU    = register(unary("gelu", "x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3))), the tanh form", gelu, gradByInput("gelu_grad")))
	OpGELUErf = register(unary("gelu_erf", "x/2 * (1 + erf(x/sqrt 2)), the exact form", geluErf, gradByInput("gelu_erf_grad")))
	OpSiLU    = register(unary("silu", "x * sigmoid(x)", silu, gradByInput("silu_grad")))
)

// Functions of one operand and a number.
var (
	OpScale     = register(scalar("scale", "x * Value", func(x, c float64) float64 { return x * c }, gradScale))
	OpAddScalar = register(scalar("add_scalar", "x + Value", func(x, c float64) float64 { return x + c }, gradAddScalar))
	OpPowScalar = register(scalar("pow_scalar", "x^Value", math.Pow, gradPowScalar))
)

// Gradients of activations.
var (
	OpTanhGrad    = register(unaryGrad("tanh_grad", "y", "dy * (1 - y*y)", func(y, dy float64) float64 { return dy * (1 - y*y) }))
	OpSigmoidGrad = register(unaryGrad("sigmoid_grad", "y", "dy * y * (1 - y)", func(y, dy float64) float64 { return dy * y * (1 - y) }))
	OpReLUGrad    = register(unaryGrad("relu_grad", "x", "dy where x > 0, else 0", reluGrad))
	OpGELUGrad    = register(unaryGrad("gelu_grad", "x", "dy times the derivative of gelu at x", geluGrad))
	OpGELUErfGrad = register(unaryGrad("gelu_erf_grad", "x", "dy times the derivative of gelu_erf at x", geluErfGrad))
	OpSiLUGrad    = register(unaryGrad("silu_grad", "x", "dy times the derivative of silu at x", siluGrad))
)

func sigmoid(x float64) float64 {
	if x < 0 {
		e := math.Exp(x)
		return e / (1 + e)
	}
	return 1 / (1 + math.Exp(-x))
}

func silu(x float64) float64 { return x * sigmoid(x) }

func siluGrad(x, dy float64) float64 {
	s := sigmoid(x)
	return dy * s * (1 + x*(1-s))
}

func reluGrad(x, dy float64) float64 {
	if x > 0 {
		return dy
	}
	return 0
}

// The constants of GELU's tanh form.
const (
	geluScale = 0.7978845608028654 // sqrt(2/pi)
	geluCube  = 0.044715
)

func gelu(x float64) float64 {
	// x/2 * (1 + tanh u) = x * sigmoid(2u), which keeps its precision in the negative tail.
	return x * sigmoid(2*geluScale*(x+geluCube*x*x*x))
}

func geluGrad(x, dy float64) float64 {
	s := sigmoid(2 * geluScale * (x + geluCube*x*x*x))
	return dy * (s + x*s*(1-s)*2*geluScale*(1+3*geluCube*x*x))
}

func geluErf(x float64) float64 { return x * 0.5 * math.Erfc(-x/math.Sqrt2) }

func geluErfGrad(x, dy float64) float64 {
	density := math.Exp(-x*x/2) / math.Sqrt(2*math.Pi)
	return dy * (0.5*math.Erfc(-x/math.Sqrt2) + x*density)
}

// OpSwiGLU is the gated activation of LLaMA's feed-forward layers.
var OpSwiGLU = register(Op{
	Name:    "swiglu",
	Doc:     "(gate, up) -> y, all of one shape: silu(gate) * up",
	InPlace: true,
	Grad:    gradSwiGLU,
	Infer: func(in []*Value, attrs any) ([]Type, error) {
		if err := arity(in, "gate", "up"); err != nil {
			return nil, err
		}
		return one(in[0].DType, in[0].Shape...), all(floats(in...), ofShape("up", in[1], in[0].Shape...))
	},
	Ref: func(n *Node, in []*Array) []*Array {
		y := NewArray(n.Out[0].Type)
		for i, g := range in[0].Data {
			y.Data[i] = silu(g) * in[1].Data[i]
		}
		return []*Array{y}
	},
})

// OpSwiGLUGrad is the gradient of OpSwiGLU.
var OpSwiGLUGrad = register(Op{
	Name: "swiglu_grad",
	Doc:  "(gate, up, dy) -> dgate, dup, all of one shape: silu_grad(gate, dy*up) and dy*silu(gate)",
	Infer: func(in []*Value, attrs any) ([]Type, error) {
		if err := arity(in, "gate", "up", "dy"); err != nil {
			return nil, err
		}
		s := in[0].Shape
		return []Type{in[0].Type, in[0].Type}, all(floats(in...), ofShape("up", in[1], s...), ofShape("dy", in[2], s...))
	},
	Ref: func(n *Node, in []*Array) []*Array {
		dg, du := NewArray(n.Out[0].Type), NewArray(n.Out[1].Type)
		for i, g := range in[0].Data {
			dg.Data[i] = siluGrad(g, in[2].Data[i]*in[1].Data[i])
			du.Data[i] = in[2].Data[i] * silu(g)
		}
		return []*Array{dg, du}
	},
})

// OpCast converts element types.
var OpCast = register(Op{
	Name: "cast",
	Doc:  "(x) -> y of type To and the same shape: rounded to nearest even; between floating-point types a gradient is cast back",
	Grad: gradCast,
	Infer: func(in []*Value, attrs any) ([]Type, error) {
		a, err := attrsAs[CastAttrs](attrs)
		if err := all(err, arity(in, "x")); err != nil {
			return nil, err
		}
		return one(a.To, in[0].Shape...), nil
	},
	Ref: func(n *Node, in []*Array) []*Array {
		y := NewArray(n.Out[0].Type)
		for i, x := range in[0].Data {
			y.Data[i] = Round(y.DType, x)
		}
		return []*Array{y}
	},
})

// OpEqual compares identifiers, for metrics.
var OpEqual = register(Op{
	Name: "equal",
	Doc:  "(a i32, b i32) -> y f32, all of one shape: 1 where equal, else 0; no gradient",
	Infer: func(in []*Value, attrs any) ([]Type, error) {
		if err := arity(in, "a", "b"); err != nil {
			return nil, err
		}
		err := all(ofDType("a", in[0], tensor.I32), ofDType("b", in[1], tensor.I32), ofShape("b", in[1], in[0].Shape...))
		return one(tensor.F32, in[0].Shape...), err
	},
	Ref: func(n *Node, in []*Array) []*Array {
		y := NewArray(n.Out[0].Type)
		for i, a := range in[0].Data {
			if a == in[1].Data[i] {
				y.Data[i] = 1
			}
		}
		return []*Array{y}
	},
})

// OpAccumulate adds a contribution to an accumulator; the memory plan inserts it.
var OpAccumulate = register(Op{
	Name:    "accumulate",
	Doc:     "(acc, x) -> acc + x, all of one shape",
	InPlace: true,
	Infer: func(in []*Value, attrs any) ([]Type, error) {
		if err := arity(in, "acc", "x"); err != nil {
			return nil, err
		}
		return one(in[0].DType, in[0].Shape...), all(floats(in...), ofShape("x", in[1], in[0].Shape...))
	},
	Ref: func(n *Node, in []*Array) []*Array {
		y := NewArray(n.Out[0].Type)
		for i, a := range in[0].Data {
			y.Data[i] = a + in[1].Data[i]
		}
		return []*Array{y}
	},
})

// OpGradStore moves a gradient that some operation has made into its accumulator; the memory plan inserts it where
// the operation itself cannot accumulate.
var OpGradStore = register(gradStore())

func gradStore() Op {
	op := unary("grad_store", "a copy of x; the accumulating form adds x to what the result holds", func(x float64) float64 { return x }, nil)
	op.InPlace = false
	op.Accumulates = true
	return op
}

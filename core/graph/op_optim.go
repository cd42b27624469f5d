package graph

import (
	"math"

	"starling/core/tensor"
)

// Optimizer updates and the norm that clipping needs. They stand after the backward pass and have no gradient.

// SumSquaresBlock is the number of elements in one block of sum_squares.
const SumSquaresBlock = 4096

// Places in the table of hyper-parameters (f64[8]) of adamw.
const (
	HyperLR = iota
	HyperBeta1
	HyperBeta2
	HyperEps
	HyperWeightDecay
	HyperCorrection1 // 1 - beta1^t, t being 1 in the first step
	HyperCorrection2 // 1 - beta2^t
	HyperGradScale   // multiplies the gradient first
	HyperCount
)

// Places in the table of hyper-parameters (f64[8]) of sgd, where they differ from those of adamw.
const (
	HyperMomentum     = 1
	HyperDampening    = 2
	HyperSGDDecay     = 3
	HyperSGDFirstStep = 4 // 1 in the first step that is taken, else 0
)

// OpSumSquares computes the partial sums of a squared norm.
var OpSumSquares = register(Op{
	Name:  "sum_squares",
	Doc:   "(x) -> y f64[ceil(n/4096)]: for each block of 4096 elements of x, the sum of their squares in float64",
	Ref:   blockwise(func(sum, x float64) float64 { return sum + float64(x*x) }),
	Infer: inferBlocks,
})

// OpAdamW is a step of AdamW (Loshchilov and Hutter, 2019), as torch.optim.AdamW takes it.
var OpAdamW = register(Op{
	Name: "adamw",
	Doc: "(param, grad, m, v, hyper f64[8]) -> param, m, v, each result written over the input it renews. With g = grad * scale: " +
		"m += (1-beta1) * (g-m); v = beta2*v + (1-beta2)*g*g; param = param*(1 - lr*decay) - lr/correction1 * m / (sqrt(v)/sqrt(correction2) + eps). " +
		"hyper is lr, beta1, beta2, eps, decay, correction1, correction2, scale",
	InPlace: true,
	Ref:     refAdamW,
	Infer: func(in []*Value, attrs any) ([]Type, error) {
		_, err := attrsAs[AdamWAttrs](attrs)
		if err := all(err, arity(in, "param", "grad", "m", "v", "hyper")); err != nil {
			return nil, err
		}
		return inferUpdate(in, "grad", "m", "v")
	},
})

// OpSGD is a step of stochastic gradient descent, as torch.optim.SGD takes it.
var OpSGD = register(Op{
	Name: "sgd",
	Doc: "(param, grad, momentum?, hyper f64[8]) -> param, momentum?, each result written over the input it renews. " +
		"With g = grad * scale + decay*param: momentum = g in the first step, else mu*momentum + (1-dampening)*g; " +
		"d = momentum, or g + mu*momentum if Nesterov, or g without momentum; param -= lr*d. " +
		"hyper is lr, mu, dampening, decay, first step flag, 0, 0, scale",
	InPlace: true,
	Ref:     refSGD,
	Infer: func(in []*Value, attrs any) ([]Type, error) {
		a, err := attrsAs[SGDAttrs](attrs)
		if err != nil {
			return nil, err
		}
		if a.Momentum {
			if err := arity(in, "param", "grad", "momentum", "hyper"); err != nil {
				return nil, err
			}
			return inferUpdate(in, "grad", "momentum")
		}
		if err := arity(in, "param", "grad", "hyper"); err != nil {
			return nil, err
		}
		return inferUpdate(in, "grad")
	},
})

// inferUpdate is the rule of an update: param, then the named tensors like it, then hyper. The results are param and the state,
// which is all of the named tensors but the gradient.
func inferUpdate(in []*Value, names ...string) ([]Type, error) {
	param, hyper := in[0], in[len(in)-1]
	if err := all(floats(in[:len(in)-1]...), ofDType("hyper", hyper, tensor.F64), ofShape("hyper", hyper, HyperCount)); err != nil {
		return nil, err
	}
	out := []Type{param.Type}
	for i, name := range names {
		if err := ofShape(name, in[1+i], param.Shape...); err != nil {
			return nil, err
		}
		if i > 0 {
			out = append(out, in[1+i].Type)
		}
	}
	return out, nil
}

func refAdamW(n *Node, in []*Array) []*Array {
	h := in[4].Data
	p, m, v := NewArray(n.Out[0].Type), NewArray(n.Out[1].Type), NewArray(n.Out[2].Type)
	for i := range p.Data {
		g := in[1].Data[i] * h[HyperGradScale]
		m.Data[i] = in[2].Data[i] + (g-in[2].Data[i])*(1-h[HyperBeta1])
		v.Data[i] = in[3].Data[i]*h[HyperBeta2] + (1-h[HyperBeta2])*g*g
		denominator := math.Sqrt(v.Data[i])/math.Sqrt(h[HyperCorrection2]) + h[HyperEps]
		p.Data[i] = in[0].Data[i]*(1-h[HyperLR]*h[HyperWeightDecay]) - h[HyperLR]/h[HyperCorrection1]*m.Data[i]/denominator
	}
	return []*Array{p, m, v}
}

func refSGD(n *Node, in []*Array) []*Array {
	a, h := n.Attrs.(SGDAttrs), in[len(in)-1].Data
	var out []*Array
	for _, v := range n.Out {
		out = append(out, NewArray(v.Type))
	}
	for i, p := range in[0].Data {
		g := in[1].Data[i]*h[HyperGradScale] + h[HyperSGDDecay]*p
		if a.Momentum {
			buf := g
			if h[HyperSGDFirstStep] == 0 {
				buf = h[HyperMomentum]*in[2].Data[i] + (1-h[HyperDampening])*g
			}
			out[1].Data[i] = buf
			if a.Nesterov {
				g += h[HyperMomentum] * buf
			} else {
				g = buf
			}
		}
		out[0].Data[i] = p - h[HyperLR]*g
	}
	return out
}

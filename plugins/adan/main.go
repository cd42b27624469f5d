// Command adan is the Adan optimizer as a plugin (Xie et al., Adan: Adaptive Nesterov Momentum Algorithm, 2022).
package main

import (
	"math"

	"starling/sdk"
	"starling/sdk/vec"
)

func main() { sdk.Serve(&adan{}) }

type adan struct {
	betas      []float64
	eps, decay float64
}

func (*adan) Manifest() sdk.Manifest {
	return sdk.Manifest{
		Name:    "adan",
		Version: "1.0.0",
		Doc:     "Adan: adaptive Nesterov momentum (Xie et al., 2022); takes larger learning rates than AdamW",
		Hypers: []sdk.Hyper{
			sdk.Floats("betas", []float64{0.98, 0.92, 0.99}, "weights of the old averages of the gradient, of its change, and of the square").AtLeast(0).Below(1),
			sdk.Float("eps", 1e-8, "added to the root of the square").AtLeast(0),
			sdk.Float("weight_decay", 0, "decoupled weight decay, of parameters with two or more dimensions").AtLeast(0),
		},
		Optimizer: &sdk.OptimizerInfo{
			Granularity: sdk.Elementwise,
			State:       []sdk.Slot{sdk.State("m", 0), sdk.State("d", 0), sdk.State("v", 0), sdk.State("g", 0)},
		},
	}
}

func (a *adan) Setup(h sdk.Hypers) error {
	a.betas, a.eps, a.decay = h.Floats("betas"), h.Float("eps"), h.Float("weight_decay")
	return nil
}

// Step makes, with g' the gradient of the step before (in the first step: g) and k counting from 1,
//
//	m = β1·m + (1-β1)·g
//	d = β2·d + (1-β2)·(g-g')
//	v = β3·v + (1-β3)·(g + β2·(g-g'))²
//	p = (p - lr·(m/(1-β1^k) + β2·d/(1-β2^k)) / (√(v/(1-β3^k)) + eps)) / (1 + lr·decay)
func (a *adan) Step(t *sdk.Tensor) error {
	b1, b2, b3 := float32(a.betas[0]), float32(a.betas[1]), float32(a.betas[2])
	in1, in2, in3 := 1-b1, 1-b2, 1-b3
	k := t.Step + 1
	rateM := float32(t.Rate / (1 - power(a.betas[0], k)))
	rateD := float32(t.Rate * a.betas[1] / (1 - power(a.betas[1], k)))
	root := float32(1 / math.Sqrt(1-power(a.betas[2], k)))
	eps := float32(a.eps)
	p, g := t.Param, t.Grad
	m, d, v, old := t.State[0], t.State[1], t.State[2], t.State[3]
	p, m, d, v, old = p[:len(g)], m[:len(g)], d[:len(g)], v[:len(g)], old[:len(g)]
	first := t.Step == 0
	// Written with conversions where a product feeds a sum, so that no compiler fuses the two and the bits are the same everywhere.
	for i, gi := range g {
		change := gi - old[i]
		if first {
			change = 0
		}
		old[i] = gi
		m[i] = float32(b1*m[i]) + float32(in1*gi)
		d[i] = float32(b2*d[i]) + float32(in2*change)
		look := float32(b2*change) + gi
		v[i] = float32(b3*v[i]) + float32(float32(in3*look)*look)
		divisor := float32(root*float32(math.Sqrt(float64(v[i])))) + eps
		p[i] -= (float32(rateM*m[i]) + float32(rateD*d[i])) / divisor
	}
	if a.decay != 0 && len(t.Shape) >= 2 {
		vec.Scale(p, p, float32(1/(1+float64(t.Rate*a.decay))))
	}
	return nil
}

// power is b^n by squaring: products alone, which are the same bits on every processor.
func power(b float64, n int) float64 {
	r := 1.0
	for ; n > 0; n >>= 1 {
		if n&1 == 1 {
			r *= b
		}
		b *= b
	}
	return r
}

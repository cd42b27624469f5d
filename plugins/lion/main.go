// Command lion is the Lion optimizer as a plugin (Chen et al., Symbolic Discovery of Optimization Algorithms, 2023).
package main

import (
	"math"

	"starling/sdk"
	"starling/sdk/vec"
)

func main() { sdk.Serve(&lion{}) }

// lion keeps its hyper-parameters only: whatever lasts from step to step is state, which the runtime owns.
type lion struct {
	beta1, beta2, decay float32
}

func (*lion) Manifest() sdk.Manifest {
	return sdk.Manifest{
		Name:    "lion",
		Version: "1.0.0",
		Doc:     "Lion: the sign of a momentum (Chen et al., 2023); use a third to a tenth of AdamW's learning rate",
		Hypers: []sdk.Hyper{
			sdk.Floats("betas", []float64{0.9, 0.99}, "weights of the old momentum in the step and in the momentum itself").AtLeast(0).Below(1),
			sdk.Float("weight_decay", 0, "decoupled weight decay, of parameters with two or more dimensions").AtLeast(0),
		},
		Optimizer: &sdk.OptimizerInfo{
			Granularity: sdk.Elementwise,
			State:       []sdk.Slot{sdk.State("m", 0)},
		},
	}
}

func (l *lion) Setup(h sdk.Hypers) error {
	b := h.Floats("betas")
	l.beta1, l.beta2, l.decay = float32(b[0]), float32(b[1]), float32(h.Float("weight_decay"))
	return nil
}

// Step makes
//
//	p = p·(1 - lr·decay) - lr·sign(β1·m + (1-β1)·g)
//	m = β2·m + (1-β2)·g
func (l *lion) Step(t *sdk.Tensor) error {
	lr := float32(t.Rate)
	if l.decay != 0 && len(t.Shape) >= 2 {
		vec.Scale(t.Param, t.Param, 1-lr*l.decay)
	}
	m, g, p := t.State[0], t.Grad, t.Param
	// Written with conversions where a product feeds a sum, so that no compiler fuses the two and the bits are the same everywhere.
	in1, in2 := 1-l.beta1, 1-l.beta2
	p, m = p[:len(g)], m[:len(g)]
	for i, gi := range g {
		u := float32(l.beta1*m[i]) + float32(in1*gi)
		if u != 0 {
			// lr with u's sign, without a branch that nobody can predict
			p[i] -= math.Float32frombits(math.Float32bits(lr) | math.Float32bits(u)&(1<<31))
		}
		m[i] = float32(l.beta2*m[i]) + float32(in2*gi)
	}
	return nil
}

package main

import (
	"os"
	"path/filepath"
	"strings"

	"starling/core/tensor/detmath"
	"starling/sdk"
	"starling/sdk/vec"
)

// referencePrefix begins the names under which this program serves optimizers itself, so that measurements and tests of
// plugins need no other program. It does so only under such a name: a link to the program, made for the purpose.
const referencePrefix = "reference-"

// isReference reports whether this process was started as a plugin.
func isReference() bool {
	return os.Getenv(sdk.CookieKey) == sdk.CookieValue && strings.HasPrefix(filepath.Base(os.Args[0]), referencePrefix)
}

// serveReference serves the optimizer that the program's name asks for.
func serveReference() {
	if name := filepath.Base(os.Args[0]); name == referencePrefix+"idle" {
		sdk.Serve(idle{name})
	} else {
		sdk.Serve(&referenceAdamW{name: name})
	}
}

// idle leaves everything as it is: what remains is the cost of asking.
type idle struct{ name string }

func (o idle) Manifest() sdk.Manifest {
	return sdk.Manifest{Name: o.name, Version: "1.0.0", Doc: "does nothing", Optimizer: &sdk.OptimizerInfo{Granularity: sdk.Elementwise}}
}

func (idle) Setup(sdk.Hypers) error { return nil }

func (idle) Step(*sdk.Tensor) error { return nil }

// referenceAdamW is the built-in AdamW.
type referenceAdamW struct {
	name       string
	betas      []float64
	eps, decay float64
}

func (o *referenceAdamW) Manifest() sdk.Manifest {
	return sdk.Manifest{Name: o.name, Version: "1.0.0", Doc: "optim.adamw as a plugin", Hypers: []sdk.Hyper{
		sdk.Floats("betas", []float64{0.9, 0.999}, "").AtLeast(0).Below(1),
		sdk.Float("eps", 1e-8, "").AtLeast(0),
		sdk.Float("weight_decay", 0.01, "").AtLeast(0),
	}, Optimizer: &sdk.OptimizerInfo{Granularity: o.granularity(), State: []sdk.Slot{sdk.State("m", 0), sdk.State("v", 0)}}}
}

// granularity follows the name, so that both paths can be compared with the built-in optimizer.
func (o *referenceAdamW) granularity() sdk.Granularity {
	if strings.HasSuffix(o.name, "-whole") {
		return sdk.Whole
	}
	return sdk.Elementwise
}

func (o *referenceAdamW) Setup(h sdk.Hypers) error {
	o.betas, o.eps, o.decay = h.Floats("betas"), h.Float("eps"), h.Float("weight_decay")
	return nil
}

func (o *referenceAdamW) Step(t *sdk.Tensor) error {
	decay := o.decay
	if len(t.Shape) < 2 {
		decay = 0
	}
	vec.AdamW(t.Param, t.Grad, t.State[0], t.State[1], vec.AdamWParams{LR: t.Rate, Beta1: o.betas[0], Beta2: o.betas[1], Eps: o.eps, WeightDecay: decay,
		C1: 1 - detmath.PowInt(o.betas[0], t.Step+1), C2: 1 - detmath.PowInt(o.betas[1], t.Step+1), GradScale: 1})
	return nil
}

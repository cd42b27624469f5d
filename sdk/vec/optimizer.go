package vec

import "math"

// AdamWParams are the figures of one AdamW step, the same for a whole segment.
type AdamWParams struct {
	LR           float64
	Beta1, Beta2 float64
	Eps          float64
	WeightDecay  float64 // decoupled: p is first multiplied by 1 - LR·WeightDecay
	C1, C2       float64 // bias corrections 1 - Beta1**t and 1 - Beta2**t at step t = 1, 2, …
	GradScale    float64 // multiplies the gradient first; 1 for none
}

const (
	hGradScale = iota
	hLerp1
	hBeta2
	hLerp2
	hInvC2
	hEps
	hStep
	hDecay
)

// constants rounds to float32 what the step multiplies by.
func (a *AdamWParams) constants() [8]float32 {
	return [8]float32{
		hGradScale: float32(a.GradScale),
		hLerp1:     float32(1 - a.Beta1),
		hBeta2:     float32(a.Beta2),
		hLerp2:     float32(1 - a.Beta2),
		hInvC2:     float32(1 / math.Sqrt(a.C2)),
		hEps:       float32(a.Eps),
		hStep:      float32(a.LR / a.C1),
		hDecay:     float32(1 - float64(a.LR*a.WeightDecay)),
	}
}

// AdamW makes one step of AdamW, as torch.optim.AdamW defines it:
//
//	g = GradScale·g
//	m += (1-Beta1)·(g-m)
//	v = Beta2·v + (1-Beta2)·g²
//	p = (1-LR·WeightDecay)·p - LR/C1 · m / (√v/√C2 + Eps)
//
// p parameters and m, v moments are updated; the gradient g is only read.
func AdamW(p, g, m, v []float32, a AdamWParams) {
	same("AdamW", len(p), len(g), len(m), len(v))
	h := a.constants()
	adamW(p, g, m, v, &h)
}

// SGDParams are the figures of one SGD step, the same for a whole segment.
type SGDParams struct {
	LR          float64
	Momentum    float64
	Dampening   float64
	WeightDecay float64 // added to the gradient as WeightDecay·p
	GradScale   float64 // multiplies the gradient first; 1 for none
	Nesterov    bool
	First       bool // the first step, on which torch sets the momentum buffer to the gradient, undamped
}

const (
	sGradScale = iota
	sDecay
	sMomentum
	sIn
	sLR
)

func (s *SGDParams) constants() [8]float32 {
	in := float32(1 - s.Dampening)
	if s.First {
		in = 1
	}
	return [8]float32{
		sGradScale: float32(s.GradScale),
		sDecay:     float32(s.WeightDecay),
		sMomentum:  float32(s.Momentum),
		sIn:        in,
		sLR:        float32(s.LR),
	}
}

// SGD makes one step of stochastic gradient descent, as torch.optim.SGD defines
// it:
//
//	g = GradScale·g + WeightDecay·p
//	buf = Momentum·buf + (1-Dampening)·g
//	p -= LR·buf, or with Nesterov p -= LR·(g + Momentum·buf)
//
// Without momentum (Momentum 0) buf is not used and may be nil, and p -= LR·g.
func SGD(p, g, buf []float32, s SGDParams) {
	same("SGD", len(p), len(g))
	h := s.constants()
	if s.Momentum == 0 {
		sgd(p, g, &h)
		return
	}
	same("SGD", len(p), len(buf))
	if s.First {
		clear(buf)
	}
	if s.Nesterov {
		sgdNesterov(p, g, buf, &h)
	} else {
		sgdMomentum(p, g, buf, &h)
	}
}

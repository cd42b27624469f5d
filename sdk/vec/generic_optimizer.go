package vec

// adamWGeneric is one step; see AdamWParams.constants for h.
func adamWGeneric(p, g, m, v []float32, h *[8]float32) {
	for i := range p {
		gi := float32(g[i] * h[hGradScale])
		mi := fma32(h[hLerp1], gi-m[i], m[i])
		vi := fma32(float32(h[hLerp2]*gi), gi, float32(v[i]*h[hBeta2]))
		m[i], v[i] = mi, vi
		d := float32(sqrt32(vi)*h[hInvC2]) + h[hEps]
		p[i] = fma32(-h[hStep], mi/d, float32(p[i]*h[hDecay]))
	}
}

// sgdGeneric, sgdMomentumGeneric and sgdNesterovGeneric are one step; see
// SGDParams.constants for h.
func sgdGeneric(p, g []float32, h *[8]float32) {
	for i := range p {
		gi := fma32(h[sDecay], p[i], float32(g[i]*h[sGradScale]))
		p[i] = fma32(-h[sLR], gi, p[i])
	}
}

func sgdMomentumGeneric(p, g, buf []float32, h *[8]float32) {
	for i := range p {
		gi := fma32(h[sDecay], p[i], float32(g[i]*h[sGradScale]))
		b := fma32(h[sMomentum], buf[i], float32(h[sIn]*gi))
		buf[i] = b
		p[i] = fma32(-h[sLR], b, p[i])
	}
}

func sgdNesterovGeneric(p, g, buf []float32, h *[8]float32) {
	for i := range p {
		gi := fma32(h[sDecay], p[i], float32(g[i]*h[sGradScale]))
		b := fma32(h[sMomentum], buf[i], float32(h[sIn]*gi))
		buf[i] = b
		p[i] = fma32(-h[sLR], fma32(h[sMomentum], b, gi), p[i])
	}
}

package vec

// expSumGeneric writes e**((x-top)·scale) and adds it to lanes.
func expSumGeneric(lanes *[Lanes]float32, dst, x []float32, top, scale float32) {
	for i := range dst {
		e := exp32(float32((x[i] - top) * scale))
		dst[i] = e
		lanes[i%Lanes] += e
	}
}

// expShiftSumGeneric writes e**(x·scale - top) and adds it to lanes.
func expShiftSumGeneric(lanes *[Lanes]float32, dst, x []float32, scale, top float32) {
	for i := range dst {
		e := exp32(float32(x[i]*scale) - top)
		dst[i] = e
		lanes[i%Lanes] += e
	}
}

// attentionGradRowGeneric turns scores into probabilities and ds, the gradient of
// those, into that of the scores.
func attentionGradRowGeneric(p, ds []float32, scale, lse, delta float32) {
	for i := range p {
		p[i] = exp32(float32(p[i]*scale) - lse)
		ds[i] = float32((ds[i]-delta)*p[i]) * scale
	}
}

// expTotalGeneric adds e**(x-top) to lanes.
func expTotalGeneric(lanes *[Lanes]float32, x []float32, top float32) {
	for i, v := range x {
		lanes[i%Lanes] += exp32(v - top)
	}
}

// expScaleGeneric writes e**(x-lse)·scale.
func expScaleGeneric(dst, x []float32, lse, scale float32) {
	for i := range dst {
		dst[i] = exp32(x[i]-lse) * scale
	}
}

// softmaxGradGeneric writes scale·y·(dy-dot).
func softmaxGradGeneric(dst, y, dy []float32, dot, scale float32) {
	for i := range dst {
		dst[i] = float32(y[i]*scale) * (dy[i] - dot)
	}
}

func normGeneric(dst, x []float32, mean, rstd float32) {
	for i := range dst {
		dst[i] = (x[i] - mean) * rstd
	}
}

func channelNormGeneric(dst, x []float32, mean, scale, shift float32) {
	for i := range dst {
		dst[i] = float32((x[i]-mean)*scale) + shift
	}
}

func channelNormGradGeneric(dst, dy, x []float32, mean, shift, slope, scale float32) {
	for i := range dst {
		dst[i] = ((dy[i] - shift) - float32((x[i]-mean)*slope)) * scale
	}
}

func normScaleGeneric(dst, x, w []float32, mean, rstd float32) {
	for i := range dst {
		dst[i] = float32((x[i]-mean)*rstd) * w[i]
	}
}

func normAffineGeneric(dst, x, w, b []float32, mean, rstd float32) {
	for i := range dst {
		dst[i] = fma32(float32((x[i]-mean)*rstd), w[i], b[i])
	}
}

// normGradSumsGeneric adds dy to s and dy times the normalised x to t.
func normGradSumsGeneric(s, t *[Lanes]float32, dy, x []float32, mean, rstd float32) {
	for i := range x {
		s[i%Lanes] += dy[i]
		t[i%Lanes] = fma32(dy[i], float32((x[i]-mean)*rstd), t[i%Lanes])
	}
}

// normGradSumsScaledGeneric is normGradSumsGeneric with dy·w in place of dy.
func normGradSumsScaledGeneric(s, t *[Lanes]float32, dy, x, w []float32, mean, rstd float32) {
	for i := range x {
		g := float32(dy[i] * w[i])
		s[i%Lanes] += g
		t[i%Lanes] = fma32(g, float32((x[i]-mean)*rstd), t[i%Lanes])
	}
}

// normGradGeneric writes rstd·((dy-c1) - c2·xhat).
func normGradGeneric(dst, dy, x []float32, mean, rstd, c1, c2 float32) {
	for i := range dst {
		dst[i] = fma32(-c2, float32((x[i]-mean)*rstd), dy[i]-c1) * rstd
	}
}

// normGradScaledGeneric is normGradGeneric with dy·w in place of dy.
func normGradScaledGeneric(dst, dy, x, w []float32, mean, rstd, c1, c2 float32) {
	for i := range dst {
		dst[i] = fma32(-c2, float32((x[i]-mean)*rstd), float32(dy[i]*w[i])-c1) * rstd
	}
}

// normGradWeightGeneric adds dy times the normalised x to dw.
func normGradWeightGeneric(dw, dy, x []float32, mean, rstd float32) {
	for i := range dw {
		dw[i] = fma32(dy[i], float32((x[i]-mean)*rstd), dw[i])
	}
}

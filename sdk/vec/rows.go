package vec

import "math"

// Softmax sets dst to the softmax of scale·x; scale must be positive. A
// row that is all -Inf gives NaN.
func Softmax(dst, x []float32, scale float32) {
	same("Softmax", len(dst), len(x))
	top := MaxOf(x)
	Scale(dst, dst, 1/expSum(dst, x, top, scale))
}

// SoftmaxGrad sets dst[i] = scale·y[i]·(dy[i] - Σ y·dy), the gradient of
// Softmax with that scale, y being its result.
func SoftmaxGrad(dst, y, dy []float32, scale float32) {
	same("SoftmaxGrad", len(dst), len(y), len(dy))
	softmaxGrad(dst, y, dy, Dot(y, dy), scale)
}

// LogSumExp is log Σ e**x[i], shifted by the largest element so that it does not
// overflow: -Inf for an empty or all -Inf row.
func LogSumExp(x []float32) float32 {
	top := MaxOf(x)
	if math.IsInf(float64(top), 0) {
		return top
	}
	return top + log32(expTotal(x, top))
}

// ExpShift sets dst[i] = e**(x[i]·scale - top) and returns their sum: a piece of a softmax whose
// largest exponent is top.
func ExpShift(dst, x []float32, scale, top float32) (total float32) {
	same("ExpShift", len(dst), len(x))
	return expShiftSum(dst, x, scale, top)
}

// AttentionGrad turns a row of scores p into probabilities, p = e**(p·scale - lse), and ds, the
// gradient of those, into that of the scores, ds = (ds - delta)·p·scale, where delta is the sum over the
// whole row of probabilities times their gradients.
func AttentionGrad(p, ds []float32, scale, lse, delta float32) {
	same("AttentionGrad", len(p), len(ds))
	attentionGradRow(p, ds, scale, lse, delta)
}

// CrossEntropyGrad sets dst[j] = (e**(x[j]-lse) - [j = target])·scale: the
// gradient, times scale, of lse - x[target] by the logits x of a row, lse being
// LogSumExp(x).
func CrossEntropyGrad(dst, x []float32, lse float32, target int, scale float32) {
	same("CrossEntropyGrad", len(dst), len(x))
	at := float32((exp32(x[target]-lse) - 1) * scale)
	expScale(dst, x, lse, scale)
	dst[target] = at
}

// LayerNorm sets dst = (x-mean)·rstd·w + b, where mean is x's mean and rstd is
// 1/√(variance + eps), with the biased variance, and returns them for the gradient. w and b
// may be nil.
func LayerNorm(dst, x, w, b []float32, eps float32) (mean, rstd float32) {
	same("LayerNorm", len(dst), len(x))
	n := float32(len(x))
	mean = Sum(x) / n
	rstd = 1 / sqrt32(devSq(x, mean)/n+eps)
	normalize("LayerNorm", dst, x, w, b, mean, rstd)
	return mean, rstd
}

// RMSNorm sets dst = x·rstd·w, where rstd is 1/√(mean of squares + eps), and
// returns rstd for the gradient. w may be nil.
func RMSNorm(dst, x, w []float32, eps float32) (rstd float32) {
	same("RMSNorm", len(dst), len(x))
	rstd = 1 / sqrt32(Dot(x, x)/float32(len(x))+eps)
	normalize("RMSNorm", dst, x, w, nil, 0, rstd)
	return rstd
}

func normalize(name string, dst, x, w, b []float32, mean, rstd float32) {
	switch {
	case w != nil && b != nil:
		same(name, len(dst), len(w), len(b))
		normAffine(dst, x, w, b, mean, rstd)
	case w != nil:
		same(name, len(dst), len(w))
		normScale(dst, x, w, mean, rstd)
	default:
		norm(dst, x, mean, rstd)
		if b != nil {
			same(name, len(dst), len(b))
			add(dst, dst, b)
		}
	}
}

// LayerNormGrad sets dx to the gradient of LayerNorm by x, given dy by its
// result and its mean and rstd. w may be nil.
func LayerNormGrad(dx, dy, x, w []float32, mean, rstd float32) {
	same("LayerNormGrad", len(dx), len(dy), len(x))
	n := float32(len(x))
	s, t := normGradTotals("LayerNormGrad", dy, x, w, mean, rstd)
	normGradRow(dx, dy, x, w, mean, rstd, s/n, t/n)
}

// RMSNormGrad sets dx to the gradient of RMSNorm by x, given dy by its result
// and its rstd. w may be nil.
func RMSNormGrad(dx, dy, x, w []float32, rstd float32) {
	same("RMSNormGrad", len(dx), len(dy), len(x))
	_, t := normGradTotals("RMSNormGrad", dy, x, w, 0, rstd)
	normGradRow(dx, dy, x, w, 0, rstd, 0, t/float32(len(x)))
}

func normGradTotals(name string, dy, x, w []float32, mean, rstd float32) (s, t float32) {
	if w == nil {
		return normGradSums(dy, x, mean, rstd)
	}
	same(name, len(x), len(w))
	return normGradSumsScaled(dy, x, w, mean, rstd)
}

func normGradRow(dx, dy, x, w []float32, mean, rstd, c1, c2 float32) {
	if w == nil {
		normGrad(dx, dy, x, mean, rstd, c1, c2)
	} else {
		normGradScaled(dx, dy, x, w, mean, rstd, c1, c2)
	}
}

// LayerNormGradParams adds one row's gradients by weight and bias: dw += dy·xhat
// by a fused multiply-add, db += dy. Rows must be added in ascending order. dw or
// db may be nil.
func LayerNormGradParams(dw, db, dy, x []float32, mean, rstd float32) {
	same("LayerNormGradParams", len(dy), len(x))
	if dw != nil {
		same("LayerNormGradParams", len(dy), len(dw))
		normGradWeight(dw, dy, x, mean, rstd)
	}
	if db != nil {
		AddTo(db, dy)
	}
}

// RMSNormGradParams adds one row's gradient by the weight: dw += dy·x·rstd.
func RMSNormGradParams(dw, dy, x []float32, rstd float32) {
	LayerNormGradParams(dw, nil, dy, x, 0, rstd)
}

// ChannelNorm sets dst[i] = (x[i]-mean)·scale + shift, each operation rounded.
func ChannelNorm(dst, x []float32, mean, scale, shift float32) {
	same("ChannelNorm", len(dst), len(x))
	channelNorm(dst, x, mean, scale, shift)
}

// ChannelNormGrad sets dst[i] = (dy[i]-shift - (x[i]-mean)·slope)·scale, each operation rounded.
func ChannelNormGrad(dst, dy, x []float32, mean, shift, slope, scale float32) {
	same("ChannelNormGrad", len(dst), len(dy), len(x))
	channelNormGrad(dst, dy, x, mean, shift, slope, scale)
}

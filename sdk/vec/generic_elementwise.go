package vec

func addGeneric(dst, a, b []float32) {
	for i := range dst {
		dst[i] = a[i] + b[i]
	}
}

func subGeneric(dst, a, b []float32) {
	for i := range dst {
		dst[i] = a[i] - b[i]
	}
}

func mulGeneric(dst, a, b []float32) {
	for i := range dst {
		dst[i] = a[i] * b[i]
	}
}

func divGeneric(dst, a, b []float32) {
	for i := range dst {
		dst[i] = a[i] / b[i]
	}
}

func maximumGeneric(dst, a, b []float32) {
	for i := range dst {
		dst[i] = max32(a[i], b[i])
	}
}

func minimumGeneric(dst, a, b []float32) {
	for i := range dst {
		dst[i] = min32(a[i], b[i])
	}
}

func mulAddToGeneric(dst, a, b []float32) {
	for i := range dst {
		dst[i] = fma32(a[i], b[i], dst[i])
	}
}

func addScalarGeneric(dst, x []float32, s float32) {
	for i := range dst {
		dst[i] = x[i] + s
	}
}

func scaleGeneric(dst, x []float32, s float32) {
	for i := range dst {
		dst[i] = x[i] * s
	}
}

func axpyGeneric(dst, x []float32, s float32) {
	for i := range dst {
		dst[i] += float32(s * x[i])
	}
}

func negGeneric(dst, x []float32) {
	for i := range dst {
		dst[i] = -x[i]
	}
}

func absGeneric(dst, x []float32) {
	for i := range dst {
		dst[i] = abs32(x[i])
	}
}

func sqrtGeneric(dst, x []float32) {
	for i := range dst {
		dst[i] = sqrt32(x[i])
	}
}

func rsqrtGeneric(dst, x []float32) {
	for i := range dst {
		dst[i] = 1 / sqrt32(x[i])
	}
}

func expGeneric(dst, x []float32) {
	for i := range dst {
		dst[i] = exp32(x[i])
	}
}

func logGeneric(dst, x []float32) {
	for i := range dst {
		dst[i] = log32(x[i])
	}
}

func tanhGeneric(dst, x []float32) {
	for i := range dst {
		dst[i] = tanh32(x[i])
	}
}

func sigmoidGeneric(dst, x []float32) {
	for i := range dst {
		dst[i] = sigmoid32(x[i])
	}
}

func reluGeneric(dst, x []float32) {
	for i := range dst {
		v := x[i]
		if v < 0 {
			v = 0
		}
		dst[i] = v
	}
}

func geluGeneric(dst, x []float32) {
	for i := range dst {
		dst[i] = gelu32(x[i])
	}
}

func geluErfGeneric(dst, x []float32) {
	for i := range dst {
		dst[i] = geluErf32(x[i])
	}
}

func siluGeneric(dst, x []float32) {
	for i := range dst {
		dst[i] = silu32(x[i])
	}
}

func tanhGradGeneric(dst, y, dy []float32) {
	for i := range dst {
		dst[i] = dy[i] * fma32(-y[i], y[i], 1)
	}
}

func sigmoidGradGeneric(dst, y, dy []float32) {
	for i := range dst {
		dst[i] = dy[i] * float32(y[i]*(1-y[i]))
	}
}

func reluGradGeneric(dst, x, dy []float32) {
	for i := range dst {
		v := dy[i]
		if x[i] <= 0 {
			v = 0
		}
		dst[i] = v
	}
}

func geluGradGeneric(dst, x, dy []float32) {
	for i := range dst {
		dst[i] = dy[i] * geluSlope(x[i])
	}
}

func geluErfGradGeneric(dst, x, dy []float32) {
	for i := range dst {
		dst[i] = dy[i] * geluErfSlope(x[i])
	}
}

func siluGradGeneric(dst, x, dy []float32) {
	for i := range dst {
		dst[i] = dy[i] * siluSlope(x[i])
	}
}

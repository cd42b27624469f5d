package vec

// addRoundGeneric rounds a sum twice: to float32 and then to bfloat16.
func addRoundGeneric(dst []uint16, a, b []float32) {
	for i := range dst {
		dst[i] = roundBF16(a[i] + b[i])
	}
}

func addWideGeneric(dst []float32, src []uint16) {
	for i := range dst {
		dst[i] += widenBF16(src[i])
	}
}

func addBF16Generic(dst, a, b []uint16) {
	for i := range dst {
		dst[i] = roundBF16(widenBF16(a[i]) + widenBF16(b[i]))
	}
}

func subBF16Generic(dst, a, b []uint16) {
	for i := range dst {
		dst[i] = roundBF16(widenBF16(a[i]) - widenBF16(b[i]))
	}
}

func mulBF16Generic(dst, a, b []uint16) {
	for i := range dst {
		dst[i] = roundBF16(widenBF16(a[i]) * widenBF16(b[i]))
	}
}

func reluBF16Generic(dst, x []uint16) {
	for i, v := range x {
		if widenBF16(v) < 0 {
			v = 0
		}
		dst[i] = roundBF16(widenBF16(v))
	}
}

func geluBF16Generic(dst, x []uint16) {
	for i := range dst {
		dst[i] = roundBF16(gelu32(widenBF16(x[i])))
	}
}

func geluErfBF16Generic(dst, x []uint16) {
	for i := range dst {
		dst[i] = roundBF16(geluErf32(widenBF16(x[i])))
	}
}

func siluBF16Generic(dst, x []uint16) {
	for i := range dst {
		dst[i] = roundBF16(silu32(widenBF16(x[i])))
	}
}

func reluGradBF16Generic(dst, x, dy []uint16) {
	for i := range dst {
		v := dy[i]
		if widenBF16(x[i]) <= 0 {
			v = 0
		}
		dst[i] = roundBF16(widenBF16(v))
	}
}

func geluGradBF16Generic(dst, x, dy []uint16) {
	for i := range dst {
		dst[i] = roundBF16(widenBF16(dy[i]) * geluSlope(widenBF16(x[i])))
	}
}

func geluErfGradBF16Generic(dst, x, dy []uint16) {
	for i := range dst {
		dst[i] = roundBF16(widenBF16(dy[i]) * geluErfSlope(widenBF16(x[i])))
	}
}

func siluGradBF16Generic(dst, x, dy []uint16) {
	for i := range dst {
		dst[i] = roundBF16(widenBF16(dy[i]) * siluSlope(widenBF16(x[i])))
	}
}

package vec

// Operations on bfloat16 slices. Each element is widened, computed as the function of the same name on float32 slices computes it, and
// rounded to nearest even: the same bits as three passes.

// AddBF16 sets dst[i] = a[i] + b[i].
func AddBF16(dst, a, b []uint16) {
	same("AddBF16", len(dst), len(a), len(b))
	addBF16(dst, a, b)
}

// SubBF16 sets dst[i] = a[i] - b[i].
func SubBF16(dst, a, b []uint16) {
	same("SubBF16", len(dst), len(a), len(b))
	subBF16(dst, a, b)
}

// MulBF16 sets dst[i] = a[i] · b[i].
func MulBF16(dst, a, b []uint16) {
	same("MulBF16", len(dst), len(a), len(b))
	mulBF16(dst, a, b)
}

// AddWide sets dst[i] += src[i], in float32.
func AddWide(dst []float32, src []uint16) {
	same("AddWide", len(dst), len(src))
	addWide(dst, src)
}

// AddRound sets dst[i] to a[i] + b[i], a float32 that is then rounded.
func AddRound(dst []uint16, a, b []float32) {
	same("AddRound", len(dst), len(a), len(b))
	addRound(dst, a, b)
}

// ReluBF16 is Relu.
func ReluBF16(dst, x []uint16) {
	same("ReluBF16", len(dst), len(x))
	reluBF16(dst, x)
}

// ReluGradBF16 is ReluGrad.
func ReluGradBF16(dst, x, dy []uint16) {
	same("ReluGradBF16", len(dst), len(x), len(dy))
	reluGradBF16(dst, x, dy)
}

// GeluBF16 is Gelu.
func GeluBF16(dst, x []uint16) {
	same("GeluBF16", len(dst), len(x))
	geluBF16(dst, x)
}

// GeluGradBF16 is GeluGrad.
func GeluGradBF16(dst, x, dy []uint16) {
	same("GeluGradBF16", len(dst), len(x), len(dy))
	geluGradBF16(dst, x, dy)
}

// GeluErfBF16 is GeluErf.
func GeluErfBF16(dst, x []uint16) {
	same("GeluErfBF16", len(dst), len(x))
	geluErfBF16(dst, x)
}

// GeluErfGradBF16 is GeluErfGrad.
func GeluErfGradBF16(dst, x, dy []uint16) {
	same("GeluErfGradBF16", len(dst), len(x), len(dy))
	geluErfGradBF16(dst, x, dy)
}

// SiluBF16 is Silu.
func SiluBF16(dst, x []uint16) {
	same("SiluBF16", len(dst), len(x))
	siluBF16(dst, x)
}

// SiluGradBF16 is SiluGrad.
func SiluGradBF16(dst, x, dy []uint16) {
	same("SiluGradBF16", len(dst), len(x), len(dy))
	siluGradBF16(dst, x, dy)
}

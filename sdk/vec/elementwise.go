package vec

import "fmt"

// same panics unless all lengths equal n.
func same(name string, n int, lens ...int) {
	for _, l := range lens {
		if l != n {
			panic(fmt.Sprintf("vec.%s: slices of lengths %d and %d; all must be equal", name, n, l))
		}
	}
}

// Fill sets every element of dst to v.
func Fill(dst []float32, v float32) {
	if len(dst) == 0 {
		return
	}
	dst[0] = v
	for n := 1; n < len(dst); n *= 2 {
		copy(dst[n:], dst[:n])
	}
}

// Add sets dst[i] = a[i] + b[i].
func Add(dst, a, b []float32) {
	same("Add", len(dst), len(a), len(b))
	add(dst, a, b)
}

// AddTo sets dst[i] += src[i].
func AddTo(dst, src []float32) {
	same("AddTo", len(dst), len(src))
	add(dst, dst, src)
}

// Sub sets dst[i] = a[i] - b[i].
func Sub(dst, a, b []float32) {
	same("Sub", len(dst), len(a), len(b))
	sub(dst, a, b)
}

// Mul sets dst[i] = a[i] · b[i].
func Mul(dst, a, b []float32) {
	same("Mul", len(dst), len(a), len(b))
	mul(dst, a, b)
}

// Div sets dst[i] = a[i] / b[i].
func Div(dst, a, b []float32) {
	same("Div", len(dst), len(a), len(b))
	div(dst, a, b)
}

// Max sets dst[i] to the larger of a[i] and b[i], NaN if either is; of zeros of
// both signs it takes b[i].
func Max(dst, a, b []float32) {
	same("Max", len(dst), len(a), len(b))
	maximum(dst, a, b)
}

// Min sets dst[i] to the smaller of a[i] and b[i], NaN if either is; of zeros of
// both signs it takes b[i].
func Min(dst, a, b []float32) {
	same("Min", len(dst), len(a), len(b))
	minimum(dst, a, b)
}

// MulAddTo sets dst[i] = a[i]·b[i] + dst[i] with one rounding.
func MulAddTo(dst, a, b []float32) {
	same("MulAddTo", len(dst), len(a), len(b))
	mulAddTo(dst, a, b)
}

// AddScalar sets dst[i] = x[i] + s.
func AddScalar(dst, x []float32, s float32) {
	same("AddScalar", len(dst), len(x))
	addScalar(dst, x, s)
}

// Scale sets dst[i] = x[i] · s.
func Scale(dst, x []float32, s float32) {
	same("Scale", len(dst), len(x))
	scale(dst, x, s)
}

// Axpy sets dst[i] += s·x[i], the product and the sum each rounded.
func Axpy(dst, x []float32, s float32) {
	same("Axpy", len(dst), len(x))
	axpy(dst, x, s)
}

// Neg sets dst[i] = -x[i].
func Neg(dst, x []float32) {
	same("Neg", len(dst), len(x))
	neg(dst, x)
}

// Abs sets dst[i] = |x[i]|.
func Abs(dst, x []float32) {
	same("Abs", len(dst), len(x))
	abs(dst, x)
}

// Square sets dst[i] = x[i]².
func Square(dst, x []float32) {
	same("Square", len(dst), len(x))
	mul(dst, x, x)
}

// Sqrt sets dst[i] = √x[i].
func Sqrt(dst, x []float32) {
	same("Sqrt", len(dst), len(x))
	sqrt(dst, x)
}

// Rsqrt sets dst[i] = 1/√x[i], the root and the quotient each rounded.
func Rsqrt(dst, x []float32) {
	same("Rsqrt", len(dst), len(x))
	rsqrt(dst, x)
}

// Exp sets dst[i] = e**x[i], within 1.5 units in the last place, subnormal
// results included.
func Exp(dst, x []float32) {
	same("Exp", len(dst), len(x))
	exp(dst, x)
}

// Log sets dst[i] to the natural logarithm of x[i], within 1.5 units in the last
// place: -Inf at ±0, NaN below.
func Log(dst, x []float32) {
	same("Log", len(dst), len(x))
	log(dst, x)
}

// Tanh sets dst[i] = tanh x[i], within 2 units in the last place.
func Tanh(dst, x []float32) {
	same("Tanh", len(dst), len(x))
	tanh(dst, x)
}

// TanhGrad sets dst[i] = dy[i]·(1-y[i]²), y being Tanh's result.
func TanhGrad(dst, y, dy []float32) {
	same("TanhGrad", len(dst), len(y), len(dy))
	tanhGrad(dst, y, dy)
}

// Sigmoid sets dst[i] = 1/(1+e**-x[i]).
func Sigmoid(dst, x []float32) {
	same("Sigmoid", len(dst), len(x))
	sigmoid(dst, x)
}

// SigmoidGrad sets dst[i] = dy[i]·y[i]·(1-y[i]), y being Sigmoid's result.
func SigmoidGrad(dst, y, dy []float32) {
	same("SigmoidGrad", len(dst), len(y), len(dy))
	sigmoidGrad(dst, y, dy)
}

// Relu sets dst[i] to 0 where x[i] < 0, else to x[i]; NaN and -0 pass.
func Relu(dst, x []float32) {
	same("Relu", len(dst), len(x))
	relu(dst, x)
}

// ReluGrad sets dst[i] to 0 where x[i] ≤ 0, else to dy[i]. Relu's result may
// stand for its argument.
func ReluGrad(dst, x, dy []float32) {
	same("ReluGrad", len(dst), len(x), len(dy))
	reluGrad(dst, x, dy)
}

// Gelu sets dst[i] to x(1+tanh(√(2/π)(x+0.044715x³)))/2, the tanh form of the
// Gaussian error linear unit.
func Gelu(dst, x []float32) {
	same("Gelu", len(dst), len(x))
	gelu(dst, x)
}

// GeluGrad sets dst[i] to dy[i] times the slope of Gelu at x[i].
func GeluGrad(dst, x, dy []float32) {
	same("GeluGrad", len(dst), len(x), len(dy))
	geluGrad(dst, x, dy)
}

// GeluErf sets dst[i] to x·Φ(x), the exact Gaussian error linear unit.
func GeluErf(dst, x []float32) {
	same("GeluErf", len(dst), len(x))
	geluErf(dst, x)
}

// GeluErfGrad sets dst[i] to dy[i] times the slope of GeluErf at x[i].
func GeluErfGrad(dst, x, dy []float32) {
	same("GeluErfGrad", len(dst), len(x), len(dy))
	geluErfGrad(dst, x, dy)
}

// Silu sets dst[i] = x[i]·sigmoid(x[i]).
func Silu(dst, x []float32) {
	same("Silu", len(dst), len(x))
	silu(dst, x)
}

// SiluGrad sets dst[i] to dy[i] times the slope of Silu at x[i].
func SiluGrad(dst, x, dy []float32) {
	same("SiluGrad", len(dst), len(x), len(dy))
	siluGrad(dst, x, dy)
}

// BF16ToF32 widens bfloat16 bit patterns, exactly.
func BF16ToF32(dst []float32, src []uint16) {
	same("BF16ToF32", len(dst), len(src))
	bf16ToF32(dst, src)
}

// F32ToBF16 rounds to bfloat16, to nearest even.
func F32ToBF16(dst []uint16, src []float32) {
	same("F32ToBF16", len(dst), len(src))
	f32ToBF16(dst, src)
}

// F16ToF32 widens IEEE 754 half-precision bit patterns, exactly.
func F16ToF32(dst []float32, src []uint16) {
	same("F16ToF32", len(dst), len(src))
	f16ToF32(dst, src)
}

// F32ToF16 rounds to IEEE 754 half precision, to nearest even.
func F32ToF16(dst []uint16, src []float32) {
	same("F32ToF16", len(dst), len(src))
	f32ToF16(dst, src)
}

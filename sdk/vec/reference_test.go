package vec

import (
	"math"
	"math/rand/v2"
	"testing"
)

// near fails unless got is within tol of want, relative to the larger of |want|
// and 1.
func near(t *testing.T, what string, got float32, want, tol float64) {
	t.Helper()
	if !(math.Abs(float64(got)-want) <= tol*max(1, math.Abs(want))) {
		t.Errorf("%s = %v, want %v", what, got, want)
	}
}

// slopeOf is the central difference of f at x.
func slopeOf(f func(float64) float64, x float64) float64 {
	const h = 1e-5
	return (f(x+h) - f(x-h)) / (2 * h)
}

func TestActivationsAndSlopes(t *testing.T) {
	sigmoid := func(x float64) float64 { return 1 / (1 + math.Exp(-x)) }
	for _, c := range []struct {
		name string
		f    func(dst, x []float32)
		grad func(dst, x, dy []float32)
		want func(float64) float64
		ofY  bool // the gradient takes the result, not the argument
	}{
		{"Tanh", Tanh, TanhGrad, math.Tanh, true},
		{"Sigmoid", Sigmoid, SigmoidGrad, sigmoid, true},
		{"Silu", Silu, SiluGrad, func(x float64) float64 { return x * sigmoid(x) }, false},
		{"Gelu", Gelu, GeluGrad, func(x float64) float64 {
			return 0.5 * x * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x)))
		}, false},
		{"GeluErf", GeluErf, GeluErfGrad, func(x float64) float64 { return 0.5 * x * (1 + math.Erf(x/math.Sqrt2)) }, false},
		{"Relu", Relu, ReluGrad, func(x float64) float64 { return max(0, x) }, false},
	} {
		for x := -12.0; x < 12; x += 0.037 {
			in := []float32{float32(x)}
			var y, g [1]float32
			c.f(y[:], in)
			near(t, c.name, y[0], c.want(float64(in[0])), 5e-7)
			arg := in
			if c.ofY {
				arg = y[:]
			}
			c.grad(g[:], arg, []float32{2})
			near(t, c.name+"Grad", g[0], 2*slopeOf(c.want, float64(in[0])), 2e-6)
		}
	}
}

func TestGatedUnitsAtInfinity(t *testing.T) {
	inf := float32(math.Inf(1))
	for _, f := range []func(dst, x []float32){Gelu, GeluErf, Silu} {
		y := []float32{inf, -inf}
		f(y, y)
		if y[0] != inf || y[1] != 0 {
			t.Errorf("at ±Inf: %v, want +Inf and 0", y)
		}
	}
	for _, f := range []func(dst, x, dy []float32){GeluGrad, GeluErfGrad, SiluGrad} {
		y := []float32{inf, -inf}
		f(y, y, []float32{3, 3})
		if y[0] != 3 || y[1] != 0 {
			t.Errorf("slopes at ±Inf times 3: %v, want 3 and 0", y)
		}
	}
}

// numericalRowGrad is the gradient of a loss by a row, by central differences in
// float64.
func numericalRowGrad(x []float32, loss func(x []float64) float64) []float64 {
	p := make([]float64, len(x))
	for i, v := range x {
		p[i] = float64(v)
	}
	g := make([]float64, len(x))
	for i := range p {
		v := p[i]
		g[i] = slopeOf(func(u float64) float64 { p[i] = u; return loss(p) }, v)
		p[i] = v
	}
	return g
}

func TestRowKernels(t *testing.T) {
	r := rand.New(rand.NewPCG(23, 24))
	for _, n := range []int{1, 2, 7, 33, 96, 257} {
		x, dy, w, b := normals(r, n), normals(r, n), normals(r, n), normals(r, n)
		y, dx := make([]float32, n), make([]float32, n)

		const scale = 0.7
		softmax := func(x []float64) []float64 {
			var sum float64
			p := make([]float64, n)
			for i, v := range x {
				p[i] = math.Exp(scale * v)
				sum += p[i]
			}
			for i := range p {
				p[i] /= sum
			}
			return p
		}
		weighted := func(y []float64) (s float64) {
			for i, v := range y {
				s += v * float64(dy[i])
			}
			return s
		}
		Softmax(y, x, scale)
		SoftmaxGrad(dx, y, dy, scale)
		want := softmax(numbers(x))
		wantGrad := numericalRowGrad(x, func(x []float64) float64 { return weighted(softmax(x)) })
		for i := range y {
			near(t, "Softmax", y[i], want[i], 1e-6)
			near(t, "SoftmaxGrad", dx[i], wantGrad[i], 1e-5)
		}

		lse := func(x []float64) float64 {
			var sum float64
			for _, v := range x {
				sum += math.Exp(v)
			}
			return math.Log(sum)
		}
		near(t, "LogSumExp", LogSumExp(x), lse(numbers(x)), 1e-6)
		target := n / 2
		CrossEntropyGrad(dx, x, LogSumExp(x), target, 3)
		wantGrad = numericalRowGrad(x, func(x []float64) float64 { return 3 * (lse(x) - x[target]) })
		for i := range dx {
			near(t, "CrossEntropyGrad", dx[i], wantGrad[i], 1e-5)
		}

		const eps = 1e-3 // large, since a row of one element has no variance
		norm := func(x []float64, centred bool) []float64 {
			var mean, sq float64
			if centred {
				for _, v := range x {
					mean += v / float64(n)
				}
			}
			for _, v := range x {
				sq += (v - mean) * (v - mean) / float64(n)
			}
			y := make([]float64, n)
			for i, v := range x {
				y[i] = (v - mean) / math.Sqrt(sq+eps) * float64(w[i])
				if centred {
					y[i] += float64(b[i])
				}
			}
			return y
		}
		mean, rstd := LayerNorm(y, x, w, b, eps)
		LayerNormGrad(dx, dy, x, w, mean, rstd)
		want = norm(numbers(x), true)
		wantGrad = numericalRowGrad(x, func(x []float64) float64 { return weighted(norm(x, true)) })
		for i := range y {
			near(t, "LayerNorm", y[i], want[i], 2e-6)
			near(t, "LayerNormGrad", dx[i], wantGrad[i], 2e-4)
		}
		dw, db := make([]float32, n), make([]float32, n)
		LayerNormGradParams(dw, db, dy, x, mean, rstd)
		for i := range dw {
			near(t, "weight's gradient", dw[i], float64(dy[i])*(want[i]-float64(b[i]))/float64(w[i]), 2e-5)
			near(t, "bias's gradient", db[i], float64(dy[i]), 0)
		}

		rstd = RMSNorm(y, x, w, eps)
		RMSNormGrad(dx, dy, x, w, rstd)
		want = norm(numbers(x), false)
		wantGrad = numericalRowGrad(x, func(x []float64) float64 { return weighted(norm(x, false)) })
		for i := range y {
			near(t, "RMSNorm", y[i], want[i], 2e-6)
			near(t, "RMSNormGrad", dx[i], wantGrad[i], 2e-4)
		}
	}
}

func numbers(x []float32) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = float64(v)
	}
	return y
}

func TestReductions(t *testing.T) {
	r := rand.New(rand.NewPCG(25, 26))
	x, y := normals(r, 1003), normals(r, 1003)
	var sum, dot, sq float64
	top := math.Inf(-1)
	for i := range x {
		sum += float64(x[i])
		dot += float64(x[i]) * float64(y[i])
		sq += float64(x[i]) * float64(x[i])
		top = max(top, float64(x[i]))
	}
	near(t, "Sum", Sum(x), sum, 1e-5)
	near(t, "Dot", Dot(x, y), dot, 1e-5)
	near(t, "MaxOf", MaxOf(x), top, 0)
	if got := SumSq64(x); math.Abs(got-sq) > 1e-12*sq {
		t.Errorf("SumSq64 = %v, want %v", got, sq)
	}
	if !AllFinite(x) {
		t.Error("AllFinite denies finite values")
	}
	for _, v := range []float32{float32(math.Inf(1)), float32(math.Inf(-1)), float32(math.NaN())} {
		for _, i := range []int{0, 31, 32, 500, 1002} {
			z := append([]float32(nil), x...)
			z[i] = v
			if AllFinite(z) {
				t.Errorf("AllFinite overlooks %v at %d", v, i)
			}
		}
	}
	dst := []float32{1, 2}
	SumRowsTo(dst, []float32{10, 20, 99, 30, 40, 99, 50, 60}, 3, 3)
	if dst[0] != 91 || dst[1] != 122 {
		t.Errorf("SumRowsTo = %v, want [91 122]", dst)
	}
}

// TestOptimizers runs ten steps against PyTorch's formulas in float64.
func TestOptimizers(t *testing.T) {
	r := rand.New(rand.NewPCG(27, 28))
	const n = 41
	p, m, v := normals(r, n), make([]float32, n), make([]float32, n)
	p64, m64, v64 := numbers(p), make([]float64, n), make([]float64, n)
	for step := 1; step <= 10; step++ {
		g := normals(r, n)
		a := AdamWParams{LR: 0.01, Beta1: 0.9, Beta2: 0.99, Eps: 1e-8, WeightDecay: 0.1, GradScale: 0.5,
			C1: 1 - math.Pow(0.9, float64(step)), C2: 1 - math.Pow(0.99, float64(step))}
		AdamW(p, g, m, v, a)
		for i := range p64 {
			gi := 0.5 * float64(g[i])
			p64[i] *= 1 - a.LR*a.WeightDecay
			m64[i] += (1 - a.Beta1) * (gi - m64[i])
			v64[i] = a.Beta2*v64[i] + (1-a.Beta2)*gi*gi
			p64[i] -= a.LR / a.C1 * m64[i] / (math.Sqrt(v64[i])/math.Sqrt(a.C2) + a.Eps)
			near(t, "AdamW's parameter", p[i], p64[i], 2e-6)
			near(t, "AdamW's moment", m[i], m64[i], 1e-6)
		}
	}
	for _, s := range []SGDParams{
		{LR: 0.1, GradScale: 1}, {LR: 0.1, WeightDecay: 0.1, GradScale: 2}, {LR: 0.1, Momentum: 0.9, GradScale: 1},
		{LR: 0.1, Momentum: 0.9, Dampening: 0.3, WeightDecay: 0.1, GradScale: 1}, {LR: 0.1, Momentum: 0.9, GradScale: 1, Nesterov: true},
	} {
		p, buf := normals(r, n), normals(r, n) // the first step ignores what is in buf
		p64, buf64 := numbers(p), make([]float64, n)
		for step := range 5 {
			s.First = step == 0
			g := normals(r, n)
			SGD(p, g, buf, s)
			for i := range p64 {
				gi := s.GradScale*float64(g[i]) + s.WeightDecay*p64[i]
				if s.Momentum != 0 {
					if s.First {
						buf64[i] = gi
					} else {
						buf64[i] = s.Momentum*buf64[i] + (1-s.Dampening)*gi
					}
					if s.Nesterov {
						gi += s.Momentum * buf64[i]
					} else {
						gi = buf64[i]
					}
				}
				p64[i] -= s.LR * gi
				near(t, "SGD's parameter", p[i], p64[i], 2e-6)
			}
		}
	}
}

func TestConversions(t *testing.T) {
	for _, c := range []struct {
		in        float32
		bf16, f16 uint16
	}{
		{0, 0, 0}, {float32(math.Copysign(0, -1)), 0x8000, 0x8000}, {1, 0x3f80, 0x3c00}, {-2, 0xc000, 0xc000},
		{1.00390625, 0x3f80, 0x3c04}, {1.01171875, 0x3f82, 0x3c0c}, // ties of bfloat16 go to even
		{65504, 0x4780, 0x7bff}, {65519.996, 0x4780, 0x7bff}, {65520, 0x4780, 0x7c00},
		{0x1p-24, 0x3380, 0x0001}, {0x1p-25, 0x3300, 0}, {0x1.8p-24, 0x33c0, 0x0002}, {0x1.ffcp-15, 0x3880, 0x0400},
		{float32(math.Inf(-1)), 0xff80, 0xfc00}, {math.MaxFloat32, 0x7f80, 0x7c00},
	} {
		var h [1]uint16
		if F32ToBF16(h[:], []float32{c.in}); h[0] != c.bf16 {
			t.Errorf("F32ToBF16(%v) = %#04x, want %#04x", c.in, h[0], c.bf16)
		}
		if F32ToF16(h[:], []float32{c.in}); h[0] != c.f16 {
			t.Errorf("F32ToF16(%v) = %#04x, want %#04x", c.in, h[0], c.f16)
		}
	}
	// Every 16-bit pattern that is no NaN survives the way to float32 and back.
	all, wide, back := make([]uint16, 1<<16), make([]float32, 1<<16), make([]uint16, 1<<16)
	for i := range all {
		all[i] = uint16(i)
	}
	eachSet(t, func(t *testing.T) {
		F16ToF32(wide, all)
		F32ToF16(back, wide)
		for i := range all {
			if back[i] != all[i] && wide[i] == wide[i] {
				t.Fatalf("half-precision %#04x became %v and %#04x", all[i], wide[i], back[i])
			}
		}
		BF16ToF32(wide, all)
		F32ToBF16(back, wide)
		for i := range all {
			if back[i] != all[i] && wide[i] == wide[i] {
				t.Fatalf("bfloat16 %#04x became %v and %#04x", all[i], wide[i], back[i])
			}
		}
	})
}

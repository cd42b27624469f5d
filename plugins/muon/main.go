// Command muon is the Muon optimizer as a plugin (Jordan et al., 2024): momentum, orthogonalised by a Newton–Schulz iteration
// in float32.
package main

import (
	"math"

	"starling/sdk"
	"starling/sdk/vec"
)

func main() { sdk.Serve(&muon{}) }

type muon struct {
	momentum, decay float32
	eps             float64
	a, b, c         float32
	steps           int
	nesterov        bool
	matchRMS        bool
}

func (*muon) Manifest() sdk.Manifest {
	return sdk.Manifest{
		Name:    "muon",
		Version: "1.0.0",
		Doc:     "Muon: orthogonalised momentum for the matrices inside a model; give embeddings, the output layer and vectors to AdamW",
		Hypers: []sdk.Hyper{
			sdk.Float("momentum", 0.95, "weight of the old momentum").AtLeast(0).Below(1),
			sdk.Bool("nesterov", true, "look one step ahead"),
			sdk.Float("weight_decay", 0.1, "decoupled weight decay").AtLeast(0),
			sdk.Int("ns_steps", 5, "steps of the Newton–Schulz iteration").AtLeast(1).AtMost(100),
			sdk.Floats("ns_coefficients", []float64{3.4445, -4.7750, 2.0315}, "coefficients of the iteration's polynomial"),
			sdk.Float("eps", 1e-7, "smallest norm that a momentum is divided by").AtLeast(0),
			sdk.String("adjust_lr", "original", "how the learning rate follows the matrix's shape").OneOf("original", "match_rms_adamw"),
		},
		Optimizer: &sdk.OptimizerInfo{
			Granularity: sdk.Whole,
			State:       []sdk.Slot{sdk.State("momentum", 0)},
			MinDims:     2,
		},
	}
}

func (o *muon) Setup(h sdk.Hypers) error {
	k := h.Floats("ns_coefficients")
	*o = muon{momentum: float32(h.Float("momentum")), decay: float32(h.Float("weight_decay")), eps: h.Float("eps"),
		a: float32(k[0]), b: float32(k[1]), c: float32(k[2]), steps: h.Int("ns_steps"), nesterov: h.Bool("nesterov"),
		matchRMS: h.String("adjust_lr") == "match_rms_adamw"}
	return nil
}

// Step makes, as torch.optim.Muon does with matrices in float32,
//
//	m = μ·m + (1-μ)·g
//	u = (1-μ)·g + μ·m, or m without Nesterov
//	p = p·(1 - lr·decay) - lr·scale·orthogonal(u)
func (o *muon) Step(t *sdk.Tensor) error {
	m, g, p := t.State[0], t.Grad, t.Param
	lerp(m, m, g, 1-o.momentum)
	u := m
	if o.nesterov {
		lerp(g, g, m, o.momentum)
		u = g
	}
	rows := t.Shape[0]
	cols := len(p) / max(1, rows)
	if len(p) == 0 {
		return nil
	}
	x := o.orthogonal(t, u, rows, cols)
	scale := math.Sqrt(max(1, float64(rows)/float64(cols)))
	if o.matchRMS {
		scale = 0.2 * math.Sqrt(float64(max(rows, cols)))
	}
	vec.Scale(p, p, 1-float32(t.Rate)*o.decay)
	vec.Axpy(p, x, float32(-t.Rate*scale))
	return nil
}

// lerp sets dst to a + w·(b-a).
func lerp(dst, a, b []float32, w float32) {
	for i := range dst {
		dst[i] = a[i] + float32(w*(b[i]-a[i]))
	}
}

// orthogonal returns roughly U·Vᵀ, where U·S·Vᵀ is the singular value decomposition of u. Each iteration is
// X = a·X + (b·G + c·G²)·X with G = X·Xᵀ, or the same from the right where the matrix is tall, so that G is small.
func (o *muon) orthogonal(t *sdk.Tensor, u []float32, rows, cols int) []float32 {
	norm := max(math.Sqrt(vec.SumSq64(u)), o.eps)
	x, next := make([]float32, len(u)), make([]float32, len(u))
	vec.Scale(x, u, float32(1/norm))
	n := min(rows, cols)
	gram, poly := make([]float32, n*n), make([]float32, n*n)
	for range o.steps {
		if rows <= cols {
			product(t, vec.GemmArgs{M: n, N: n, K: cols, A: x, LDA: cols, B: x, LDB: cols, TransB: true, C: gram, LDC: n})
		} else {
			product(t, vec.GemmArgs{M: n, N: n, K: rows, A: x, LDA: cols, TransA: true, B: x, LDB: cols, C: gram, LDC: n})
		}
		product(t, vec.GemmArgs{M: n, N: n, K: n, A: gram, LDA: n, B: gram, LDB: n, C: poly, LDC: n})
		vec.Scale(poly, poly, o.c)
		vec.Axpy(poly, gram, o.b)
		if rows <= cols {
			product(t, vec.GemmArgs{M: rows, N: cols, K: n, A: poly, LDA: n, B: x, LDB: cols, C: next, LDC: cols})
		} else {
			product(t, vec.GemmArgs{M: rows, N: cols, K: n, A: x, LDA: cols, B: poly, LDB: n, C: next, LDC: cols})
		}
		vec.Axpy(next, x, o.a)
		x, next = next, x
	}
	return x
}

// product runs a matrix product on the plugin's threads. Its bits do not depend on how many they are.
func product(t *sdk.Tensor, g vec.GemmArgs) {
	mb, nb := vec.GemmTasks(g.M, g.N, g.K)
	across := (g.N + nb - 1) / nb
	t.Parallel((g.M+mb-1)/mb*across, func(i int) {
		r, c := i/across*mb, i%across*nb
		vec.Gemm(&g, r, min(g.M, r+mb), c, min(g.N, c+nb), make([]float32, vec.GemmScratch(&g)))
	})
}

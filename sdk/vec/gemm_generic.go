package vec

// gemmGeneric is the product in plain Go.
func gemmGeneric(g *GemmArgs, i0, i1, j0, j1 int) {
	for i := i0; i < i1; i++ {
		c := g.C[i*g.LDC+j0 : i*g.LDC+j1]
		if !g.Accumulate {
			clear(c)
		}
		if g.TransB {
			gemmRowNT(g, i, j0, c)
		} else {
			gemmRowNN(g, i, j0, c)
		}
	}
}

// gemmRowNN adds row i of op(A) times columns j0… of B to c.
func gemmRowNN(g *GemmArgs, i, j0 int, c []float32) {
	for k := range g.K {
		a := g.a(i, k)
		b := g.B[k*g.LDB+j0:][:len(c)]
		for j := range c {
			c[j] = fma32(a, b[j], c[j])
		}
	}
}

// gemmRowNT is gemmRowNN for B stored as [N, K].
func gemmRowNT(g *GemmArgs, i, j0 int, c []float32) {
	for j := range c {
		b := g.B[(j0+j)*g.LDB:][:g.K]
		s := c[j]
		for k, y := range b {
			s = fma32(g.a(i, k), y, s)
		}
		c[j] = s
	}
}

// a is element (i, k) of op(A).
func (g *GemmArgs) a(i, k int) float32 {
	if g.TransA {
		return g.A[k*g.LDA+i]
	}
	return g.A[i*g.LDA+k]
}

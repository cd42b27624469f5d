package vec

// gemmGeneric is the product in plain Go: four chains at a time, which do not
// wait for each other.
func gemmGeneric(g *GemmArgs, i0, i1, j0, j1 int) {
	if g.B == nil { // packed in pieces, by rows
		rows := *g
		rows.B, rows.LDB, rows.TransB = g.Packed, roundUp(g.N, gemmNR), false
		g = &rows
	}
	for i := i0; i < i1; i++ {
		c := g.C[i*g.LDC+j0 : i*g.LDC+j1]
		if !g.Accumulate {
			clear(c)
		}
		j := 0
		for ; j+4 <= len(c); j += 4 {
			g.chains4(i, j0+j, (*[4]float32)(c[j:]))
		}
		for ; j < len(c); j++ {
			for k := range g.K {
				c[j] = fma32(g.a(i, k), g.b(k, j0+j), c[j])
			}
		}
	}
	g.addBias(i0, i1, j0, j1)
}

// chains4 continues the chains of C[i, j] to C[i, j+3]. It is fma32 with the
// common case written out, since the compiler does not inline it.
func (g *GemmArgs) chains4(i, j int, c *[4]float32) {
	c0, c1, c2, c3 := c[0], c[1], c[2], c[3]
	for k := range g.K {
		a := g.a(i, k)
		b0, b1, b2, b3 := g.b(k, j), g.b(k, j+1), g.b(k, j+2), g.b(k, j+3)
		s0 := float64(a)*float64(b0) + float64(c0)
		s1 := float64(a)*float64(b1) + float64(c1)
		s2 := float64(a)*float64(b2) + float64(c2)
		s3 := float64(a)*float64(b3) + float64(c3)
		if roundsTwice(s0) || roundsTwice(s1) || roundsTwice(s2) || roundsTwice(s3) {
			c0, c1, c2, c3 = fmaSlow(a, b0, c0), fmaSlow(a, b1, c1), fmaSlow(a, b2, c2), fmaSlow(a, b3, c3)
		} else {
			c0, c1, c2, c3 = float32(s0), float32(s1), float32(s2), float32(s3)
		}
	}
	c[0], c[1], c[2], c[3] = c0, c1, c2, c3
}

// a is element (i, k) of op(A).
func (g *GemmArgs) a(i, k int) float32 {
	if g.TransA {
		return g.A[k*g.LDA+i]
	}
	return g.A[i*g.LDA+k]
}

// b is element (k, j) of op(B).
func (g *GemmArgs) b(k, j int) float32 {
	if g.TransB {
		return g.B[j*g.LDB+k]
	}
	return g.B[k*g.LDB+j]
}

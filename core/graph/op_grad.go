package graph

// OpGradStore moves a gradient that some operation has made into its accumulator; the memory plan inserts it where
// the operation itself cannot accumulate. Its accumulating form adds x, element by element, to what the result holds.
var OpGradStore = register(gradStore())

func gradStore() Op {
	op := unary("grad_store", "a copy of x", func(x float64) float64 { return x }, nil)
	op.InPlace = false
	op.Accumulates = true
	return op
}

//go:build !amd64

package vec

func gemmBlock(g *GemmArgs, i0, i1, j0, j1 int, _ []float32) { gemmGeneric(g, i0, i1, j0, j1) }

// gemmPack has nothing to do: plain Go reads B where it lies.
func gemmPack(*GemmArgs, int, int, int, int) {}

//go:build !amd64

package vec

func copyEach(dst, src [][]float32) { copyEachGeneric(dst, src, 0) }

//go:build !amd64

package vec

func tilesActive() bool { return false }

func packTiles(*GemmBF16Args, int, int, int, int) {}

func tilesBlock(*GemmBF16Args, int, int, int, int, []float32) {}

func tilesRounded(*GemmBF16Args, int, int, int, int, []float32) {}

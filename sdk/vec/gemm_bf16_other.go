//go:build !amd64

package vec

const hasTiles, hasPairs = false, false

func packTiles(*GemmBF16Args, int, int, int, int) {}

func tilesBlock(*GemmBF16Args, int, int, int, int, []float32) {}

func tilesRounded(*GemmBF16Args, int, int, int, int, []float32) {}

func pairsBlock(*GemmBF16Args, int, int, int, int, []float32) {}

func pairsRounded(*GemmBF16Args, int, int, int, int, []float32) {}

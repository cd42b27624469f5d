//go:build !amd64

package vec

func channelsLast(dst, src []uint16, ld, channels, pixels int) bool { return false }

func transposePanel(dst, src []float32, ld, cols int) bool { return false }

func gatherUnits(dst, src []uint16, rows, n int, at []int32, step int) bool { return false }

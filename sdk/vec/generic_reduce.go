package vec

import "math"

// The reductions add to lanes and are called on consecutive pieces of a slice,
// each but the last a multiple of Lanes long.

func sumGeneric(lanes *[Lanes]float32, x []float32) {
	for i, v := range x {
		lanes[i%Lanes] += v
	}
}

func dotGeneric(lanes *[Lanes]float32, a, b []float32) {
	for i := range a {
		lanes[i%Lanes] = fma32(a[i], b[i], lanes[i%Lanes])
	}
}

// devSqGeneric adds the squares of x - mean.
func devSqGeneric(lanes *[Lanes]float32, x []float32, mean float32) {
	for i, v := range x {
		d := v - mean
		lanes[i%Lanes] = fma32(d, d, lanes[i%Lanes])
	}
}

// sumSq64Generic squares exactly (48 bits fit a float64) and adds in float64, so
// a fused and a separate multiply-add agree.
func sumSq64Generic(lanes *[Lanes]float64, x []float32) {
	for i, v := range x {
		lanes[i%Lanes] += float64(float64(v) * float64(v))
	}
}

func maxOfGeneric(lanes *[Lanes]float32, x []float32) {
	for i, v := range x {
		lanes[i%Lanes] = max32(v, lanes[i%Lanes])
	}
}

func allFiniteGeneric(x []float32) bool {
	for _, v := range x {
		if math.Float32bits(v)&0x7f800000 == 0x7f800000 {
			return false
		}
	}
	return true
}

// combine folds lanes by halves.
func combine(lanes *[Lanes]float32) float32 {
	for h := Lanes / 2; h > 0; h /= 2 {
		for l := range h {
			lanes[l] += lanes[l+h]
		}
	}
	return lanes[0]
}

// combineMax folds lanes of maxima by halves.
func combineMax(lanes *[Lanes]float32) float32 {
	for h := Lanes / 2; h > 0; h /= 2 {
		for l := range h {
			lanes[l] = max32(lanes[l+h], lanes[l])
		}
	}
	return lanes[0]
}

// lowest is lanes before any maximum.
func lowest() (lanes [Lanes]float32) {
	for i := range lanes {
		lanes[i] = float32(math.Inf(-1))
	}
	return lanes
}

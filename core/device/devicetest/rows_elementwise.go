package devicetest

import (
	"math/rand/v2"

	"starling/core/graph"
	"starling/core/tensor"
)

// The reference rounds once from float64; one correctly rounded operation is within half a unit in the last place of it.
const (
	halfUnit = 6.1e-8
	units    = 4e-7 // a few units in the last place
)

// binaryRow covers two operands that broadcast.
func binaryRow(a, b filler) row {
	return row{rel: halfUnit, nan: []int{0, 1}, cases: func(r *rand.Rand) []testCase {
		var cs []testCase
		for _, s := range someShapes(r) {
			cs = append(cs, testCase{in: []operand{{f32(s...), a}, {f32(s...), b}}})
		}
		for _, p := range [][2][]int{
			{{5}, {}}, {{}, {5}}, {{3, 7}, {7}}, {{7}, {3, 7}}, {{3, 7}, {3, 1}}, {{3, 1}, {1, 7}}, {{4, 1, 33}, {5, 1}},
			{{2, 3, 65}, {65}}, {{2, 3, 65}, {1}}, {{1, 1}, {2, 3, 5}}, {{2, 1, 3, 1, 5}, {4, 1, 6, 1}}, {{130, 129}, {129}}, {{130, 129}, {130, 1}},
			{{2, 8, 4, 4}, {8, 1, 1}},
		} {
			cs = append(cs, testCase{in: []operand{{f32(p[0]...), a}, {f32(p[1]...), b}}})
		}
		return cs
	}}
}

// unaryRow covers one operand, with each filler.
func unaryRow(rel, abs float64, attrs []any, fills ...filler) row {
	return row{rel: rel, abs: abs, nan: []int{0}, cases: func(r *rand.Rand) []testCase {
		var cs []testCase
		for _, at := range attrs {
			for _, fill := range fills {
				for _, s := range someShapes(r) {
					cs = append(cs, testCase{attrs: at, in: []operand{{f32(s...), fill}}})
				}
			}
		}
		return cs
	}}
}

var none = []any{nil}

func numbers(v ...float64) []any {
	var at []any
	for _, x := range v {
		at = append(at, graph.ScalarAttrs{Value: float64(float32(x))}) // kernels hold it in that type
	}
	return at
}

// gradRow covers (x or y, dy) of one shape.
func gradRow(rel, abs float64, fills ...filler) row {
	return row{rel: rel, abs: abs, nan: []int{1}, cases: func(r *rand.Rand) []testCase {
		var cs []testCase
		for _, fill := range fills {
			for _, s := range someShapes(r) {
				cs = append(cs, testCase{in: []operand{{f32(s...), fill}, {f32(s...), normal}}})
			}
		}
		return cs
	}}
}

func elementwiseRows() map[string]row {
	return map[string]row{
		"add": binaryRow(normal, normal), "sub": binaryRow(normal, normal), "mul": binaryRow(normal, normal), "div": binaryRow(normal, away),
		"maximum": binaryRow(normal, whole(-2, 3)), "minimum": binaryRow(whole(-2, 3), normal),

		"neg": unaryRow(0, 0, none, normal), "abs": unaryRow(0, 0, none, spread), "square": unaryRow(halfUnit, 0, none, normal),
		"sqrt": unaryRow(halfUnit, 0, none, positive), "rsqrt": unaryRow(units, 0, none, positive),
		"exp": unaryRow(units, 0, none, spread, uniform(-80, 80)), "log": unaryRow(units, 1e-8, none, positive, uniform(0.5, 2)),
		"tanh": unaryRow(units, 0, none, spread, far), "sigmoid": unaryRow(2*units, 1e-9, none, spread, far), "relu": unaryRow(0, 0, none, spread),
		"gelu": unaryRow(2*units, units, none, spread, far), "gelu_erf": unaryRow(2*units, units, none, spread, far),
		"silu":  unaryRow(2*units, 1e-7, none, spread, far),
		"scale": unaryRow(halfUnit, 0, numbers(0.125, -3, 0.3), normal), "add_scalar": unaryRow(2*halfUnit, 0, numbers(1, -0.375), normal),
		"pow_scalar": unaryRow(units, 0, numbers(2, 3, 0.5, -0.5, -2, 1.25, 1), positive),

		"tanh_grad":     gradRow(units, units, uniform(-1, 1)),
		"sigmoid_grad":  gradRow(units, units, uniform(0, 1)),
		"relu_grad":     gradRow(0, 0, spread, whole(-1, 2)),
		"gelu_grad":     gradRow(2*units, 2*units, spread, far),
		"gelu_erf_grad": gradRow(2*units, 2*units, spread, far),
		"silu_grad":     gradRow(2*units, units, spread, far),
		"accumulate":    gradRow(halfUnit, 0, normal),
		"grad_store":    unaryRow(halfUnit, 0, none, normal),

		"swiglu": {rel: 2 * units, abs: 1e-7, nan: []int{0, 1}, cases: func(r *rand.Rand) []testCase {
			var cs []testCase
			for _, s := range someShapes(r) {
				cs = append(cs, testCase{in: []operand{{f32(s...), spread}, {f32(s...), normal}}})
			}
			return cs
		}},
		"swiglu_grad": {rel: 2 * units, abs: units, nan: []int{0, 1, 2}, cases: func(r *rand.Rand) []testCase {
			var cs []testCase
			for _, s := range someShapes(r) {
				cs = append(cs, testCase{in: []operand{{f32(s...), spread}, {f32(s...), normal}, {f32(s...), normal}}})
			}
			return cs
		}},
		"cast":    {nan: []int{0}, cases: casts},
		"equal":   {cases: equals},
		"dropout": {rel: halfUnit, nan: []int{0}, cases: dropouts},
	}
}

func casts(r *rand.Rand) []testCase {
	var cs []testCase
	floats := []tensor.DType{tensor.F32, tensor.F64, tensor.BF16, tensor.F16}
	for _, from := range floats {
		for _, to := range floats {
			for _, n := range []int{1, 17, 1031} {
				for _, fill := range []filler{normal, spread, times(1e-6, normal), times(1e4, normal)} {
					cs = append(cs, testCase{name: from.String() + " to " + to.String(), attrs: graph.CastAttrs{To: to},
						in: []operand{{graph.Type{DType: from, Shape: []int{n}}, fill}}})
				}
			}
		}
	}
	cs = append(cs,
		testCase{name: "i32 to f32", attrs: graph.CastAttrs{To: tensor.F32}, in: []operand{{i32(3, 41), whole(-1<<31, 1<<31-1)}}},
		testCase{name: "i32 to f64", attrs: graph.CastAttrs{To: tensor.F64}, in: []operand{{i32(3, 41), whole(-1<<31, 1<<31-1)}}})
	return cs
}

func equals(r *rand.Rand) []testCase {
	var cs []testCase
	for _, s := range someShapes(r) {
		cs = append(cs, testCase{in: []operand{{i32(s...), whole(-2, 3)}, {i32(s...), whole(-2, 3)}}})
	}
	return cs
}

func dropouts(r *rand.Rand) []testCase {
	var cs []testCase
	for i, s := range someShapes(r) {
		p := []float64{0.1, 0.5, 0, 0.9}[i%4]
		rng := list(float64(r.Uint32()), float64(r.Uint32()), float64(r.IntN(1000)), float64(r.IntN(16)))
		cs = append(cs, testCase{attrs: graph.DropoutAttrs{P: p, Key: r.Uint64()}, in: []operand{{f32(s...), normal}, {u32(4), rng}}})
	}
	return cs
}

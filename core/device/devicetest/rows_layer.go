package devicetest

import (
	"fmt"
	"math"
	"math/rand/v2"

	"starling/core/graph"
)

func layerRows() map[string]row {
	return map[string]row{
		"layer_norm":                 {rel: 4 * units, abs: 4 * units, nan: []int{0, 1, 2}, cases: layerNorms},
		"layer_norm_grad":            {rel: 4 * units, abs: product, nan: []int{0}, cases: layerNormGrads},
		"rms_norm":                   {rel: 4 * units, abs: 4 * units, nan: []int{0, 1}, cases: rmsNorms},
		"rms_norm_grad":              {rel: 4 * units, abs: product, least: 1e-6, nan: []int{0}, cases: rmsNormGrads},
		"batch_norm":                 {rel: 4 * units, abs: 4 * units, least: 2e-7, nan: []int{0, 1, 2}, cases: batchNorms},
		"batch_norm_fixed":           {rel: 4 * units, abs: 4 * units, nan: []int{0, 1, 2, 3, 4}, cases: fixedBatchNorms},
		"batch_norm_grad":            {rel: 4 * units, abs: product, nan: []int{0}, cases: batchNormGrads},
		"rotary":                     {rel: 2 * units, abs: units, nan: []int{0}, cases: rotaries},
		"attention":                  {rel: product, abs: product, nan: []int{0, 1, 2}, cases: func(r *rand.Rand) []testCase { return attentions(r, false) }},
		"attention_joint":            {rel: product, abs: product, cases: func(*rand.Rand) []testCase { return jointAttentions(false) }},
		"attention_joint_grad":       {rel: product, abs: 2 * product, nan: []int{0}, cases: func(*rand.Rand) []testCase { return jointAttentions(true) }},
		"attention_grad":             {rel: product, abs: 2 * product, nan: []int{0}, cases: func(r *rand.Rand) []testCase { return attentions(r, true) }},
		"cross_entropy":              {rel: units, abs: units, nan: []int{0}, cases: func(*rand.Rand) []testCase { return crossEntropies(false) }},
		"linear_cross_entropy":       {rel: product, abs: product, nan: []int{0, 1}, cases: func(*rand.Rand) []testCase { return linearCrossEntropies(false) }},
		"linear_cross_entropy_grads": {rel: product, abs: 4 * product, nan: []int{0, 1, 2}, cases: func(*rand.Rand) []testCase { return linearCrossEntropies(true) }},
		"cross_entropy_grad":         {rel: 8 * units, abs: units, nan: []int{0, 1}, cases: func(*rand.Rand) []testCase { return crossEntropies(true) }},
	}
}

var (
	norm = graph.NormAttrs{Eps: 1e-5}
	// shifted has a mean far from zero, which costs precision in a careless variance.
	shifted = func(r *rand.Rand, _ int) float64 { return 8 + r.NormFloat64() }
	tiny    = times(1e-3, normal)
)

func layerNorms(*rand.Rand) []testCase {
	var cs []testCase
	for i, s := range rowShapes() {
		c := s[len(s)-1]
		for _, fill := range []filler{normal, shifted, tiny} {
			in := []operand{{f32(s...), fill}, {f32(c), normal}, {f32(c), normal}}
			cs = append(cs, testCase{attrs: norm, in: in[:2+i%2]})
		}
	}
	return cs
}

func layerNormGrads(*rand.Rand) []testCase {
	var cs []testCase
	for _, s := range rowShapes() {
		c, rows := s[len(s)-1], f32(s...).Shape.Numel()/s[len(s)-1]
		for _, fill := range []filler{normal, shifted} {
			cs = append(cs, testCase{
				in:     []operand{{f32(s...), normal}, {f32(s...), fill}, {f32(c), normal}, {f32(rows, 2), normal}},
				derive: func(in []*graph.Array) { in[3] = reference(graph.OpLayerNorm, norm, in[1], in[2])[1] },
			})
		}
	}
	return cs
}

func rmsNorms(*rand.Rand) []testCase {
	var cs []testCase
	for _, s := range rowShapes() {
		for _, fill := range []filler{normal, shifted, tiny} {
			cs = append(cs, testCase{attrs: norm, in: []operand{{f32(s...), fill}, {f32(s[len(s)-1]), normal}}})
		}
	}
	return cs
}

func rmsNormGrads(*rand.Rand) []testCase {
	var cs []testCase
	for _, s := range rowShapes() {
		c, rows := s[len(s)-1], f32(s...).Shape.Numel()/s[len(s)-1]
		cs = append(cs, testCase{
			in:     []operand{{f32(s...), normal}, {f32(s...), normal}, {f32(c), normal}, {f32(rows), normal}},
			derive: func(in []*graph.Array) { in[3] = reference(graph.OpRMSNorm, norm, in[1], in[2])[1] },
		})
	}
	return cs
}

// batchShapes are [N,C,…] with planes of one element, short ones, and some around a piece of work.
var batchShapes = [][]int{{6, 1}, {3, 5}, {67, 3}, {2, 3, 7}, {1, 2, 8, 8}, {5, 3, 9, 7}, {3, 4, 63}, {2, 2, 64}, {1, 3, 4096}, {2, 1, 17, 243}, {2, 70, 3}}

func batchNorms(*rand.Rand) []testCase {
	var cs []testCase
	for _, s := range batchShapes {
		c := operand{f32(s[1]), normal}
		for _, fill := range []filler{normal, shifted, tiny} {
			cs = append(cs, testCase{attrs: norm, in: []operand{{f32(s...), fill}, c, c, c, c}})
		}
	}
	return cs
}

func fixedBatchNorms(*rand.Rand) []testCase {
	var cs []testCase
	for _, s := range append([][]int{{1, 1}, {1, 3, 1}}, batchShapes...) {
		c := operand{f32(s[1]), normal}
		cs = append(cs, testCase{attrs: norm, in: []operand{{f32(s...), normal}, c, c, c, {f32(s[1]), uniform(0.1, 3)}}})
	}
	return cs
}

func batchNormGrads(*rand.Rand) []testCase {
	var cs []testCase
	for _, s := range batchShapes {
		for _, fill := range []filler{normal, shifted} {
			c := operand{f32(s[1]), normal}
			cs = append(cs, testCase{
				in: []operand{{f32(s...), normal}, {f32(s...), fill}, c, {f32(s[1], 2), normal}},
				derive: func(in []*graph.Array) {
					in[3] = reference(graph.OpBatchNorm, norm, in[1], in[2], in[2], in[2], in[2])[1]
				},
			})
		}
	}
	return cs
}

func rotaries(r *rand.Rand) []testCase {
	var cs []testCase
	for i, s := range [][]int{{1, 1, 1, 2}, {1, 5, 1, 6}, {2, 7, 3, 8}, {2, 33, 2, 64}, {1, 130, 4, 34}} {
		for _, inverse := range []bool{false, true} {
			at := graph.RotaryAttrs{Base: []float64{10000, 500000}[i%2], Offset: i % 3 * 11, Inverse: inverse}
			cs = append(cs, testCase{attrs: at, in: []operand{{f32(s...), normal}}})
		}
	}
	return cs
}

// attentions covers lengths below, at and above a tile, grouped heads, T ≠ S, and segments, some of which leave queries without keys.
func attentions(r *rand.Rand, gradient bool) []testCase {
	var cs []testCase
	for _, z := range []struct{ b, t, s, h, g, d int }{
		{1, 1, 1, 1, 1, 1}, {2, 5, 5, 4, 2, 8}, {1, 17, 33, 3, 1, 5}, {2, 65, 65, 2, 2, 16}, {1, 130, 130, 2, 1, 64}, {1, 7, 3, 2, 1, 4},
		{1, 1, 70, 2, 2, 32}, {2, 31, 64, 3, 3, 7}, {1, 257, 257, 1, 1, 3},
	} {
		for form := range 4 {
			causal, segments := form&1 != 0, form&2 != 0
			at := graph.AttentionAttrs{Causal: causal, Scale: float64(float32(1 / math.Sqrt(float64(z.d))))}
			q, k := operand{f32(z.b, z.t, z.h, z.d), normal}, operand{f32(z.b, z.s, z.g, z.d), normal}
			in := []operand{q, k, k}
			if gradient {
				in = []operand{q, q, k, k, q, {f32(z.b, z.h, z.t), normal}}
			}
			if segments {
				in = append(in, operand{i32(z.b, z.t), segmentIDs(z.t)}, operand{i32(z.b, z.s), segmentIDs(z.s)})
			}
			c := testCase{name: fmt.Sprintf("causal %v, segments %v ", causal, segments), attrs: at, in: in, masked: causal || segments}
			if gradient {
				c.derive = func(in []*graph.Array) {
					fwd := append([]*graph.Array{in[1], in[2], in[3]}, in[6:]...)
					out := reference(graph.OpAttention, at, fwd...)
					in[4], in[5] = out[0], out[1]
				}
			}
			cs = append(cs, c)
		}
	}
	return cs
}

func jointAttentions(gradient bool) []testCase {
	var cs []testCase
	for _, z := range []struct{ b, t, h, d int }{{1, 1, 1, 1}, {2, 5, 4, 8}, {1, 65, 2, 16}, {1, 130, 3, 64}, {4, 33, 5, 7}} {
		for _, causal := range []bool{false, true} {
			at := graph.JointAttentionAttrs{AttentionAttrs: graph.AttentionAttrs{Causal: causal, Scale: float64(float32(1 / math.Sqrt(float64(z.d))))}, Heads: z.h}
			x, o := operand{f32(z.b, z.t, 3*z.h*z.d), normal}, operand{f32(z.b, z.t, z.h, z.d), normal}
			c := testCase{name: fmt.Sprintf("causal %v ", causal), attrs: at, in: []operand{x}, masked: causal}
			if gradient {
				c.in = []operand{o, x, o, {f32(z.b, z.h, z.t), normal}}
				c.derive = func(in []*graph.Array) {
					out := reference(graph.OpAttentionJoint, at, in[1])
					in[2], in[3] = out[0], out[1]
				}
			}
			cs = append(cs, c)
		}
	}
	return cs
}

// segmentIDs gives ascending segments of random lengths.
func segmentIDs(n int) filler {
	id := 0
	return func(r *rand.Rand, i int) float64 {
		if i%n == 0 {
			id = r.IntN(2)
		} else if r.IntN(8) == 0 {
			id++
		}
		return float64(id)
	}
}

func crossEntropies(gradient bool) []testCase {
	var cs []testCase
	some := func(v int) filler {
		return func(r *rand.Rand, i int) float64 {
			if r.IntN(4) == 0 {
				return -1
			}
			return float64(r.IntN(v))
		}
	}
	add := func(name string, ignore int, logits operand, targets filler) {
		rows := logits.Shape[:len(logits.Shape)-1]
		at := graph.CrossEntropyAttrs{Ignore: ignore}
		in := []operand{logits, {i32(rows...), targets}}
		c := testCase{name: name, attrs: at, in: in}
		if gradient {
			n := rows.Numel()
			c.in = []operand{{f32(), normal}, in[0], in[1], {f32(n), normal}}
			c.derive = func(in []*graph.Array) { in[3] = reference(graph.OpCrossEntropy, at, in[1], in[2])[2] }
		}
		cs = append(cs, c)
	}
	for _, s := range rowShapes() {
		v := s[len(s)-1]
		add("", -1, operand{f32(s...), normal}, whole(0, v))
		add("masked ", -100, operand{f32(s...), times(3, normal)}, some(v))
	}
	add("ignoring 2 ", 2, operand{f32(40, 5), normal}, whole(0, 5))
	add("all masked ", -1, operand{f32(3, 7), normal}, list(-1, -1, -1))
	add("all ignored ", 4, operand{f32(3, 7), normal}, list(4, 4, 4))
	add("large logits ", -1, operand{f32(9, 33), times(300, normal)}, whole(0, 33))
	add("a target beyond the classes ", -1, operand{f32(4, 7), normal}, list(0, 7, 6, 1<<30))
	return cs
}

// linearCrossEntropies have weights like those of a model's, so that logits are small enough for their errors not to count. Half values are
// tested against the operations that these stand for.
func linearCrossEntropies(gradient bool) []testCase {
	var cs []testCase
	add := func(name string, ignore, chunk int, rows []int, in, v int, targets filler) {
		c := testCase{name: name, attrs: graph.LinearLossAttrs{CrossEntropyAttrs: graph.CrossEntropyAttrs{Ignore: ignore}, Rows: chunk},
			in: []operand{{f32(append(rows[:len(rows):len(rows)], in)...), normal}, {f32(v, in), times(0.1, normal)}, {i32(rows...), targets}}}
		if gradient {
			c.in = append([]operand{{f32(), normal}}, c.in...)
		}
		cs = append(cs, c)
	}
	for _, l := range layers {
		rows := 1
		for _, n := range l.rows {
			rows *= n
		}
		for _, chunk := range []int{3, rows + 1} {
			add(fmt.Sprintf("chunks of %d ", chunk), -1, chunk, l.rows, l.in, l.out, whole(0, l.out))
		}
	}
	add("masked ", 2, 4, []int{3, 5}, 9, 33, func(r *rand.Rand, _ int) float64 { return float64(r.IntN(7) - 3) })
	add("one row at a time ", -1, 1, []int{2, 3}, 5, 7, whole(0, 7))
	add("all masked ", -1, 2, []int{5}, 4, 7, list(-1, -1, -1, -1, -1))
	add("a target beyond the classes ", -1, 3, []int{4}, 5, 7, list(0, 7, 6, 1<<30))
	return cs
}

package plan

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"starling/core/device/ref"
	"starling/core/graph"
	"starling/core/tensor"
)

// randomGraph draws a training graph over values of shape [rows, width]: chains and joins of operations that cover
// views, in-place results, several results, broadcasting, shared parameters, draws and constants.
func randomGraph(t *rapid.T, m *tracer) *graph.Graph {
	rows := rapid.IntRange(1, 4).Draw(t, "rows")
	width := 2 * rapid.IntRange(1, 4).Draw(t, "half width")
	rng := m.input("rng", tensor.U32, 4)
	values := []*graph.Value{m.input("x", tensor.F32, rows, width), m.op(graph.OpTanh, nil, m.param("p", rows, width))}
	pick := func() *graph.Value { return values[rapid.IntRange(0, len(values)-1).Draw(t, "operand")] }
	square := m.param("shared", width, width)
	made := 0
	name := func() string { made++; return fmt.Sprintf("w%d", made) }
	axes := graph.ReduceAttrs{Axes: graph.MakeDims([]int{1}), Keep: true}
	kinds := []func() *graph.Value{
		func() *graph.Value { return m.op(graph.OpTanh, nil, pick()) },
		func() *graph.Value { return m.op(graph.OpGELU, nil, pick()) },
		func() *graph.Value { return m.op(graph.OpSigmoid, nil, pick()) },
		func() *graph.Value { return m.op(graph.OpAdd, nil, pick(), pick()) },
		func() *graph.Value { return m.op(graph.OpSub, nil, pick(), pick()) },
		func() *graph.Value { return m.op(graph.OpTanh, nil, m.op(graph.OpMul, nil, pick(), pick())) },
		func() *graph.Value { return m.op(graph.OpAdd, nil, pick(), m.param(name(), width)) },
		func() *graph.Value { return m.op(graph.OpMul, nil, m.param(name(), rows, 1), pick()) },
		func() *graph.Value { return m.op(graph.OpLinear, nil, pick(), square) },
		func() *graph.Value { return m.linear(name(), pick(), width) },
		func() *graph.Value { return m.norm(name(), pick()) },
		func() *graph.Value { return m.op(graph.OpSoftmax, nil, pick()) },
		func() *graph.Value { return m.op(graph.OpScale, graph.ScalarAttrs{Value: 0.5}, pick()) },
		func() *graph.Value { return m.op(graph.OpStopGradient, nil, pick()) },
		func() *graph.Value {
			made++
			return m.op(graph.OpDropout, graph.DropoutAttrs{P: 0.3, Key: graph.DropoutKey("random", made)}, pick(), rng)
		},
		func() *graph.Value {
			x := m.reshape(pick(), rows*width/2, 2)
			return m.reshape(m.op(graph.OpAdd, nil, x, m.param(name(), 2)), rows, width)
		},
		func() *graph.Value {
			x := pick()
			a, b := m.slice(x, 1, 0, width/2), m.slice(x, 1, width/2, width)
			return m.op(graph.OpConcat, graph.AxisAttrs{Axis: 1}, b, a)
		},
		func() *graph.Value {
			return m.op(graph.OpSub, nil, pick(), m.op(graph.OpMean, axes, pick()))
		},
		func() *graph.Value {
			return m.op(graph.OpAdd, nil, pick(), m.op(graph.OpConst, graph.FullAttrs{Value: 0.25, Shape: graph.MakeDims([]int{rows, width})}))
		},
	}
	for range rapid.IntRange(1, 14).Draw(t, "operations") {
		k := rapid.IntRange(0, len(kinds)-1).Draw(t, "operation")
		values = append(values, kinds[k]())
	}
	loss := m.op(graph.OpTanh, nil, values[len(values)-1])
	for range rapid.IntRange(0, 2).Draw(t, "terms") {
		loss = m.op(graph.OpAdd, nil, loss, m.op(graph.OpTanh, nil, pick()))
	}
	loss = m.op(graph.OpAdd, nil, loss, values[1]) // the loss depends on a parameter whatever was drawn
	loss = m.op(graph.OpMul, nil, loss, m.param("last", width))
	m.b.Output(OutputLoss, m.op(graph.OpSum, graph.ReduceAttrs{Axes: graph.MakeDims([]int{0, 1})}, loss))
	m.b.Output(OutputWeight, m.op(graph.OpConst, graph.FullAttrs{Value: float64(rows)}))
	m.b.Output("metric", pick())
	return m.b.G
}

// Random graphs: the program computes what the graph says, and Check agrees with every plan.
func TestRandomProgramsComputeTheirGraphs(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		g := randomGraph(rt, newTracer(rt))
		s := settings(1, 0)
		s.MicroBatches = rapid.IntRange(1, 5).Draw(rt, "micro-batches")
		s.Lanes = rapid.IntRange(1, s.MicroBatches).Draw(rt, "lanes")
		s.BucketBytes = rapid.Int64Range(64, 2048).Draw(rt, "bucket")
		s.FirstBucketBytes = 64
		checkStep(rt, g, s, func(m int) ref.Feeds { return randomBatch(g, m, 4) })
	})
}

package plan

import (
	"fmt"

	"starling/core/device"
	"starling/core/graph"
	"starling/core/tensor"
)

// SegmentClip bounds the elements of the gradient, of the part that this rank owns, between the norm and the update. A plan has it where
// Settings.ClipValue says so.
const SegmentClip = "clip"

// InputLimit is the input of the clip segment: f64[1], the bound of a gradient's element as it lies in memory, scaled.
const InputLimit = "limit"

// Norm is the norm of the gradient that is reported and bounded.
type Norm uint8

// The norms.
const (
	// L2 is the Euclidean norm.
	L2 Norm = iota
	// L1 is the sum of absolute values.
	L1
	// LInf is the largest absolute value.
	LInf
)

// String names the norm as a recipe does.
func (n Norm) String() string { return [...]string{"2", "1", "inf"}[n] }

// op makes the norm's partial results, one for each block of graph.SumSquaresBlock elements.
func (n Norm) op() *graph.Op {
	return [...]*graph.Op{graph.OpSumSquares, graph.OpSumAbs, graph.OpMaxAbs}[n]
}

// buildClip lowers the bound of single elements. Each gradient is changed in place, so that updates outside the program see it too.
func (p *Plan) buildClip(*State) error {
	if !p.Settings.ClipValue {
		return nil
	}
	b := graph.NewBuilder()
	limit, err := b.Apply(graph.OpInput, graph.InputAttrs{Name: InputLimit, DType: tensor.F64, Shape: graph.MakeDims([]int{1})})
	if err != nil {
		return err
	}
	for _, q := range p.inUpdateOrder() {
		if q.Buffer {
			continue
		}
		b.Pos, b.Block = q.Pos, q.Block
		name := Gradient{q.Name, 0}.Output()
		g, err := b.Apply(graph.OpInput, graph.InputAttrs{Name: name, DType: tensor.F32, Shape: graph.MakeDims(q.ownedType().Shape)})
		if err != nil {
			return err
		}
		v, err := b.Apply(graph.OpClipValue, nil, g[0], limit[0])
		if err != nil {
			return err
		}
		b.Output(name, v[0])
	}
	if err := graph.Verify(b.G); err != nil {
		return fmt.Errorf("plan: the graph that clips is not valid: %w", err)
	}
	place := p.allocIO(limit[0].Type)
	input := func(name string) (device.Operand, bool) {
		if name == InputLimit {
			return place, true
		}
		return p.reducedPlace(name)
	}
	l := &lowering{plan: p, g: b.G, where: binding{input, p.reducedPlace}}
	if err := l.lower(SegmentClip); err != nil {
		return err
	}
	l.seg.Inputs[InputLimit] = place
	return nil
}

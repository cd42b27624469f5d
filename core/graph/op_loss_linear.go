package graph

import (
	"fmt"
	"math"

	"starling/core/tensor"
)

// The cross-entropy of a linear layer's result, computed a chunk of rows at a time, so that logits of more rows than a chunk has
// exist at no time. Models do not ask for these operations; a pass puts them where logits are large.

// OpLinearCrossEntropy is OpCrossEntropy of OpLinear.
var OpLinearCrossEntropy = register(Op{
	Name: "linear_cross_entropy",
	Doc: "(x[...,I], w[V,I], targets i32[...]) -> loss f32[], weight f32[], room[min(Rows,rows),V]: cross_entropy(linear(x, w), targets) in chunks of Rows rows; " +
		"logits have the type of x, and room holds those of row r at r mod Rows when it is over",
	Ref: refLinearCrossEntropy,
	Infer: func(in []*Value, attrs any) ([]Type, error) {
		if err := arity(in, "x", "w", "targets"); err != nil {
			return nil, err
		}
		room, err := inferLinearLoss(in[0], in[1], in[2], attrs)
		scalar := Type{tensor.F32, tensor.Shape{}}
		return []Type{scalar, scalar, room}, err
	},
})

// OpLinearCrossEntropyGrads is OpLinearCrossEntropy with its gradients, made in one pass over the chunks.
var OpLinearCrossEntropyGrads = register(Op{
	Name: "linear_cross_entropy_grads",
	Doc: "(dloss f32[], x[...,I], w[V,I], targets i32[...]) -> dw f32[V,I], dx[...,I], loss f32[], weight f32[], room[min(Rows,rows),V]: " +
		"linear_cross_entropy and, from the gradient of its loss, those of w and x: linear_grad_w_wide and linear_grad_x of cross_entropy_grad, " +
		"which has the type of x and takes the place of the logits in room",
	Accumulates: true,
	Ref:         refLinearCrossEntropyGrads,
	Infer: func(in []*Value, attrs any) ([]Type, error) {
		if err := arity(in, "dloss", "x", "w", "targets"); err != nil {
			return nil, err
		}
		room, err := inferLinearLoss(in[1], in[2], in[3], attrs)
		if err := all(err, ofDType("dloss", in[0], tensor.F32), ofShape("dloss", in[0])); err != nil {
			return nil, err
		}
		scalar := Type{tensor.F32, tensor.Shape{}}
		return []Type{{tensor.F32, in[2].Shape.Clone()}, in[1].Type, scalar, scalar, room}, nil
	},
})

// inferLinearLoss checks the operands and returns the type of the room for one chunk.
func inferLinearLoss(x, w, targets *Value, attrs any) (Type, error) {
	a, err := attrsAs[LinearLossAttrs](attrs)
	if err := all(err, floats(x, w), hasLast("x", x), ofRank("w", w, 2, "[outputs, inputs]"), ofDType("targets", targets, tensor.I32)); err != nil {
		return Type{}, err
	}
	last := len(x.Shape) - 1
	switch {
	case a.Rows < 1:
		return Type{}, fmt.Errorf("chunks of %d rows: there must be at least 1", a.Rows)
	case x.Shape[last] != w.Shape[1]:
		return Type{}, fmt.Errorf("cannot multiply %v by a weight %v [outputs, inputs]: the inner sizes %d and %d differ", x.Shape, w.Shape, x.Shape[last], w.Shape[1])
	}
	_, rows := lastAndRows(x.Shape)
	return Type{x.DType, tensor.Shape{min(a.Rows, rows), w.Shape[0]}}, ofShape("targets", targets, x.Shape[:last]...)
}

func refLinearCrossEntropy(n *Node, in []*Array) []*Array {
	l := newLinearLoss(in[0], in[1], in[2], n.Attrs.(LinearLossAttrs))
	room := NewArray(n.Out[2].Type)
	for r := range l.targets {
		l.row(room, r)
	}
	return []*Array{l.loss, l.weight, room}
}

func refLinearCrossEntropyGrads(n *Node, in []*Array) []*Array {
	l := newLinearLoss(in[1], in[2], in[3], n.Attrs.(LinearLossAttrs))
	dw, dx, room := NewArray(n.Out[0].Type), NewArray(n.Out[1].Type), NewArray(n.Out[4].Type)
	for r, target := range l.targets {
		row, lse := l.row(room, r)
		for j, v := range row {
			p := 0.0
			if l.attrs.counts(target) {
				p = math.Exp(v - lse)
				switch {
				case target >= float64(len(row)):
					p = math.NaN()
				case j == int(target):
					p--
				}
				p = l.rounded(p * in[0].Data[0])
			}
			row[j] = p
			axpy(dx.Data[r*l.width:][:l.width], p, l.w.Data[j*l.width:][:l.width])
			axpy(dw.Data[j*l.width:][:l.width], p, l.x.Data[r*l.width:][:l.width])
		}
	}
	return []*Array{dw, dx, l.loss, l.weight, room}
}

// linearLoss is the reference's loss so far.
type linearLoss struct {
	x, w         *Array
	targets      []float64
	attrs        LinearLossAttrs
	width        int
	loss, weight *Array
}

func newLinearLoss(x, w, targets *Array, a LinearLossAttrs) *linearLoss {
	scalar := Type{tensor.F32, tensor.Shape{}}
	return &linearLoss{x, w, targets.Data, a, w.Shape[1], NewArray(scalar), NewArray(scalar)}
}

// rounded is a logit, or its gradient, in a half type if x has one; fp32 stays exact, as everywhere in the reference.
func (l *linearLoss) rounded(v float64) float64 {
	if l.x.DType == tensor.F32 {
		return v
	}
	return Round(l.x.DType, v)
}

// row puts the logits of row r into its place in the room and counts its loss.
func (l *linearLoss) row(room *Array, r int) (row []float64, lse float64) {
	classes := l.w.Shape[0]
	row = room.Data[r%l.attrs.Rows*classes:][:classes]
	for j := range row {
		row[j] = l.rounded(dot(l.x.Data[r*l.width:][:l.width], l.w.Data[j*l.width:][:l.width]))
	}
	lse = logSumExp(row)
	if target := l.targets[r]; l.attrs.counts(target) {
		l.weight.Data[0]++
		if target < float64(classes) {
			l.loss.Data[0] += lse - row[int(target)]
		} else {
			l.loss.Data[0] = math.NaN()
		}
	}
	return row, lse
}

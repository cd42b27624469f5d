package graph

import (
	"math"

	"starling/core/tensor"
)

// OpCrossEntropy is the loss of classification, summed over rows.
var OpCrossEntropy = register(Op{
	Name: "cross_entropy",
	Doc: "(logits[...,V], targets i32[...]) -> loss f32[], weight f32[], lse f32[rows]: loss is the sum over rows of lse - logits[target], " +
		"weight the number of rows that count; a row whose target is Ignore or negative counts for nothing, one whose target is V or more gives NaN; " +
		"the gradient flows from loss alone",
	Grad: gradCrossEntropy,
	Ref:  refCrossEntropy,
	Infer: func(in []*Value, attrs any) ([]Type, error) {
		_, err := attrsAs[CrossEntropyAttrs](attrs)
		if err := all(err, arity(in, "logits", "targets")); err != nil {
			return nil, err
		}
		rows, err := inferTargets(in[0], in[1])
		scalar := Type{tensor.F32, tensor.Shape{}}
		return []Type{scalar, scalar, {tensor.F32, tensor.Shape{rows}}}, err
	},
})

// OpCrossEntropyGrad is the gradient of OpCrossEntropy.
var OpCrossEntropyGrad = register(Op{
	Name: "cross_entropy_grad",
	Doc: "(dloss f32[], logits[...,V], targets i32[...], lse f32[rows]) -> dlogits[...,V]: (e^(logits-lse) - onehot(target)) * dloss; " +
		"exactly 0 in rows that do not count",
	Ref: refCrossEntropyGrad,
	Infer: func(in []*Value, attrs any) ([]Type, error) {
		_, err := attrsAs[CrossEntropyAttrs](attrs)
		if err := all(err, arity(in, "dloss", "logits", "targets", "lse")); err != nil {
			return nil, err
		}
		rows, err := inferTargets(in[1], in[2])
		if err != nil {
			return nil, err
		}
		err = all(ofDType("dloss", in[0], tensor.F32), ofShape("dloss", in[0]),
			ofDType("lse", in[3], tensor.F32), ofShape("lse", in[3], rows))
		return []Type{in[1].Type}, err
	},
})

func inferTargets(logits, targets *Value) (rows int, err error) {
	if err := all(floats(logits), hasLast("logits", logits), ofDType("targets", targets, tensor.I32)); err != nil {
		return 0, err
	}
	_, rows = lastAndRows(logits.Shape)
	return rows, ofShape("targets", targets, logits.Shape[:len(logits.Shape)-1]...)
}

func gradCrossEntropy(b *Builder, n *Node, dout []*Value) []*Value {
	return []*Value{b.do("cross_entropy_grad", n.Attrs, dout[0], n.In[0], n.In[1], n.Out[2]), nil}
}

// counts reports whether a row with this target takes part in the loss.
func (a CrossEntropyAttrs) counts(target float64) bool {
	return target >= 0 && target != float64(a.Ignore)
}

func refCrossEntropy(n *Node, in []*Array) []*Array {
	logits, targets, a := in[0], in[1], n.Attrs.(CrossEntropyAttrs)
	loss, weight, lse := NewArray(n.Out[0].Type), NewArray(n.Out[1].Type), NewArray(n.Out[2].Type)
	c, _ := lastAndRows(logits.Shape)
	for r, target := range targets.Data {
		row := logits.Data[r*c:][:c]
		lse.Data[r] = logSumExp(row)
		if !a.counts(target) {
			continue
		}
		weight.Data[0]++
		if target >= float64(c) {
			loss.Data[0] = math.NaN()
			continue
		}
		loss.Data[0] += lse.Data[r] - row[int(target)]
	}
	return []*Array{loss, weight, lse}
}

func refCrossEntropyGrad(n *Node, in []*Array) []*Array {
	dloss, logits, targets, lse := in[0].Data[0], in[1], in[2], in[3]
	dl, a := NewArray(n.Out[0].Type), n.Attrs.(CrossEntropyAttrs)
	c, _ := lastAndRows(logits.Shape)
	for r, target := range targets.Data {
		if !a.counts(target) {
			continue
		}
		for i, v := range logits.Data[r*c:][:c] {
			p := math.Exp(v - lse.Data[r])
			switch {
			case target >= float64(c):
				p = math.NaN()
			case i == int(target):
				p--
			}
			dl.Data[r*c+i] = p * dloss
		}
	}
	return []*Array{dl}
}

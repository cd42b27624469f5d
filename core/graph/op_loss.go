package graph

import (
	"starling/core/tensor"
)

// OpCrossEntropy is the loss of classification, summed over rows.
var OpCrossEntropy = register(Op{
	Name: "cross_entropy",
	Doc: "(logits[...,V], targets i32[...]) -> loss f32[], weight f32[], lse f32[rows]: loss is the sum over rows of lse - logits[target], " +
		"weight the number of rows that count; a row whose target is Ignore or negative counts for nothing, one whose target is V or more gives NaN; " +
		"the gradient flows from loss alone",
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

package graph

import (
	"fmt"

	"starling/core/tensor"
)

// Matrix products, and the table look-up that is one with a sparse operand.

// OpMatmul multiplies matrices, batch by batch.
var OpMatmul = register(Op{
	Name: "matmul",
	Doc:  "(a[...,M,K], b[...,K,N]) -> y[...,M,N]: batch dimensions broadcast; TransA reads a as [...,K,M], TransB reads b as [...,N,K]",
	Infer: func(in []*Value, attrs any) ([]Type, error) {
		at, err := attrsAs[MatmulAttrs](attrs)
		if err := all(err, arity(in, "a", "b")); err != nil {
			return nil, err
		}
		if err := floats(in...); err != nil {
			return nil, err
		}
		a, b := in[0].Shape, in[1].Shape
		describe := func(s tensor.Shape, transposed bool) string {
			if transposed {
				return s.String() + " transposed"
			}
			return s.String()
		}
		what := fmt.Sprintf("cannot multiply %s by %s", describe(a, at.TransA), describe(b, at.TransB))
		if len(a) < 2 || len(b) < 2 {
			return nil, fmt.Errorf("%s: both need at least two dimensions", what)
		}
		m, ka := a[len(a)-2], a[len(a)-1]
		if at.TransA {
			m, ka = ka, m
		}
		kb, n := b[len(b)-2], b[len(b)-1]
		if at.TransB {
			kb, n = n, kb
		}
		if ka != kb {
			return nil, fmt.Errorf("%s: the inner sizes %d and %d differ", what, ka, kb)
		}
		batch, err := tensor.Broadcast(a[:len(a)-2], b[:len(b)-2])
		if err != nil {
			return nil, fmt.Errorf("%s: the batch dimensions %v and %v do not broadcast", what, a[:len(a)-2], b[:len(b)-2])
		}
		return one(in[0].DType, append(batch, m, n)...), nil
	},
})

// OpLinear is a dense layer.
var OpLinear = register(Op{
	Name: "linear",
	Doc:  "(x[...,I], w[O,I], b[O]?) -> y[...,O]: x times w transposed, plus b",
	Infer: func(in []*Value, attrs any) ([]Type, error) {
		if err := arity(in, "x", "w", "b?"); err != nil {
			return nil, err
		}
		x, w := in[0], in[1]
		if err := all(floats(in...), hasLast("x", x), ofRank("w", w, 2, "[outputs, inputs]")); err != nil {
			return nil, err
		}
		last := len(x.Shape) - 1
		if x.Shape[last] != w.Shape[1] {
			return nil, fmt.Errorf("cannot multiply %v by a weight %v [outputs, inputs]: the inner sizes %d and %d differ",
				x.Shape, w.Shape, x.Shape[last], w.Shape[1])
		}
		y := x.Shape.Clone()
		y[last] = w.Shape[0]
		if len(in) == 3 {
			if err := ofShape("b", in[2], w.Shape[0]); err != nil {
				return nil, err
			}
		}
		return one(x.DType, y...), nil
	},
})

// OpLinearGradX is the gradient of OpLinear with respect to x.
var OpLinearGradX = register(Op{
	Name: "linear_grad_x",
	Doc:  "(dy[...,O], w[O,I]) -> dx[...,I]: dy times w",
	Infer: func(in []*Value, attrs any) ([]Type, error) {
		if err := arity(in, "dy", "w"); err != nil {
			return nil, err
		}
		dy, w := in[0], in[1]
		if err := all(floats(in...), hasLast("dy", dy), ofRank("w", w, 2, "[outputs, inputs]")); err != nil {
			return nil, err
		}
		s := dy.Shape.Clone()
		if s[len(s)-1] != w.Shape[0] {
			return nil, fmt.Errorf("cannot multiply %v by %v: the inner sizes %d and %d differ", s, w.Shape, s[len(s)-1], w.Shape[0])
		}
		s[len(s)-1] = w.Shape[1]
		return one(dy.DType, s...), nil
	},
})

// OpLinearGradW is the gradient of OpLinear with respect to w.
var OpLinearGradW = register(Op{
	Name:        "linear_grad_w",
	Doc:         "(dy[...,O], x[...,I]) -> dw[O,I]: the sum over rows, ascending, of the outer products of dy and x",
	Accumulates: true,
	Infer: func(in []*Value, attrs any) ([]Type, error) {
		if err := arity(in, "dy", "x"); err != nil {
			return nil, err
		}
		if err := all(floats(in...), hasLast("dy", in[0]), hasLast("x", in[1])); err != nil {
			return nil, err
		}
		dy, x := in[0].Shape, in[1].Shape
		if !dy[:len(dy)-1].Equal(x[:len(x)-1]) {
			return nil, fmt.Errorf("the rows of dy %v and x %v differ", dy, x)
		}
		return one(in[0].DType, dy[len(dy)-1], x[len(x)-1]), nil
	},
})

// OpLinearGradB is the gradient of OpLinear with respect to b.
var OpLinearGradB = register(Op{
	Name: "linear_grad_b",
	Doc:  "(dy[...,O]) -> db[O]: the sum over rows, ascending",
	Infer: func(in []*Value, attrs any) ([]Type, error) {
		if err := arity(in, "dy"); err != nil {
			return nil, err
		}
		if err := all(floats(in...), hasLast("dy", in[0])); err != nil {
			return nil, err
		}
		last, _ := lastAndRows(in[0].Shape)
		return one(in[0].DType, last), nil
	},
})

// OpEmbedding looks rows up.
var OpEmbedding = register(Op{
	Name: "embedding",
	Doc:  "(table[V,C], ids i32[...]) -> y[...,C]: row ids of the table; an id outside 0 to V-1 gives a row of NaN",
	Infer: func(in []*Value, attrs any) ([]Type, error) {
		if err := arity(in, "table", "ids"); err != nil {
			return nil, err
		}
		table, ids := in[0], in[1]
		if err := all(floats(table), ofRank("table", table, 2, "[rows, width]"), ofDType("ids", ids, tensor.I32)); err != nil {
			return nil, err
		}
		return one(table.DType, append(ids.Shape.Clone(), table.Shape[1])...), nil
	},
})

// OpEmbeddingGrad is the gradient of OpEmbedding.
var OpEmbeddingGrad = register(Op{
	Name: "embedding_grad",
	Doc:  "(dy[...,C], ids i32[...]) -> dtable[Rows,C]: rows of dy added at their ids in ascending order of position; ids outside the table are passed over",
	Infer: func(in []*Value, attrs any) ([]Type, error) {
		a, err := attrsAs[EmbeddingGradAttrs](attrs)
		if err := all(err, arity(in, "dy", "ids")); err != nil {
			return nil, err
		}
		dy, ids := in[0], in[1]
		if err := all(floats(dy), hasLast("dy", dy), ofDType("ids", ids, tensor.I32)); err != nil {
			return nil, err
		}
		last := len(dy.Shape) - 1
		return one(dy.DType, a.Rows, dy.Shape[last]), ofShape("ids", ids, dy.Shape[:last]...)
	},
})

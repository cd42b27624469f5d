package graph

import (
	"fmt"
	"math"

	"starling/core/tensor"
)

// Matrix products, and the table look-up that is one with a sparse operand.

// OpMatmul multiplies matrices, batch by batch.
var OpMatmul = register(Op{
	Name: "matmul",
	Doc:  "(a[...,M,K], b[...,K,N]) -> y[...,M,N]: batch dimensions broadcast; TransA reads a as [...,K,M], TransB reads b as [...,N,K]",
	Grad: gradMatmul,
	Ref:  refMatmul,
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
	Grad: gradLinear,
	Ref:  refLinear,
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
	Ref:  refLinearGradX,
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
	Ref:         refLinearGradW,
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

// OpLinearGradWWide is OpLinearGradW with a sum in fp32 whatever the type of the operands.
var OpLinearGradWWide = register(Op{
	Name:        "linear_grad_w_wide",
	Doc:         "(dy[...,O], x[...,I]) -> dw f32[O,I]: linear_grad_w, never rounded to the operands' type",
	Accumulates: true,
	Ref:         refLinearGradW,
	Infer: func(in []*Value, attrs any) ([]Type, error) {
		types, err := ops["linear_grad_w"].Infer(in, attrs)
		if err != nil {
			return nil, err
		}
		types[0].DType = tensor.F32
		return types, nil
	},
})

// OpLinearGradB is the gradient of OpLinear with respect to b.
var OpLinearGradB = register(Op{
	Name: "linear_grad_b",
	Doc:  "(dy[...,O]) -> db[O]: the sum over rows, ascending",
	Ref:  refLinearGradB,
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
	Grad: gradEmbedding,
	Ref:  refEmbedding,
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
	Doc: "(dy[...,C], ids i32[...]) -> dtable[Rows,C]: rows of dy added at their ids in ascending order of position; ids outside the table are passed over. " +
		"Accumulating, what has been summed for a row is then added to it",
	Accumulates: true,
	Ref:         refEmbeddingGrad,
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

func gradMatmul(b *Builder, n *Node, dout []*Value) []*Value {
	at := n.Attrs.(MatmulAttrs)
	x, y, dz := n.In[0], n.In[1], dout[0]
	var dx, dy *Value
	if at.TransA {
		dx = b.do("matmul", MatmulAttrs{TransA: at.TransB, TransB: true}, y, dz)
	} else {
		dx = b.do("matmul", MatmulAttrs{TransB: !at.TransB}, dz, y)
	}
	if at.TransB {
		dy = b.do("matmul", MatmulAttrs{TransA: true, TransB: at.TransA}, dz, x)
	} else {
		dy = b.do("matmul", MatmulAttrs{TransA: !at.TransA}, x, dz)
	}
	return []*Value{b.unbroadcast(dx, x.Shape), b.unbroadcast(dy, y.Shape)}
}

func refMatmul(n *Node, in []*Array) []*Array {
	at := n.Attrs.(MatmulAttrs)
	a, b, y := in[0], in[1], NewArray(n.Out[0].Type)
	rank := len(y.Shape)
	m, cols := y.Shape[rank-2], y.Shape[rank-1]
	batch := y.Shape[:rank-2]
	ia := broadcastIndex(a.Shape[:len(a.Shape)-2], batch)
	ib := broadcastIndex(b.Shape[:len(b.Shape)-2], batch)
	// Element (i, k) of a is at i*ai + k*ak, element (k, j) of b at k*bk + j*bj.
	ai, ak := a.Shape[len(a.Shape)-1], 1
	k := ai
	if at.TransA {
		k = a.Shape[len(a.Shape)-2]
		ai, ak = ak, ai
	}
	bk, bj := b.Shape[len(b.Shape)-1], 1
	if at.TransB {
		bk, bj = bj, bk
	}
	for z := range batch.Numel() {
		pa, pb := a.Data[ia(z)*m*k:], b.Data[ib(z)*k*cols:]
		for i := range m {
			for j := range cols {
				s := 0.0
				for p := range k {
					s += pa[i*ai+p*ak] * pb[p*bk+j*bj]
				}
				y.Data[(z*m+i)*cols+j] = s
			}
		}
	}
	return []*Array{y}
}

func gradLinear(b *Builder, n *Node, dout []*Value) []*Value {
	din := []*Value{
		b.do("linear_grad_x", nil, dout[0], n.In[1]),
		b.do("linear_grad_w", nil, dout[0], n.In[0]),
	}
	if len(n.In) == 3 {
		din = append(din, b.do("linear_grad_b", nil, dout[0]))
	}
	return din
}

func refLinear(n *Node, in []*Array) []*Array {
	x, w, y := in[0], in[1], NewArray(n.Out[0].Type)
	o, rows := lastAndRows(y.Shape)
	i := w.Shape[1]
	for r := range rows {
		for j := range o {
			s := dot(x.Data[r*i:][:i], w.Data[j*i:][:i])
			if len(in) == 3 {
				s += in[2].Data[j]
			}
			y.Data[r*o+j] = s
		}
	}
	return []*Array{y}
}

func refLinearGradX(n *Node, in []*Array) []*Array {
	dy, w, dx := in[0], in[1], NewArray(n.Out[0].Type)
	o, rows := lastAndRows(dy.Shape)
	i := w.Shape[1]
	for r := range rows {
		for j := range o {
			axpy(dx.Data[r*i:][:i], dy.Data[r*o+j], w.Data[j*i:][:i])
		}
	}
	return []*Array{dx}
}

// axpy adds c*x to y.
func axpy(y []float64, c float64, x []float64) {
	for i, v := range x {
		y[i] += c * v
	}
}

func refLinearGradW(n *Node, in []*Array) []*Array {
	dy, x, dw := in[0], in[1], NewArray(n.Out[0].Type)
	o, rows := lastAndRows(dy.Shape)
	i, _ := lastAndRows(x.Shape)
	for r := range rows {
		for j := range o {
			axpy(dw.Data[j*i:][:i], dy.Data[r*o+j], x.Data[r*i:][:i])
		}
	}
	return []*Array{dw}
}

func refLinearGradB(n *Node, in []*Array) []*Array {
	db := NewArray(n.Out[0].Type)
	o, rows := lastAndRows(in[0].Shape)
	for r := range rows {
		axpy(db.Data, 1, in[0].Data[r*o:][:o])
	}
	return []*Array{db}
}

func gradEmbedding(b *Builder, n *Node, dout []*Value) []*Value {
	return []*Value{b.do("embedding_grad", EmbeddingGradAttrs{n.In[0].Shape[0]}, dout[0], n.In[1]), nil}
}

func refEmbedding(n *Node, in []*Array) []*Array {
	table, y := in[0], NewArray(n.Out[0].Type)
	v, c := table.Shape[0], table.Shape[1]
	for r, id := range in[1].Data {
		row := y.Data[r*c:][:c]
		if id < 0 || id >= float64(v) {
			for i := range row {
				row[i] = math.NaN()
			}
			continue
		}
		copy(row, table.Data[int(id)*c:])
	}
	return []*Array{y}
}

func refEmbeddingGrad(n *Node, in []*Array) []*Array {
	dt := NewArray(n.Out[0].Type)
	v, c := dt.Shape[0], dt.Shape[1]
	for r, id := range in[1].Data {
		if id >= 0 && id < float64(v) {
			axpy(dt.Data[int(id)*c:][:c], 1, in[0].Data[r*c:][:c])
		}
	}
	return []*Array{dt}
}

package graph

import (
	"math"

	"starling/core/tensor"
)

// Normalisation over the last dimension. Statistics are f32 whatever the element type is.

// OpLayerNorm is layer normalisation.
var OpLayerNorm = register(Op{
	Name: "layer_norm",
	Doc: "(x[...,C], w[C], b[C]?) -> y[...,C], stats f32[rows,2]: (x - mean) * rstd * w + b over the last dimension, " +
		"rstd = 1/sqrt(variance + Eps) with the biased variance; stats holds mean and rstd of each row",
	Grad: gradLayerNorm,
	Ref:  refLayerNorm,
	Infer: func(in []*Value, attrs any) ([]Type, error) {
		_, err := attrsAs[NormAttrs](attrs)
		if err := all(err, arity(in, "x", "w", "b?")); err != nil {
			return nil, err
		}
		x := in[0]
		if err := all(floats(in...), hasLast("x", x)); err != nil {
			return nil, err
		}
		c, rows := lastAndRows(x.Shape)
		if err := ofShape("w", in[1], c); err != nil {
			return nil, err
		}
		if len(in) == 3 {
			if err := ofShape("b", in[2], c); err != nil {
				return nil, err
			}
		}
		return []Type{x.Type, {tensor.F32, tensor.Shape{rows, 2}}}, nil
	},
})

// OpLayerNormGrad is the gradient of OpLayerNorm.
var OpLayerNormGrad = register(Op{
	Name: "layer_norm_grad",
	Doc: "(dy[...,C], x[...,C], w[C], stats f32[rows,2]) -> dx[...,C], dw[C], db[C]; with h = (x - mean) * rstd and g = dy*w: " +
		"dx = rstd * (g - mean(g) - h * mean(g*h)), dw = sum of dy*h over rows, db = sum of dy over rows",
	Ref: refLayerNormGrad,
	Infer: func(in []*Value, attrs any) ([]Type, error) {
		if err := arity(in, "dy", "x", "w", "stats"); err != nil {
			return nil, err
		}
		x := in[1]
		if err := all(floats(in[:3]...), hasLast("x", x), ofDType("stats", in[3], tensor.F32)); err != nil {
			return nil, err
		}
		c, rows := lastAndRows(x.Shape)
		err := all(ofShape("dy", in[0], x.Shape...), ofShape("w", in[2], c), ofShape("stats", in[3], rows, 2))
		return []Type{x.Type, in[2].Type, in[2].Type}, err
	},
})

// OpRMSNorm is root-mean-square normalisation.
var OpRMSNorm = register(Op{
	Name: "rms_norm",
	Doc:  "(x[...,C], w[C]) -> y[...,C], rstd f32[rows]: x * rstd * w over the last dimension, rstd = 1/sqrt(mean(x*x) + Eps)",
	Grad: gradRMSNorm,
	Ref:  refRMSNorm,
	Infer: func(in []*Value, attrs any) ([]Type, error) {
		_, err := attrsAs[NormAttrs](attrs)
		if err := all(err, arity(in, "x", "w")); err != nil {
			return nil, err
		}
		x := in[0]
		if err := all(floats(in...), hasLast("x", x)); err != nil {
			return nil, err
		}
		c, rows := lastAndRows(x.Shape)
		return []Type{x.Type, {tensor.F32, tensor.Shape{rows}}}, ofShape("w", in[1], c)
	},
})

// OpRMSNormGrad is the gradient of OpRMSNorm.
var OpRMSNormGrad = register(Op{
	Name: "rms_norm_grad",
	Doc: "(dy[...,C], x[...,C], w[C], rstd f32[rows]) -> dx[...,C], dw[C]; with h = x * rstd and g = dy*w: " +
		"dx = rstd * (g - h * mean(g*h)), dw = sum of dy*h over rows",
	Ref: refRMSNormGrad,
	Infer: func(in []*Value, attrs any) ([]Type, error) {
		if err := arity(in, "dy", "x", "w", "rstd"); err != nil {
			return nil, err
		}
		x := in[1]
		if err := all(floats(in[:3]...), hasLast("x", x), ofDType("rstd", in[3], tensor.F32)); err != nil {
			return nil, err
		}
		c, rows := lastAndRows(x.Shape)
		err := all(ofShape("dy", in[0], x.Shape...), ofShape("w", in[2], c), ofShape("rstd", in[3], rows))
		return []Type{x.Type, in[2].Type}, err
	},
})

func gradLayerNorm(b *Builder, n *Node, dout []*Value) []*Value {
	return b.Must(ops["layer_norm_grad"], nil, dout[0], n.In[0], n.In[1], n.Out[1])[:len(n.In)]
}

func refLayerNorm(n *Node, in []*Array) []*Array {
	x, w := in[0], in[1]
	y, stats := NewArray(n.Out[0].Type), NewArray(n.Out[1].Type)
	eps := n.Attrs.(NormAttrs).Eps
	c, rows := lastAndRows(x.Shape)
	for r := range rows {
		row := x.Data[r*c:][:c]
		mean, variance := 0.0, 0.0
		for _, v := range row {
			mean += v / float64(c)
		}
		for _, v := range row {
			variance += (v - mean) * (v - mean) / float64(c)
		}
		rstd := 1 / math.Sqrt(variance+eps)
		stats.Data[2*r], stats.Data[2*r+1] = mean, rstd
		for i, v := range row {
			y.Data[r*c+i] = (v - mean) * rstd * w.Data[i]
			if len(in) == 3 {
				y.Data[r*c+i] += in[2].Data[i]
			}
		}
	}
	return []*Array{y, stats}
}

func refLayerNormGrad(n *Node, in []*Array) []*Array {
	dy, x, w, stats := in[0], in[1], in[2], in[3]
	dx, dw, db := NewArray(n.Out[0].Type), NewArray(n.Out[1].Type), NewArray(n.Out[2].Type)
	c, rows := lastAndRows(x.Shape)
	h, g := make([]float64, c), make([]float64, c)
	for r := range rows {
		mean, rstd := stats.Data[2*r], stats.Data[2*r+1]
		meanG, meanGH := 0.0, 0.0
		for i := range c {
			d := dy.Data[r*c+i]
			h[i], g[i] = (x.Data[r*c+i]-mean)*rstd, d*w.Data[i]
			meanG += g[i] / float64(c)
			meanGH += g[i] * h[i] / float64(c)
			dw.Data[i] += d * h[i]
			db.Data[i] += d
		}
		for i := range c {
			dx.Data[r*c+i] = rstd * (g[i] - meanG - h[i]*meanGH)
		}
	}
	return []*Array{dx, dw, db}
}

func gradRMSNorm(b *Builder, n *Node, dout []*Value) []*Value {
	return b.Must(ops["rms_norm_grad"], nil, dout[0], n.In[0], n.In[1], n.Out[1])
}

func refRMSNorm(n *Node, in []*Array) []*Array {
	x, w := in[0], in[1]
	y, stats := NewArray(n.Out[0].Type), NewArray(n.Out[1].Type)
	c, rows := lastAndRows(x.Shape)
	for r := range rows {
		row := x.Data[r*c:][:c]
		rstd := 1 / math.Sqrt(dot(row, row)/float64(c)+n.Attrs.(NormAttrs).Eps)
		stats.Data[r] = rstd
		for i, v := range row {
			y.Data[r*c+i] = v * rstd * w.Data[i]
		}
	}
	return []*Array{y, stats}
}

func refRMSNormGrad(n *Node, in []*Array) []*Array {
	dy, x, w, stats := in[0], in[1], in[2], in[3]
	dx, dw := NewArray(n.Out[0].Type), NewArray(n.Out[1].Type)
	c, rows := lastAndRows(x.Shape)
	for r := range rows {
		rstd, meanGH := stats.Data[r], 0.0
		for i := range c {
			d, h := dy.Data[r*c+i], x.Data[r*c+i]*rstd
			meanGH += d * w.Data[i] * h / float64(c)
			dw.Data[i] += d * h
		}
		for i := range c {
			dx.Data[r*c+i] = rstd * (dy.Data[r*c+i]*w.Data[i] - x.Data[r*c+i]*rstd*meanGH)
		}
	}
	return []*Array{dx, dw}
}

package graph

import "starling/core/tensor"

// Normalisation over the last dimension. Statistics are f32 whatever the element type is.

// OpLayerNorm is layer normalisation.
var OpLayerNorm = register(Op{
	Name: "layer_norm",
	Doc: "(x[...,C], w[C], b[C]?) -> y[...,C], stats f32[rows,2]: (x - mean) * rstd * w + b over the last dimension, " +
		"rstd = 1/sqrt(variance + Eps) with the biased variance; stats holds mean and rstd of each row",
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

package train

import (
	"context"
	"math"

	"starling/core/device"
	"starling/core/graph"
	"starling/core/plan"
)

// clipped bounds the gradient whose norm is norm once it is multiplied by scale: first the norm, which changes the scale, then single elements,
// which are changed where they lie. The gradient lies in memory scaled (by the loss's scale, and by one over the nominal
// weight), so the bound of an element is divided by the scale.
func (e *engine) clipped(scale, norm float64) (float64, error) {
	if c := e.spec.ClipNorm; c > 0 {
		if k := c / (norm + 1e-6); k < 1 {
			scale *= k
		}
	}
	if e.clip == nil {
		return scale, nil
	}
	e.limit[0] = e.spec.ClipValue / scale
	return scale, e.clip.Run(&device.Env{Comm: e.collect})
}

// gradientNorm joins the partial results of all parameters in order of name, and names the first that is not finite.
func (e *engine) gradientNorm(ctx context.Context) (norm float64, bad *plan.Param, err error) {
	sharded := len(e.plan.Units) > 0
	all := [][]float64{nil}
	if sharded {
		e.norms = e.norms[:0]
		for _, p := range e.plan.Params {
			if p.Optimised() && p.Owned.Len() > 0 {
				e.norms = append(e.norms, device.View[float64](e.mem, p.Partials)...)
			}
		}
		if all, err = e.env.Group.AllGatherFloat64(ctx, e.labels.norm, e.norms); err != nil {
			return 0, nil, err
		}
	}
	join := func(blocks []float64) {
		for _, v := range blocks {
			if e.plan.Settings.Norm == plan.LInf {
				norm = math.Max(norm, v) // NaN if either is
			} else {
				norm += v
			}
		}
	}
	for i := range e.plan.Params {
		p := &e.plan.Params[i]
		if !p.Optimised() {
			continue
		}
		if !sharded {
			join(device.View[float64](e.mem, p.Partials))
		}
		for _, r := range e.plan.ShareOrder(p) { // ascending shares, cut at the blocks of partial results
			n := (p.Shares[r].Len() + graph.SumSquaresBlock - 1) / graph.SumSquaresBlock
			join(all[r][:n])
			all[r] = all[r][n:]
		}
		if math.IsNaN(norm) || math.IsInf(norm, 0) {
			return 0, p, nil
		}
	}
	if e.plan.Settings.Norm == plan.L2 {
		norm = math.Sqrt(norm)
	}
	return norm, nil, nil
}

package plan

import "math"

// Estimate is the model state of one rank in bytes, by the formula of Rajbhandari et al. (ZeRO: Memory Optimizations Toward
// Training Trillion Parameter Models, 2020), with the stack of partial sums that a canonical sum over lanes needs. What a
// plan really lays out is in Plan.ArenaBytes.
type Estimate struct{ Params, Grads, State float64 }

// Total is the sum.
func (e Estimate) Total() float64 { return e.Params + e.Grads + e.State }

// ElementBytes is the memory of one element of the model: the weight in use, the gradient, and the optimizer's state with
// the master weight.
type ElementBytes struct{ Weight, Grad, State float64 }

// EstimateState computes (weight + grad·(1 + log2(lanes/ranks)) + state)·elements, divided by ranks from the stage on that
// shards each: state from 1, gradients from 2, weights from 3.
func EstimateState(elements float64, stage, ranks, lanes int, b ElementBytes) Estimate {
	share := func(from int) float64 {
		if stage >= from {
			return elements / float64(ranks)
		}
		return elements
	}
	depth := 1 + math.Log2(float64(lanes)/float64(ranks))
	return Estimate{Params: b.Weight * share(3), Grads: b.Grad * depth * share(2), State: b.State * share(1)}
}

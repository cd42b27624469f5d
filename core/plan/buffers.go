package plan

import "starling/core/graph"

// Buffers (graph.ParamAttrs.Buffer) go the way of parameters: what a micro-batch has seen is folded and reduced as a gradient is, in buckets of
// their own, and the update moves them by graph.OpAverage. So they have the same bits at every placement.

// buffers tells which names of the graph are buffers.
func (s *State) buffers() map[string]bool {
	out := map[string]bool{}
	for _, n := range s.Graph.Params() {
		if a := n.Attrs.(graph.ParamAttrs); a.Buffer {
			out[a.Name] = true
		}
	}
	return out
}

// averaged is the update of a buffer: towards the mean over all micro-batches of a step and all uses.
func (s Settings) averaged(q *Param) Update {
	return Update{Op: graph.OpAverage, Attrs: graph.AverageAttrs{Rate: q.Rate, Weight: 1 / float64(s.MicroBatches*len(q.Uses))}}
}

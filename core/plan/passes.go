package plan

import (
	"fmt"

	"starling/core/graph"
)

// Pass is one transform of a graph. It replaces State.Graph and leaves the graph that it found untouched.
type Pass struct {
	Name string
	// Doc is one line: what the pass does.
	Doc string
	Run func(*State) error
}

// State is what the passes work on.
type State struct {
	Settings Settings
	Graph    *graph.Graph
	// Grads lists one gradient for each use of a trainable parameter. Before distribute it is in the order that
	// differentiation gives, afterwards in the order of completion.
	Grads []Gradient
	// Unreached names the trainable parameters that the loss does not depend on.
	Unreached []string
	// Buckets are the groups in which gradients travel.
	Buckets []Bucket
	// Units are the groups of parameters that are cut over the ranks; none where nothing is sharded.
	Units []*Unit
	// Notes are remarks for the person who runs the plan.
	Notes []string
}

// Gradient is the gradient of one use of a parameter. In the graph it is the output that Output names.
type Gradient struct {
	Param string
	Use   int // in trace order
}

// Output is the name of the graph's output that holds the gradient, such as "grad wte 1".
func (g Gradient) Output() string { return fmt.Sprintf("%s%s %d", gradPrefix, g.Param, g.Use) }

const gradPrefix = "grad "

// PassRecord is the graph as it was after a pass.
type PassRecord struct {
	Pass  Pass
	Graph *graph.Graph
}

// Passes is the lowering of a training graph, in order. The order is part of the design: precision is decided on the forward pass, whose casts
// differentiation turns around; gradients exist before anything else looks at the graph, so that every later pass sees forward and backward as one; fusions that may change bits
// come before all that knows of placement, and pruning behind them takes away what they replaced; accumulators are chosen before the order, which moves gradient products
// towards their operands; buckets are cut last, because they follow the order in which gradients are complete.
func Passes() []Pass {
	return []Pass{
		{"autocast", "round weights, products and what is made of them to the half type of the recipe's precision", autocast},
		{"differentiate", "append the backward pass; one gradient for each use of a parameter", differentiate},
		{"widen", "do the arithmetic on half values in fp32", widen},
		{"share", "compute equal expressions once", share},
		{"recast", "let the backward pass read half values, not their fp32 forms", recast},
		{"narrow", "read and write bfloat16 where casts stand around an operation", narrow},
		{"fuse", "join the gradients of adjoining slices", fuse},
		{"fuse attention", "read queries, keys and values where one layer has put them", fuseAttention},
		{"chunk loss", "compute large logits, their loss and their gradients a chunk of rows at a time", chunkLoss},
		{"prune", "drop what no output depends on", prune},
		{"recompute", "compute activations of the chosen blocks again instead of keeping them", recompute},
		{"accumulate", "let each gradient end in a node that adds into its accumulator", accumulate},
		{"order", "complete gradients as soon as their operands exist, make constants late", order},
		{"distribute", "cut the gradients into buckets in the order of completion", distribute},
	}
}

// ForwardPasses is the lowering of a graph without gradients.
func ForwardPasses() []Pass {
	return []Pass{
		{"autocast", "round weights, products and what is made of them to the half type of the recipe's precision", autocast},
		{"share", "compute equal expressions once", share},
		{"narrow", "read and write bfloat16 where casts stand around an operation", narrow},
		{"fuse attention", "read queries, keys and values where one layer has put them", fuseAttention},
		{"chunk loss", "compute large logits, their loss and their gradients a chunk of rows at a time", chunkLoss},
		{"prune", "drop what no output depends on", prune},
		{"order", "make constants late", order},
	}
}

// runPasses applies the list and verifies the graph after each pass; a failure there is a mistake of the pass, and
// the error names it.
func runPasses(s *State, passes []Pass) ([]PassRecord, error) {
	if err := graph.Verify(s.Graph); err != nil {
		return nil, fmt.Errorf("plan: the traced graph is not valid: %w", err)
	}
	var records []PassRecord
	for _, p := range passes {
		if err := p.Run(s); err != nil {
			return nil, err
		}
		if err := graph.Verify(s.Graph); err != nil {
			return nil, fmt.Errorf("plan: pass %s left a graph that is not valid: %w", p.Name, err)
		}
		records = append(records, PassRecord{p, s.Graph})
	}
	return records, nil
}

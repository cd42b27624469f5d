package train

import (
	"fmt"

	"starling/core/plan"
)

// Labels are what a stalled or mismatched collective is reported by: what it carries, and the block and the line of the recipe that it is for.

// bucketLabel names a gradient bucket by what is in it.
func bucketLabel(p *plan.Plan, b plan.Bucket) string {
	return fmt.Sprintf("gradient bucket %d (%s)", b.Index, b.Label) + fromBlock(p.Param(b.Grads[0].Param))
}

// unitLabel names the parameters that ranks complete for each other.
func unitLabel(p *plan.Plan, u *plan.Unit) string {
	return fmt.Sprintf("parameters %d (%s)", u.Index, u.Label) + fromBlock(p.Param(u.Members[0].Param))
}

func fromBlock(q *plan.Param) string {
	switch {
	case q == nil || q.Pos.File == "":
		return ""
	case q.Block == "":
		return fmt.Sprintf(", from a parameter at %v", q.Pos)
	}
	return fmt.Sprintf(", from block %q at %v", q.Block, q.Pos)
}

// label names what belongs to no block, by the setting of the recipe that asks for it (a key of Positions) or else by train.
func (s *Spec) label(what, key string) string {
	at, ok := s.Positions[key]
	if !ok {
		key, at = "train", s.Positions["train"]
	}
	if at.File == "" {
		return what
	}
	return fmt.Sprintf("%s, from %s at %v", what, key, at)
}

// stepLabels are those of a step, made once.
type stepLabels struct{ figures, norm, gaveUp, renewed string }

func newStepLabels(s *Spec) stepLabels {
	return stepLabels{
		figures: s.label("losses and weights", "train"),
		norm:    s.label("partial results of the gradient's norm", "train"),
		gaveUp:  s.label("whether a plugin was given up", "optimizer"),
		renewed: s.label("which elements a plugin has renewed", "optimizer"),
	}
}

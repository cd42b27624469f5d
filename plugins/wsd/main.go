// Command wsd is a learning-rate schedule as a plugin: warm up, stay, decay (Hu et al., MiniCPM, 2024; the square-root decay is
// that of Hägele et al., Scaling Laws and Compute-Optimal Training Beyond Fixed Training Durations, 2024).
package main

import (
	"fmt"
	"math"

	"starling/sdk"
)

func main() { sdk.Serve(&wsd{}) }

type wsd struct {
	peak, floor            float64
	warmup, decayed, total int // decayed is the step at which the decay begins
	root                   bool
}

func (*wsd) Manifest() sdk.Manifest {
	return sdk.Manifest{
		Name:    "wsd",
		Version: "1.0.0",
		Doc:     "warm up, stay, decay: a learning rate that stays at its peak until the last part of the run",
		Hypers: []sdk.Hyper{
			sdk.Float("peak", 0, "the highest learning rate").AtLeast(0).Required(),
			sdk.Int("warmup", 0, "steps of a linear rise to the peak").AtLeast(0),
			sdk.Float("decay", 0.2, "part of the steps that the decay takes, the last ones").AtLeast(0).AtMost(1),
			sdk.Float("floor", 0, "where the decay ends, as a part of the peak").AtLeast(0).AtMost(1),
			sdk.String("shape", "sqrt", "of the decay: 1 - sqrt(x), or a straight line").OneOf("sqrt", "linear"),
		},
	}
}

func (w *wsd) Begin(h sdk.Hypers, total int) error {
	length := int(math.Round(h.Float("decay") * float64(total)))
	*w = wsd{peak: h.Float("peak"), floor: h.Float("floor"), warmup: h.Int("warmup"), decayed: total - length, total: total, root: h.String("shape") == "sqrt"}
	if w.warmup > w.decayed {
		return fmt.Errorf("warmup = %d: the decay of the last %d of %d steps begins before the rise ends", w.warmup, length, total)
	}
	return nil
}

// Rate has only operations that every processor rounds alike.
func (w *wsd) Rate(step int) float64 {
	switch {
	case step < w.warmup:
		return w.peak * (float64(step+1) / float64(w.warmup))
	case step < w.decayed:
		return w.peak
	}
	x := float64(step+1-w.decayed) / float64(w.total-w.decayed) // 1 in the last step
	if w.root {
		x = math.Sqrt(x)
	}
	return w.peak * (w.floor + float64((1-w.floor)*(1-x)))
}

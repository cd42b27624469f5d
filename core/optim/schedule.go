package optim

import (
	"fmt"
	"math"

	"starling/core/tensor/detmath"
)

// Schedule gives the learning rate of each optimizer step. Steps count updates that were
// taken, from 0. Values are computed in float64 without architecture-dependent functions,
// so that they are the same bits everywhere.
type Schedule interface {
	At(step int) float64
	// Validate reports a setting that cannot be meant.
	Validate() error
	// String is the canonical form: it enters the recipe's digest.
	String() string
}

// Constant is the same rate at every step.
type Constant struct{ Rate float64 }

// At returns the rate.
func (s Constant) At(int) float64 { return s.Rate }

// Validate refuses a rate that is negative or not finite.
func (s Constant) Validate() error { return rate("lr", s.Rate) }

func (s Constant) String() string { return fmt.Sprintf("constant(%v)", s.Rate) }

// Step multiplies the rate by Gamma every Every steps.
type Step struct {
	Rate  float64
	Every int
	Gamma float64
}

// At returns Rate · Gamma^⌊step/Every⌋.
func (s Step) At(step int) float64 {
	return s.Rate * detmath.PowInt(s.Gamma, step/s.Every)
}

// Validate refuses a period below 1 and a negative rate or factor.
func (s Step) Validate() error {
	if s.Every < 1 {
		return fmt.Errorf("every = %d: must be at least 1", s.Every)
	}
	if err := rate("gamma", s.Gamma); err != nil {
		return err
	}
	return rate("lr", s.Rate)
}

func (s Step) String() string { return fmt.Sprintf("step(%v, %d, %v)", s.Rate, s.Every, s.Gamma) }

// Linear goes from From at step 0 to To at step Total and stays there.
type Linear struct {
	From, To float64
	Total    int
}

// At interpolates between the ends.
func (s Linear) At(step int) float64 {
	if step >= s.Total {
		return s.To
	}
	return s.From + float64((s.To-s.From)*(float64(step)/float64(s.Total)))
}

// Validate refuses a length below 1 and negative rates.
func (s Linear) Validate() error {
	if s.Total < 1 {
		return fmt.Errorf("total = %d: must be at least 1", s.Total)
	}
	if err := rate("start", s.From); err != nil {
		return err
	}
	return rate("end", s.To)
}

func (s Linear) String() string { return fmt.Sprintf("linear(%v, %v, %d)", s.From, s.To, s.Total) }

// WarmupCosine rises linearly to Peak over Warmup steps (step k has Peak·(k+1)/Warmup), then follows
// half a cosine down to Floor·Peak at step Total and stays there (Loshchilov and Hutter, SGDR, 2017, without restarts).
type WarmupCosine struct {
	Peak          float64
	Warmup, Total int
	Floor         float64 // fraction of Peak, 0.1 by default in recipes
}

// At returns the rate of a step.
func (s WarmupCosine) At(step int) float64 {
	if step < s.Warmup {
		return s.Peak * (float64(step+1) / float64(s.Warmup))
	}
	if step >= s.Total {
		return s.Peak * s.Floor
	}
	x := float64(step-s.Warmup) / float64(s.Total-s.Warmup)
	c := float64(0.5 * (1 + detmath.Cos(float64(math.Pi*x))))
	return s.Peak * (s.Floor + float64((1-s.Floor)*c))
}

// Validate refuses a warm-up that is longer than the whole, and a floor outside [0, 1].
func (s WarmupCosine) Validate() error {
	switch {
	case s.Total < 1:
		return fmt.Errorf("total = %d: must be at least 1", s.Total)
	case s.Warmup < 0 || s.Warmup > s.Total:
		return fmt.Errorf("warmup = %d: must lie between 0 and total = %d", s.Warmup, s.Total)
	case !(s.Floor >= 0 && s.Floor <= 1):
		return fmt.Errorf("floor = %v: must lie between 0 and 1, a fraction of the peak", s.Floor)
	}
	return rate("lr", s.Peak)
}

func (s WarmupCosine) String() string {
	return fmt.Sprintf("warmup_cosine(%v, %d, %d, %v)", s.Peak, s.Warmup, s.Total, s.Floor)
}

// ScaleByBatch adapts a rate tuned at baseBatch to globalBatch: by their ratio ("linear", Goyal et al. 2017) or by
// its square root ("sqrt", Krizhevsky 2014).
func ScaleByBatch(baseRate float64, baseBatch, globalBatch int, rule string) (float64, error) {
	if baseBatch < 1 || globalBatch < 1 {
		return 0, fmt.Errorf("batch sizes %d and %d: must be at least 1", baseBatch, globalBatch)
	}
	r := float64(globalBatch) / float64(baseBatch)
	switch rule {
	case "linear":
		return baseRate * r, nil
	case "sqrt":
		return baseRate * math.Sqrt(r), nil
	}
	return 0, fmt.Errorf("rule = %q: must be \"linear\" or \"sqrt\"", rule)
}

func rate(name string, v float64) error {
	if !(v >= 0) || math.IsInf(v, 0) {
		return fmt.Errorf("%s = %v: must be a finite number, at least 0", name, v)
	}
	return nil
}

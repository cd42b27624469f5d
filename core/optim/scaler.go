package optim

import (
	"errors"
	"fmt"
	"math"
)

// LossScale says by how much the loss is multiplied before the backward pass, so that small gradients survive 16-bit types. The
// optimizer divides it out again. The zero value means no scaling, and that a gradient that is not finite ends the run.
//
// A dynamic scale adapts: a step whose gradient is not finite on some rank is skipped by all (nothing moves, the schedule included), and the
// scale goes down; after long enough without one it goes up. Backoff says when:
//
//   - at_once, the rule of PyTorch and DeepSpeed: an overflow that uses up the hysteresis divides the scale by Factor at once, and Window clean
//     steps in a row multiply it by Factor.
//   - window_end decides at every Window-th step only: the scale goes up if the window saw no overflow, else down.
type LossScale struct {
	Init float64
	// Dynamic scales adapt. One that does not skips steps that overflow as well, at most a hundred in a row.
	Dynamic bool
	Factor  float64
	// Window is the number of clean steps after which the scale grows.
	Window int
	// Hysteresis is how many overflows it takes to shrink (1: each does); growing refills it.
	Hysteresis int
	// Floor is the least scale. An overflow there ends the run.
	Floor     float64
	WindowEnd bool
}

// DefaultLossScale is dynamic, as PyTorch's GradScaler but for the start, which is 2^15.
var DefaultLossScale = LossScale{Init: 1 << 15, Dynamic: true, Factor: 2, Window: 2000, Hysteresis: 1, Floor: 1}

// Active reports whether there is a scale at all.
func (l LossScale) Active() bool { return l.Init != 0 }

// Validate reports settings that cannot be meant.
func (l LossScale) Validate() error {
	positive := func(name string, v float64) error {
		if !(v > 0) || math.IsInf(v, 0) {
			return fmt.Errorf("loss_scale: %s = %v must be a finite number above 0", name, v)
		}
		return nil
	}
	if !l.Active() {
		return nil
	}
	if err := positive("init", l.Init); err != nil || !l.Dynamic {
		return err
	}
	if err := errors.Join(positive("factor", l.Factor), positive("floor", l.Floor)); err != nil {
		return err
	}
	switch {
	case l.Factor <= 1:
		return fmt.Errorf("loss_scale: factor = %v must be above 1", l.Factor)
	case l.Window < 1:
		return fmt.Errorf("loss_scale: window = %d must be at least 1", l.Window)
	case l.Hysteresis < 1:
		return fmt.Errorf("loss_scale: hysteresis = %d must be at least 1", l.Hysteresis)
	case l.Floor > l.Init:
		return fmt.Errorf("loss_scale: floor = %v lies above init = %v", l.Floor, l.Init)
	case 1/float32(l.Floor) > math.MaxFloat32:
		return fmt.Errorf("loss_scale: floor = %v: its inverse is infinite in fp32", l.Floor)
	}
	return nil
}

// String is the canonical form: it enters the recipe's digest.
func (l LossScale) String() string {
	switch {
	case !l.Active():
		return "none"
	case !l.Dynamic:
		return fmt.Sprintf("static(%v)", l.Init)
	}
	return fmt.Sprintf("dynamic(%v, factor %v, window %d, hysteresis %d, floor %v, window end %v)", l.Init, l.Factor, l.Window, l.Hysteresis, l.Floor, l.WindowEnd)
}

// ScaleState is where a scale stands. A checkpoint stores it whole.
type ScaleState struct {
	Scale float64 `json:"scale"`
	// Clean counts steps without overflow since the last overflow or change; in the window-end form all steps of the window, and
	// below zero the overflows in a row of a scale that does not adapt.
	Clean int `json:"clean"`
	// Left is how many overflows it takes to shrink.
	Left int `json:"left"`
	// Overflowed says that the window has seen an overflow (window-end form).
	Overflowed bool `json:"overflowed,omitempty"`
}

// Start is the state before the first step: no scaling is a scale of 1.
func (l LossScale) Start() ScaleState {
	if !l.Active() {
		return ScaleState{Scale: 1}
	}
	return ScaleState{Scale: l.Init, Left: l.Hysteresis}
}

// ErrScaleFloor is what Next returns where the scale would have to shrink below its floor, or cannot shrink at all.
var ErrScaleFloor = errors.New("the loss scale cannot go down any further")

// Next is the state after a step, which overflowed or did not. It has no side effects: given equal states and flags, every
// rank comes to the same scale.
func (l LossScale) Next(s ScaleState, overflow bool) (ScaleState, error) {
	switch {
	case !l.Active():
		if overflow {
			return s, ErrScaleFloor
		}
		return s, nil
	case !l.Dynamic:
		return l.nextStatic(s, overflow)
	case l.WindowEnd:
		return l.nextWindow(s, overflow)
	}
	if !overflow {
		if s.Clean++; s.Clean == l.Window {
			s.Scale, s.Clean, s.Left = l.grown(s.Scale), 0, l.Hysteresis
		}
		return s, nil
	}
	s.Clean = 0
	if s.Left > 1 {
		s.Left--
		return s, nil
	}
	return l.shrink(s)
}

// staticPatience is how many overflows in a row a scale that cannot adapt lets pass.
const staticPatience = 100

func (l LossScale) nextStatic(s ScaleState, overflow bool) (ScaleState, error) {
	if !overflow {
		s.Clean = 0
		return s, nil
	}
	if s.Clean--; s.Clean <= -staticPatience {
		return s, ErrScaleFloor
	}
	return s, nil
}

func (l LossScale) nextWindow(s ScaleState, overflow bool) (ScaleState, error) {
	s.Clean++
	s.Overflowed = s.Overflowed || overflow
	if s.Clean < l.Window {
		return s, nil
	}
	over := s.Overflowed
	s.Clean, s.Overflowed = 0, false
	if !over {
		s.Scale, s.Left = l.grown(s.Scale), l.Hysteresis
		return s, nil
	}
	if s.Left > 1 {
		s.Left--
		return s, nil
	}
	return l.shrink(s)
}

// grown is the next larger scale; one that fp32 cannot hold is not taken.
func (l LossScale) grown(scale float64) float64 {
	if up := scale * l.Factor; up <= math.MaxFloat32 {
		return up
	}
	return scale
}

func (l LossScale) shrink(s ScaleState) (ScaleState, error) {
	if s.Scale <= l.Floor {
		return s, ErrScaleFloor
	}
	s.Scale = max(l.Floor, s.Scale/l.Factor)
	return s, nil
}

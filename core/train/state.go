package train

import (
	"starling/core/optim"
	"starling/core/plugin"
)

// State is the trainer's loop state: everything beside parameters and optimizer state that the next step
// depends on. A checkpoint stores it whole.
type State struct {
	Step   int   `json:"step"`   // optimizer steps tried
	Tokens int64 `json:"tokens"` // target elements trained on

	// Skipped counts the steps that were not taken because a gradient overflowed: the schedule and the optimizer count Step - Skipped.
	Skipped int              `json:"skipped,omitempty"`
	Scale   optim.ScaleState `json:"loss_scale"`

	// The hooks' overrides of the schedule.
	LR      *float64 `json:"lr,omitempty"`
	LRScale *float64 `json:"lr_scale,omitempty"`

	// The best evaluation so far; BestStep 0 means none.
	Best     float64 `json:"best"`
	BestStep int     `json:"best_step"`
	// The last evaluation, for the run's result.
	Eval     Metrics `json:"eval,omitempty"`
	EvalStep int     `json:"eval_step"`

	TrainLoss Figure `json:"train_loss"` // mean loss of the last step
	// The running mean of the current epoch: the sums of losses and of weights.
	EpochLoss   Figure  `json:"epoch_loss"`
	EpochWeight float64 `json:"epoch_weight"`

	// Seconds is the time spent in steps, evaluations excluded, over all sessions of the run.
	Seconds float64 `json:"seconds"`
	// Digest is the recipe's; a checkpoint of another recipe is refused.
	Digest string `json:"digest"`
	// Plugins are those that wrote the optimizer state: their versions are part of the digest.
	Plugins plugin.Versions `json:"plugins,omitempty"`
	// Data is the fingerprint of the training data.
	Data string `json:"data"`
	// Arithmetic is the class of arithmetic that the last step ran with (Env.Arithmetic).
	Arithmetic string `json:"arithmetic,omitempty"`
	// Due, if set, holds the metrics of the last step, after which evaluation and samples are still to come: the run was
	// interrupted before them.
	Due Metrics `json:"due,omitempty"`
	// Unfinished, if set, is the rest of step Step, in which a plugin was given up.
	Unfinished *Unfinished `json:"unfinished,omitempty"`
	// Stopped is set when a hook ended the run.
	Stopped bool `json:"stopped,omitempty"`
}

// rate is the learning rate of the next step, with the hooks' overrides.
func (s *State) rate(scheduled float64) float64 {
	if s.LR != nil {
		return *s.LR
	}
	if s.LRScale != nil {
		return scheduled * *s.LRScale
	}
	return scheduled
}

// apply takes over what a hook asked for.
func (s *State) apply(a Action) {
	if a.LR != nil {
		s.LR, s.LRScale = a.LR, nil
	}
	if a.LRScale != nil {
		s.LRScale, s.LR = a.LRScale, nil
	}
	s.Stopped = s.Stopped || a.Stop
}

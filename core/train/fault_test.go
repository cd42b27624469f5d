package train

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"starling/core/graph"
)

// TestACancelledRunTouchesNoFreedMemory ends runs at odd moments, collectives under way: their memory must outlive them.
// (A write to unmapped memory kills the test binary.)
func TestACancelledRunTouchesNoFreedMemory(t *testing.T) {
	for ms := 2; ms < 60; ms += 4 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(ms)*time.Millisecond)
		_, err := runOn(t, ctx, 3, 1, func(_ int, s *Spec, _ *Env) { s.Steps, s.Checkpoint = 1<<30, nil })
		cancel()
		if err == nil {
			t.Fatalf("a run without end ended after %d ms", ms)
		}
	}
}

// TestAStopLosesNothing stops a run right at a step with an evaluation whose hook changes the learning rate, and resumes it.
func TestAStopLosesNothing(t *testing.T) {
	run := func(stopAt float64, dir string, resume bool, evals *[]int) (*Result, error) {
		r, err := runOn(t, t.Context(), 2, 1, func(rank int, s *Spec, e *Env) {
			e.RunDir, e.Resume = dir, resume
			s.Evaluate.BestMode, s.Checkpoint.Keep = "max", 1 // the first evaluation is the best
			stop := make(chan struct{})
			e.Stop = stop
			s.OnEval = func(m Metrics) (Action, error) {
				rate := 1e-3 * m["eval_loss"]
				return Action{LR: &rate}, nil
			}
			s.OnStep = func(m Metrics) (Action, error) {
				if m["step"] == stopAt-1 {
					close(stop) // is seen in the next step
				}
				return Action{}, nil
			}
			if rank == 0 {
				e.Observe = func(ev Event) {
					if ev.Kind == EventEval {
						*evals = append(*evals, ev.Step)
					}
				}
			}
		})
		return r[0], err
	}
	var straight []int
	first := t.TempDir()
	want, err := run(-1, first, false, &straight)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(first, CheckpointFolder, "best"))
	if err != nil {
		t.Fatal(err)
	}
	wantBest := string(b)
	for _, at := range []float64{5, 7, 12} {
		dir := t.TempDir()
		var evals []int
		r, err := run(at, dir, false, &evals)
		if at == 12 {
			if err != nil {
				t.Errorf("a stop during the last step: %v, want the run's ordinary end", err)
				continue
			}
		} else {
			if !errors.Is(err, ErrInterrupted) {
				t.Fatalf("stopped at step %v: %v, want ErrInterrupted", at, err)
			}
			if r, err = run(-1, dir, true, &evals); err != nil {
				t.Fatal(err)
			}
		}
		if r.WeightsSHA256 != want.WeightsSHA256 {
			t.Errorf("stopped at step %v: weights %.16s, want %.16s", at, r.WeightsSHA256, want.WeightsSHA256)
		}
		if len(evals) != len(straight) {
			t.Errorf("stopped at step %v: evaluations after steps %v, want %v", at, evals, straight)
		}
		if b, err := os.ReadFile(filepath.Join(dir, CheckpointFolder, "best")); err != nil || string(b) != wantBest {
			t.Errorf("stopped at step %v: the best checkpoint is %q (%v), want %q", at, b, err, wantBest)
		}
	}
}

// weighedModel wraps lineModel with another weight.
type weighedModel struct {
	lineModel
	weight float64
}

func (m weighedModel) Loss(batch []Input, training bool) (*graph.Graph, error) {
	g, err := m.lineModel.Loss(batch, training)
	if err != nil {
		return nil, err
	}
	b := graph.NewBuilder()
	b.G = g
	w := b.Must(graph.OpScale, graph.ScalarAttrs{Value: m.weight}, g.Output("weight"))[0]
	for i := range g.Outputs {
		if g.Outputs[i].Name == "weight" {
			g.Outputs[i].Value = w
		}
	}
	return g, nil
}

func TestAWeightThatCountsNothingIsRefused(t *testing.T) {
	for _, w := range []float64{-1, math.Inf(1), math.NaN()} {
		_, err := runOn(t, t.Context(), 2, 1, func(_ int, s *Spec, _ *Env) {
			one(s, lines(t, 1, []float32{1, 1}, []float32{1, 1}), weighedModel{weight: w}, 1)
		})
		if err == nil || !strings.Contains(err.Error(), "the weight of the loss is") {
			t.Errorf("weight %v: error %v", w, err)
		}
	}
}

func TestTheBestCheckpointIsMarkedAfterAKill(t *testing.T) {
	dir := t.TempDir()
	small := func(resume bool) {
		if _, err := runOn(t, t.Context(), 1, 1, func(_ int, s *Spec, e *Env) {
			e.RunDir, e.Resume, s.Steps = dir, resume, 5
			s.Checkpoint.Every = 5
		}); err != nil {
			t.Fatal(err)
		}
	}
	small(false)
	best := filepath.Join(dir, CheckpointFolder, "best")
	if err := os.Remove(best); err != nil { // as if killed between the commit and the mark
		t.Fatal(err)
	}
	small(true)
	if _, err := os.Stat(best); err != nil {
		t.Errorf("the best checkpoint is not marked again: %v", err)
	}
}

func TestStateHoldsWhatJSONCannot(t *testing.T) {
	in := State{TrainLoss: Figure(math.Inf(1)), EpochLoss: Figure(math.NaN()), Eval: Metrics{"eval_loss": math.Inf(-1)}}
	b, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	var out State
	if err := json.Unmarshal(b, &out); err != nil {
		t.Fatal(err)
	}
	if !math.IsInf(float64(out.TrainLoss), 1) || !math.IsNaN(float64(out.EpochLoss)) || !math.IsInf(out.Eval["eval_loss"], -1) {
		t.Errorf("%s came back as %+v", b, out)
	}
}

func TestWhatWasTrainedIsKept(t *testing.T) {
	for _, transient := range []bool{false, true} {
		dir := t.TempDir()
		if _, err := runOn(t, t.Context(), 2, 1, func(_ int, s *Spec, e *Env) {
			e.RunDir, s.Checkpoint, s.Evaluate, s.Steps, s.Transient = dir, nil, nil, 3, transient
		}); err != nil {
			t.Fatal(err)
		}
		saved, err := filepath.Glob(filepath.Join(dir, CheckpointFolder, "step-00000003", "COMMIT"))
		if want := map[bool]int{false: 1, true: 0}[transient]; err != nil || len(saved) != want {
			t.Errorf("transient %v: %d checkpoints (%v), want %d", transient, len(saved), err, want)
		}
	}
}

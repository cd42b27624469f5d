package train

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"starling/core/checkpoint"
	"starling/core/device"
	"starling/core/plan"
	"starling/core/plugin"
)

// A step whose optimizer plugin was given up is not lost and not half done. Every rank stops before its update segment, and together they
// write a checkpoint of what there is: parameters and state, some of whose elements have been renewed, which those are, and the
// gradients. A resumed run finishes that step first, placed as it may be.

// Unfinished is the rest of a step, as a checkpoint keeps it.
type Unfinished struct {
	Taken     int     `json:"taken"`
	Rate      float64 `json:"rate"`
	GradScale float64 `json:"grad_scale"`
	Norm      Figure  `json:"norm"`
	LossSum   Figure  `json:"loss_sum"`
	Weight    float64 `json:"weight"`
	Tokens    int64   `json:"tokens"`
	// Happened lists the elements of parameters that have been renewed.
	Happened map[string][][2]int `json:"happened"`
}

// unfinishedError is the failure of a step whose plugin was given up on some rank. Every rank gets one.
type unfinishedError struct {
	rest   Unfinished
	plugin string // its name
	err    error
}

func (e *unfinishedError) Error() string { return e.err.Error() }
func (e *unfinishedError) Unwrap() error { return e.err }

// outcome is what a rank tells the others after its plugins.
type outcome struct {
	Plugin   string              `json:"plugin,omitempty"`
	Error    string              `json:"error,omitempty"`
	Happened map[string][][2]int `json:"happened,omitempty"`
}

// happened lists what the running step has renewed.
func (x *externals) happened() map[string][][2]int {
	out := map[string][][2]int{}
	for i, u := range x.updaters {
		if i >= x.finished {
			_, some := u.Pending()
			for name, list := range some {
				out[name] = append(out[name], list...)
			}
			continue
		}
		for _, r := range x.ranges[i] {
			out[r.Name] = append(out[r.Name], [2]int{r.From, r.To})
		}
	}
	return out
}

// runPlugins runs the plugins of every rank. If one is given up on some rank, all ranks return an unfinishedError.
func (e *engine) runPlugins(ctx context.Context, in stepIn, scale float64, out stepOut) error {
	if !usesPlugins(e.plan) {
		return nil
	}
	err := e.external.step(ctx, in.taken, scale, e.hyper)
	var gaveUp *plugin.GaveUp
	if err != nil && !errors.As(err, &gaveUp) {
		return err
	}
	var mine []byte // nothing to tell
	if err != nil {
		o := outcome{Plugin: gaveUp.Plugin, Error: err.Error()}
		if mine, err = json.Marshal(o); err != nil {
			return err
		}
	}
	failed, first, err := e.tell(ctx, e.labels.gaveUp, mine)
	if err != nil || first < 0 {
		return err
	}
	var o outcome
	if err := json.Unmarshal(failed[first], &o); err != nil {
		return err
	}
	told := e.spec.place("optimizer", errors.New(o.Error))
	if first != e.env.Rank {
		told = fmt.Errorf("rank %d: %w", first, told)
	}
	if mine, err = json.Marshal(outcome{Happened: e.external.happened()}); err != nil {
		return err
	}
	all, _, err := e.tell(ctx, e.labels.renewed, mine)
	if err != nil {
		return err
	}
	rest := Unfinished{Taken: in.taken, Rate: in.rate, GradScale: scale, Norm: Figure(out.norm), LossSum: Figure(out.lossSum), Weight: out.weight, Tokens: out.tokens,
		Happened: map[string][][2]int{}}
	if len(e.plan.Units) == 0 {
		all = all[:1] // rank 0's parameters are those that are stored
	}
	for _, b := range all {
		var o outcome
		if err := json.Unmarshal(b, &o); err != nil {
			return err
		}
		for name, list := range o.Happened {
			rest.Happened[name] = append(rest.Happened[name], list...)
		}
	}
	return &unfinishedError{rest, o.Plugin, told}
}

// tell hands every rank's message to every rank; first is the lowest rank that had one, -1 where none had.
func (e *engine) tell(ctx context.Context, what string, mine []byte) (all [][]byte, first int, err error) {
	all = [][]byte{mine}
	if e.env.World > 1 {
		if all, err = e.env.Group.AllGatherBytes(ctx, what, mine); err != nil {
			return nil, 0, err
		}
	}
	return all, slices.IndexFunc(all, func(b []byte) bool { return len(b) > 0 }), nil
}

// without is what is left of a range: the elements that have not happened, as ranges of their own.
func without(r plugin.Range, happened [][2]int) (out []plugin.Range) {
	happened = slices.Clone(happened)
	slices.SortFunc(happened, func(a, b [2]int) int { return a[0] - b[0] })
	part := func(lo, hi int) {
		if lo >= hi {
			return
		}
		x := r
		if lo != r.From || hi != r.To { // only element-wise ranges are ever cut: their state is shaped as they are
			x.From, x.To = lo, hi
			cut := func(p plugin.Place) plugin.Place {
				return plugin.Place{Memory: p.Memory, Offset: p.Offset + 4*int64(lo-r.From), Elements: hi - lo}
			}
			x.Value, x.Gradient, x.State = cut(r.Value), cut(r.Gradient), nil
			for _, s := range r.State {
				x.State = append(x.State, cut(s))
			}
		}
		out = append(out, x)
	}
	at := r.From
	for _, h := range happened {
		part(at, min(h[0], r.To))
		at = max(at, h[1])
	}
	part(at, r.To)
	return out
}

// gradientKey is the name of a gradient in a checkpoint. No piece of optimizer state can have it.
func gradientKey(q *plan.Param) string { return q.Name + "/unfinished.gradient" }

// gradients lists this rank's part of the averaged gradient; where nothing is sharded every rank has the whole.
func (e *engine) gradients() (out []checkpoint.Tensor) {
	mem := e.memory(0)
	for i := range e.plan.Params {
		q := &e.plan.Params[i]
		if !q.Trained() || q.Owned.Len() == 0 {
			continue
		}
		out = append(out, checkpoint.Tensor{Name: gradientKey(q), DType: checkpoint.F32, Shape: q.Whole.Shape, Offset: int64(q.Owned.Lo), Data: device.View[byte](mem, q.Reduced[0])})
	}
	return out
}

// saveUnfinished writes the checkpoint of a step that could not be finished, and returns the error that ends the run.
func (l *loop) saveUnfinished(ctx context.Context, u *unfinishedError) error {
	none := func(err error) error { return fmt.Errorf("%w\n    no checkpoint could be written: %w", u.err, err) }
	if l.saver.files == nil && (l.env.RunDir == "" || l.spec.Transient) {
		return u.err
	}
	if err := l.saver.wait(ctx); err != nil {
		return none(err)
	}
	if l.saver.lastRun != l.state.Step { // else there is one of the moment before this step
		l.state.Unfinished = &u.rest
		if err := l.writeUnfinished(ctx); err != nil {
			return none(err)
		}
	}
	return fmt.Errorf("%w\n    a checkpoint of step %d was written: mend the plugin, accept its file with\n    %s\n    and go on with --resume", u.err, l.state.Step, plugin.PinCommand(u.plugin, l.spec.Recipe))
}

func (l *loop) writeUnfinished(ctx context.Context) error {
	var files *checkpoint.Saver
	if l.saver.files != nil {
		cfg := checkpoint.SaverConfig{Dir: filepath.Join(l.env.RunDir, CheckpointFolder), Keep: checkpoint.DefaultKeep, InPlace: true}
		if l.spec.Checkpoint != nil {
			cfg.Keep = l.spec.Checkpoint.Keep
		}
		if l.saver.group != nil {
			cfg.Shard, cfg.Gather = l.env.Rank, l.saver.gather
		}
		var err error
		if files, err = checkpoint.NewSaver(cfg); err != nil {
			return err
		}
		defer files.Close()
	}
	// A new saver tidies the folder up, so every rank has to have one before the first writes.
	if err := l.together(ctx, "the checkpoint of an unfinished step", "checkpoint"); err != nil {
		return err
	}
	if files != nil {
		trainer, err := json.Marshal(l.state)
		if err != nil {
			return err
		}
		tensors := slices.Clone(l.saver.tensors)
		if l.env.Rank == 0 || len(l.engine.plan.Units) > 0 { // under compression ranks that have the same gradient write too
			tensors = append(tensors, l.engine.gradients()...)
		}
		if err := files.Save(ctx, checkpoint.SaveRequest{Step: int64(l.state.Step), Tensors: tensors, Trainer: trainer}); err != nil {
			return err
		}
		if err := files.Wait(ctx); err != nil {
			return err
		}
	}
	return l.together(ctx, "the checkpoint of an unfinished step", "checkpoint")
}

// loadGradients reads the gradients of an unfinished step.
func (e *engine) loadGradients(c *checkpoint.Checkpoint) error {
	for _, t := range e.gradients() {
		if err := fits(c, t.Name, t.DType, t.Shape); err != nil {
			return err
		}
		if err := c.ReadRange(t.Name, t.Offset, t.Data); err != nil {
			return err
		}
	}
	return nil
}

// complete finishes the step that a checkpoint was written in the middle of. Its metrics are recorded when the loop begins.
func (l *loop) complete(ctx context.Context) error {
	u, e, st := l.state.Unfinished, l.engine, &l.state
	rest, err := newExternals(e, u.Happened)
	if err != nil {
		return err
	}
	whole := e.external
	e.external = rest
	defer func() {
		rest.close()
		e.external = whole
	}()
	in := stepIn{step: st.Step, taken: u.Taken, rate: u.Rate, scale: st.Scale.Scale}
	out := stepOut{lossSum: float64(u.LossSum), weight: u.Weight, tokens: u.Tokens, norm: float64(u.Norm)}
	out.loss = ratio(out.lossSum, out.weight)
	e.trace.begin(st.Step)
	e.collect.begin(ctx, &e.trace)
	if err := e.renew(ctx, in, u.GradScale, out); err != nil {
		return err
	}
	epoch, _ := l.sampler.Position(int64(st.Step))
	st.Unfinished = nil
	if err := l.rescale(nil); err != nil {
		return err
	}
	st.took(out)
	l.completed = l.stepMetrics(epoch, out.loss, in, out)
	if l.env.Rank == 0 {
		l.env.Observe(Event{Kind: EventNote, Step: st.Step, Text: fmt.Sprintf("step %d, in which a plugin had failed, is finished", st.Step-1)})
	}
	return nil
}

// took counts a step that was taken.
func (s *State) took(out stepOut) {
	s.Step++
	s.Tokens += out.tokens
	if out.overflow == nil {
		s.TrainLoss = Figure(out.loss)
		s.EpochLoss += Figure(out.lossSum)
		s.EpochWeight += out.weight
	}
}

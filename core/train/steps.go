package train

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"starling/core/plan"
)

// train is the loop over steps.
func (l *loop) train(ctx context.Context) error {
	l.report.gap = 200 * time.Millisecond
	if m := l.state.Due; m != nil {
		l.state.Due = nil
		best, save, err := l.afterStep(ctx, m)
		if err != nil {
			return err
		}
		if best || save {
			if err := l.saver.save(ctx, &l.state, best); err != nil {
				return err
			}
		}
	}
	if m := l.completed; m != nil {
		if err := l.log.write("step", l.state.Step, m); err != nil {
			l.env.Observe(Event{Kind: EventWarning, Text: err.Error()})
		}
		m["step"] = float64(l.state.Step)
		if err := l.due(ctx, m, false); err != nil {
			return err
		}
	}
	for !l.over() {
		m, stop, err := l.step(ctx)
		if err != nil {
			return err
		}
		if err := l.due(ctx, m, stop); err != nil {
			return err
		}
		if stop && !l.over() {
			l.interrupted = true
			break
		}
	}
	if err := l.saver.wait(ctx); err != nil {
		return err
	}
	if l.interrupted {
		return ErrInterrupted
	}
	return nil
}

// stopAsked reports whether this rank was asked to stop.
func (l *loop) stopAsked() bool {
	select {
	case <-l.env.Stop:
		return true
	default:
		return false
	}
}

// measured are the figures of a step that ranks measure for themselves.
var measured = []string{"sent_bytes", "sent_memory_bytes", "sent_host_bytes", "sent_network_bytes", "tokens_per_s", "comm_s", "comm_window_s", "comm_hidden"}

// step runs one optimizer step and records it. stop says that some rank was asked to stop; every rank gets the
// same answer, so that all leave after the same step.
func (l *loop) step(ctx context.Context) (m Metrics, stop bool, err error) {
	l.env.Status(fmt.Sprintf("step %d", l.state.Step))
	t0 := time.Now()
	sent0 := l.sent()
	links0 := l.env.sentByKind()
	epoch, _ := l.sampler.Position(int64(l.state.Step))
	st := &l.state
	taken := st.Step - st.Skipped
	in := stepIn{step: st.Step, taken: taken, rate: st.rate(l.spec.Optimizer.Rate(taken)), scale: st.Scale.Scale, stop: l.stopAsked()}
	out, err := l.engine.step(ctx, l.loader, in)
	var unfinished *unfinishedError
	if errors.As(err, &unfinished) {
		return nil, false, l.saveUnfinished(ctx, unfinished)
	}
	if err != nil {
		return nil, false, err
	}
	if err := l.rescale(out.overflow); err != nil {
		return nil, false, err
	}
	now := time.Now()
	l.sentPerStep = l.sent() - sent0
	lay := out.trace.overlap()
	l.hidden.add(lay)
	if l.env.OnTrace != nil {
		l.env.OnTrace(out.trace)
	}
	st.took(out)
	st.Seconds += now.Sub(t0).Seconds()
	if l.firstStep == 0 {
		l.firstStep = now.Sub(l.env.Started).Seconds()
	}
	loss := out.loss
	if math.IsNaN(loss) || math.IsInf(loss, 0) { // of a step that was not taken
		loss = float64(st.TrainLoss)
	}
	m = l.stepMetrics(epoch, loss, in, out)
	m["tokens_per_s"] = float64(out.tokens) / now.Sub(t0).Seconds()
	if l.env.World > 1 {
		m["comm_s"], m["comm_window_s"], m["comm_hidden"] = lay.comm.Seconds(), lay.window.Seconds(), lay.fraction()
	}
	if l.env.SentBytes != nil {
		m["sent_bytes"] = float64(l.sentPerStep) // of this rank, rank 0
	}
	if l.env.SentTo != nil && l.env.Rank == 0 {
		for kind, n := range kinds(l.env.sentByKind().Sub(links0)) {
			m["sent_"+kind+"_bytes"] = float64(n)
		}
	}
	if err := l.log.write("step", st.Step, m); err != nil {
		l.env.Observe(Event{Kind: EventWarning, Text: err.Error()})
	}
	l.watchLateness(now, out.waited)
	l.watchTraffic(now)
	if l.env.Rank == 0 && (l.report.due(now) || st.Step == l.total || st.Step == 1) {
		l.env.Observe(Event{Kind: EventStep, Step: st.Step, Total: l.total, Vals: m})
	}
	m["step"] = float64(st.Step)
	for _, k := range measured { // a hook decides on every rank alike, so it sees nothing that ranks measure for themselves
		delete(m, k)
	}
	return m, out.stop, nil
}

// stepMetrics are the figures of a step that are equal on all ranks and at every placement.
func (l *loop) stepMetrics(epoch int64, loss float64, in stepIn, out stepOut) Metrics {
	m := Metrics{"epoch": float64(epoch), "loss": loss, "lr": in.rate, "grad_norm": out.norm, "tokens": float64(l.state.Tokens)}
	if l.spec.LossScale.Active() {
		m["loss_scale"], m["skipped"] = in.scale, float64(l.state.Skipped)
	}
	return m
}

// rescale moves the loss scale on after a step, and counts one that was not taken.
func (l *loop) rescale(overflow *plan.Param) error {
	st := &l.state
	before := st.Scale.Scale
	next, err := l.spec.LossScale.Next(st.Scale, overflow != nil)
	if err != nil {
		return notFinite(st.Step, overflow, st.Scale, l.spec.LossScale.Active())
	}
	st.Scale = next
	if overflow == nil {
		return nil
	}
	st.Skipped++
	if l.env.Rank == 0 {
		l.env.Observe(Event{Kind: EventNote, Step: st.Step, Text: fmt.Sprintf("step %d is skipped: with a loss scale of %v the gradient of %s overflows; the scale is now %v",
			st.Step, before, overflow.Name, next.Scale)})
	}
	return nil
}

func (l *loop) sent() int64 {
	if l.env.SentBytes == nil {
		return 0
	}
	return l.env.SentBytes()
}

// due does what follows a step: the epoch's mean, evaluation, hooks, sample, checkpoint.
func (l *loop) due(ctx context.Context, m Metrics, stop bool) error {
	st := &l.state
	if n := int(l.sampler.StepsPerEpoch()); st.Step%n == 0 {
		mean := Metrics{"epoch": float64(st.Step/n - 1), "epoch_loss": ratio(float64(st.EpochLoss), st.EpochWeight)}
		st.EpochLoss, st.EpochWeight = 0, 0
		if err := l.log.write("epoch", st.Step, mean); err != nil {
			l.env.Observe(Event{Kind: EventWarning, Text: err.Error()})
		}
		if l.env.Rank == 0 {
			l.env.Observe(Event{Kind: EventEpoch, Step: st.Step, Total: l.total, Vals: mean})
		}
	}
	save := stop
	if h := l.spec.OnStep; h != nil {
		a, err := h(m)
		if err != nil {
			return err
		}
		st.apply(a)
		save = save || a.Save
	}
	last := l.over()
	best := false
	if stop && !last {
		// A request to stop is answered soon: what is due now is done first thing after the resume.
		st.Due = m
	} else {
		b, again, err := l.afterStep(ctx, m)
		if err != nil {
			return err
		}
		best, save = b, save || again
	}
	// Without checkpoint(…) in the recipe what was trained is still kept.
	if c := l.spec.Checkpoint; l.over() || c != nil && c.Every > 0 && st.Step%c.Every == 0 {
		save = true
	}
	if save || best {
		return l.saver.save(ctx, st, best)
	}
	return nil
}

// over reports whether the last step has been taken.
func (l *loop) over() bool { return l.state.Step >= l.total || l.state.Stopped }

// afterStep evaluates and draws samples where that is due after the step whose metrics are m.
func (l *loop) afterStep(ctx context.Context, m Metrics) (best, save bool, err error) {
	st := &l.state
	if e := l.spec.Evaluate; e != nil && (l.over() || e.Every > 0 && st.Step%e.Every == 0) {
		if best, save, err = l.evaluate(ctx, m); err != nil {
			return false, false, err
		}
	}
	for _, s := range l.samples {
		if !l.over() && (s.spec.Every == 0 || st.Step%s.spec.Every != 0) {
			continue
		}
		if l.env.Rank == 0 || l.engine.together() {
			text, err := s.draw(ctx, st.Step)
			if err != nil {
				return false, false, err
			}
			if l.env.Rank == 0 {
				l.env.Observe(Event{Kind: EventSample, Step: st.Step, Text: text})
			}
		}
		if err := l.together(ctx, "rank 0's sample", "sample"); err != nil {
			return false, false, err
		}
	}
	return best, save, nil
}

// together waits until every rank has come here, however long the one that had more to do takes, as long as it lives. Reports say why, and
// which setting of the recipe (a key of Spec.Positions) asked for it.
func (l *loop) together(ctx context.Context, why, setting string) error {
	if l.env.World == 1 {
		return nil
	}
	return l.env.Group.BarrierPatient(ctx, l.spec.label(why, setting))
}

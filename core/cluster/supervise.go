package cluster

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"time"
)

// event is something a rank did.
type event struct {
	rank  int
	kind  eventKind
	msg   message
	cause string // of an exit, or of the end of a control connection
}

type eventKind int

const (
	said    eventKind = iota // msg came
	knocked                  // it was started elsewhere and has come
	came                     // it has got its place; msg is its hello
	hungUp                   // its control connection ended
	exited                   // it is gone
	turned                   // somebody was turned away at the door; cause says who and why
)

// carrier carries out a job's orders.
type carrier interface {
	send(rank int, m message)
	kill(rank int)
}

// supervise feeds events, signals and the clock to the job and carries out its orders, until all ranks are gone, or given
// up by a carrier that cannot kill.
func supervise(ctx context.Context, j *job, events <-chan event, c carrier) {
	signals := make(chan os.Signal, 2)
	if len(j.cfg.Signals) > 0 {
		signal.Notify(signals, j.cfg.Signals...)
		defer signal.Stop(signals)
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	cancelled, stop := ctx.Done(), j.cfg.Stop
	ready := false
	for !j.over() {
		select {
		case e := <-events:
			j.happened(e, time.Now())
		case s := <-signals:
			if j.stopped {
				j.abandon("a second signal came ("+s.String()+")", time.Now())
			}
			j.stop(time.Now())
		case <-stop:
			stop = nil
			j.stop(time.Now())
		case <-cancelled:
			cancelled = nil
			j.abandon(context.Cause(ctx).Error(), time.Now())
		case <-timer.C:
		}
		j.tick(time.Now())
		if j.joined && !ready {
			ready = true
			if j.cfg.OnReady != nil {
				j.cfg.OnReady()
			}
		}
		for _, o := range j.take() {
			if o.kill {
				c.kill(o.rank)
			} else {
				c.send(o.rank, o.msg)
			}
		}
		if at := j.next(); !at.IsZero() {
			timer.Reset(time.Until(at))
		}
	}
}

// happened takes one event.
func (j *job) happened(e event, now time.Time) {
	switch e.kind {
	case said:
		j.message(e.rank, e.msg, now)
		switch {
		case e.msg.Kind == kindEvent && j.cfg.OnEvent != nil:
			j.cfg.OnEvent(e.rank, e.msg.Data)
		case e.msg.Kind == kindStatus && j.cfg.OnStatus != nil:
			j.cfg.OnStatus(e.rank, e.msg.Text)
		}
	case knocked:
		j.ranks[e.rank].here = true
	case came:
		j.ranks[e.rank].here = false
		j.arrived(e.rank, e.msg, now)
	case turned:
		j.turned, j.stranger = j.turned+1, clip(e.cause)
	case hungUp:
		j.hungUp(e.rank, e.cause, now)
	case exited:
		j.exited(e.rank, e.cause, now)
	}
}

// outcome is the job's result for the caller; a cancelled context is the cause it sees.
func (j *job) outcome(ctx context.Context) ([][]byte, error) {
	results, err := j.result()
	if cause := context.Cause(ctx); errors.Is(err, ErrStopped) && cause != nil {
		err = errors.Join(err, cause)
	}
	return results, err
}

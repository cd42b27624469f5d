package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/term"

	"starling/core/train"
)

// display shows a run's events to a person: a progress bar on a terminal, log lines elsewhere. The log file of
// the run gets every event as a JSON line either way.
type display struct {
	mu      sync.Mutex
	out     io.Writer
	err     io.Writer // warnings that -q does not silence
	tty     bool
	width   func() int
	log     zerolog.Logger
	file    io.Closer
	bar     string
	unit    string // what is counted as targets: tokens or samples
	started time.Time
	first   int // the first step seen, for the time left
	resumed bool
	stepAt  time.Time
	lineAt  time.Time
}

// newDisplay shows events on out; file, which may be nil, gets the run's log.
func newDisplay(out *os.File, file io.WriteCloser, quiet bool) *display {
	d := &display{out: out, err: io.Discard, unit: "tokens", tty: term.IsTerminal(int(out.Fd())), started: time.Now(), first: -1}
	d.width = func() int {
		if w, _, err := term.GetSize(int(out.Fd())); err == nil && w > 0 {
			return w
		}
		return 80
	}
	var w []io.Writer
	if file != nil {
		d.file = file
		w = append(w, file)
	}
	switch {
	case quiet:
		d.out, d.err, d.tty = io.Discard, out, false
	case !d.tty:
		w = append(w, zerolog.ConsoleWriter{Out: out, NoColor: true, TimeFormat: "15:04:05"})
	}
	d.log = zerolog.New(zerolog.MultiLevelWriter(w...)).With().Timestamp().Logger()
	return d
}

// event shows one event.
func (d *display) event(e train.Event) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch e.Kind {
	case train.EventIndex:
		if d.tty {
			d.draw(bar(e.Done, e.Of, d.width(), "", fmt.Sprintf(" %s %s of %s", e.Name, bytesText(e.Done), bytesText(e.Of))))
		} else if e.Done == e.Of {
			d.log.Info().Int64("bytes", e.Done).Msg("data read")
		}
	case train.EventStep:
		d.step(e)
	case train.EventSample:
		d.log.Info().Int("step", e.Step).Str("text", e.Text).Msg("sample")
		d.print(fmt.Sprintf("sample after step %d:\n%s\n", e.Step, indent(printable(e.Text))))
	case train.EventEval:
		d.figures("evaluation", e)
		d.print(fmt.Sprintf("step %d: %s\n", e.Step, figuresText(e.Vals)))
	case train.EventEpoch:
		d.figures("epoch", e)
		d.print(fmt.Sprintf("epoch %.0f: mean loss %.4f\n", e.Vals["epoch"]+1, e.Vals["epoch_loss"]))
	case train.EventWarning:
		d.log.Warn().Int("rank", e.Rank).Msg(e.Text)
		d.print("warning: " + printable(e.Text) + "\n")
		fmt.Fprintln(d.err, "warning: "+printable(e.Text))
	case train.EventCheckpoint: // a person sees that it is there when the run ends
		d.log.Info().Int("step", e.Step).Str("path", e.Text).Msg("checkpoint")
	default:
		d.resumed = d.resumed || e.Kind == train.EventResumed
		l := d.log.Info()
		if e.Step > 0 {
			l = l.Int("step", e.Step)
		}
		l.Msg(e.Text)
		d.print(printable(e.Text) + "\n")
	}
}

func (d *display) figures(what string, e train.Event) {
	l := d.log.Info().Int("step", e.Step)
	for _, k := range sortedKeys(e.Vals) {
		l = l.Float64(k, round(e.Vals[k], 4))
	}
	l.Msg(what)
}

// step moves the bar; elsewhere it writes a line every two seconds.
func (d *display) step(e train.Event) {
	now := time.Now()
	if d.first < 0 {
		d.first, d.stepAt = e.Step, now
	}
	left := ""
	if done := e.Step - d.first; done > 0 {
		per := now.Sub(d.stepAt) / time.Duration(done)
		left = (per * time.Duration(e.Total-e.Step)).Round(time.Second).String() + " left"
	}
	m := e.Vals
	if d.tty {
		d.draw(bar(int64(e.Step), int64(e.Total), d.width(), fmt.Sprintf("%d/%d ", e.Step, e.Total),
			fmt.Sprintf(" loss %.3f  lr %.2e  %s %s/s  %s", m["loss"], m["lr"], short(m["tokens_per_s"]), d.unit, left)))
		return
	}
	if now.Sub(d.lineAt) < 2*time.Second && e.Step != e.Total && e.Step != d.first {
		return
	}
	d.lineAt = now
	l := d.log.Info().Str("step", fmt.Sprintf("%d/%d", e.Step, e.Total)).Float64("loss", round(m["loss"], 4)).Float64("lr", round(m["lr"], 8)).
		Float64("grad_norm", round(m["grad_norm"], 4)).Float64(d.unit+"_per_s", round(m["tokens_per_s"], 0))
	if left != "" {
		l = l.Str("left", strings.TrimSuffix(left, " left"))
	}
	l.Msg("step")
}

// draw replaces the bar's line.
func (d *display) draw(s string) {
	d.bar = s
	fmt.Fprintf(d.out, "\r%s\x1b[K", s)
}

// print writes text above the bar. Without a terminal the log line has said it.
func (d *display) print(s string) {
	if !d.tty {
		return
	}
	fmt.Fprintf(d.out, "\r\x1b[K%s", s)
	if d.bar != "" {
		fmt.Fprint(d.out, d.bar)
	}
}

// close ends the bar's line and the log.
func (d *display) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.bar != "" {
		fmt.Fprintln(d.out)
		d.bar = ""
	}
	if d.file != nil {
		d.file.Close()
		d.file = nil
	}
}

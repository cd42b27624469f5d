package train

import (
	"fmt"
	"slices"
	"time"
)

// Stragglers: in each window of steps, how long each rank kept the others waiting. Every rank measures how long it has waited
// for the last to enter its collectives; the rank that waited least is the one that the others waited for.

// How long a window is, how much of it must have been lost to one rank for that to be said, and for how long a rank is not named again.
const (
	lateWindow = 10 * time.Second
	lateShare  = 0.2
	lateQuiet  = time.Minute
)

// lateness is the state of that watch, on the rank that keeps the log.
type lateness struct {
	begin time.Time // of the window; zero before the first step, until when ranks were preparing
	base  []float64 // what each rank had waited then, in seconds
	named map[int]time.Time
}

// look takes what each rank has waited so far. At the end of a window, or with last, it returns the line for the metrics, and
// what to say if a rank is slow.
func (l *lateness) look(now time.Time, waited []float64, last bool) (line Metrics, warning string) {
	if l.begin.IsZero() {
		l.begin, l.base, l.named = now, slices.Clone(waited), map[int]time.Time{}
		return nil, ""
	}
	window := now.Sub(l.begin)
	if window < lateWindow && !last || window <= 0 || len(waited) < 2 {
		return nil, ""
	}
	longest := 0.0
	for r := range waited {
		longest = max(longest, waited[r]-l.base[r])
	}
	line = Metrics{"window_s": window.Seconds()}
	worst, most := 0, -1.0
	for r := range waited {
		late := longest - (waited[r] - l.base[r])
		line[fmt.Sprint("late_s_rank", r)] = late
		if late > most {
			worst, most = r, late
		}
	}
	line["straggler"] = float64(worst)
	l.begin, l.base = now, append(l.base[:0], waited...)
	if most >= lateShare*window.Seconds() && window >= lateWindow && now.Sub(l.named[worst]) >= lateQuiet {
		l.named[worst] = now
		warning = fmt.Sprintf("the other ranks spent %.0f%% of the last %v waiting for rank %d, which is slower or has more to do", 100*most/window.Seconds(), window.Round(time.Second), worst)
	}
	return line, warning
}

// watchLateness writes what came of a step.
func (l *loop) watchLateness(now time.Time, waited []float64) {
	if l.env.Rank != 0 || l.env.Waited == nil || len(waited) < 2 {
		return
	}
	line, warning := l.late.look(now, waited, l.state.Step == l.total)
	if line != nil {
		if err := l.log.write("lateness", l.state.Step, line); err != nil {
			l.env.Observe(Event{Kind: EventWarning, Text: err.Error()})
		}
	}
	if warning != "" {
		l.env.Observe(Event{Kind: EventWarning, Step: l.state.Step, Text: warning})
	}
}

package train

import (
	"slices"
	"time"
)

// Span is a piece of work in time.
type Span struct {
	Label      string
	Start, End time.Time
}

// StepTrace is how one step lay in time on one rank: when it began, when the last instruction of the backward pass
// ended, and when each collective ran. The next step overwrites Collectives.
type StepTrace struct {
	Step               int
	Start, BackwardEnd time.Time
	// FirstIssued is when the first collective was handed over.
	FirstIssued time.Time
	Collectives []Span
	// Waits are when the rank waited for collectives. The next step overwrites them.
	Waits []Span
}

func (t *StepTrace) begin(step int) {
	t.Step, t.Start, t.FirstIssued, t.Collectives = step, time.Now(), time.Time{}, t.Collectives[:0]
	t.Waits = t.Waits[:0]
}

// Early counts the collectives that began before the backward pass ended.
func (t *StepTrace) Early() int {
	n := 0
	for _, s := range t.Collectives {
		if s.Start.Before(t.BackwardEnd) {
			n++
		}
	}
	return n
}

// overlap is how a step's communication lay beside its backward pass.
type overlap struct {
	comm   time.Duration // while any of it went on
	hidden time.Duration // what ran while the backward pass computed
	window time.Duration // what the backward pass computed from the moment the first of it was handed over
}

func (t *StepTrace) overlap() overlap {
	var o overlap
	spans := slices.Clone(t.Collectives)
	slices.SortFunc(spans, func(a, b Span) int { return a.Start.Compare(b.Start) })
	var upTo time.Time
	for _, s := range spans {
		if s.Start.Before(upTo) { // two groups at once
			s.Start = upTo
		}
		if s.End.After(s.Start) {
			o.comm += s.End.Sub(s.Start)
			o.hidden += t.computed(s.Start, s.End)
			upTo = s.End
		}
	}
	if len(t.Collectives) > 0 {
		o.window = t.computed(t.FirstIssued, t.BackwardEnd)
	}
	return o
}

// computed is how long the backward pass computed between two moments: what lies before its end, without the waits.
func (t *StepTrace) computed(from, to time.Time) time.Duration {
	if to.After(t.BackwardEnd) {
		to = t.BackwardEnd
	}
	d := max(0, to.Sub(from))
	for _, w := range t.Waits {
		lo, hi := w.Start, w.End
		if lo.Before(from) {
			lo = from
		}
		if hi.After(to) {
			hi = to
		}
		d -= max(0, hi.Sub(lo))
	}
	return max(0, d)
}

func (o *overlap) add(b overlap) {
	o.comm += b.comm
	o.hidden += b.hidden
	o.window += b.window
}

// fraction is the hidden share of what could be hidden, 0 where that is nothing.
func (o overlap) fraction() float64 {
	if most := min(o.comm, o.window); most > 0 {
		return min(1, float64(o.hidden)/float64(most))
	}
	return 0
}

package train

import "time"

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
}

func (t *StepTrace) begin(step int) {
	t.Step, t.Start, t.FirstIssued, t.Collectives = step, time.Now(), time.Time{}, t.Collectives[:0]
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
	comm   time.Duration // all of it
	hidden time.Duration // what ran before the backward pass ended
	window time.Duration // from the moment the first of it was handed over to the end of the backward pass
}

func (t *StepTrace) overlap() overlap {
	var o overlap
	for _, s := range t.Collectives {
		o.comm += s.End.Sub(s.Start)
		end := s.End
		if end.After(t.BackwardEnd) {
			end = t.BackwardEnd
		}
		o.hidden += max(0, end.Sub(s.Start))
	}
	if len(t.Collectives) > 0 {
		o.window = max(0, t.BackwardEnd.Sub(t.FirstIssued))
	}
	return o
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

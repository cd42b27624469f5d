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
	Collectives        []Span
}

func (t *StepTrace) begin(step int) {
	t.Step, t.Start, t.Collectives = step, time.Now(), t.Collectives[:0]
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

// overlapMeter adds up how much of the communication ran while the backward pass still did.
type overlapMeter struct{ hidden, all time.Duration }

func (m *overlapMeter) add(t StepTrace) {
	for _, s := range t.Collectives {
		m.all += s.End.Sub(s.Start)
		end := s.End
		if end.After(t.BackwardEnd) {
			end = t.BackwardEnd
		}
		m.hidden += max(0, end.Sub(s.Start))
	}
}

// fraction is the hidden share, 0 where nothing was communicated.
func (m *overlapMeter) fraction() float64 {
	if m.all == 0 {
		return 0
	}
	return float64(m.hidden) / float64(m.all)
}

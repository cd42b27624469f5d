package train

import (
	"encoding/json"
	"math"
	"time"
)

// Event is something that a person or a program watching the run may want to see. Events are made on the rank
// where they happen; progress comes from rank 0.
type Event struct {
	Kind  string  `json:"kind"` // see the constants
	Rank  int     `json:"rank,omitempty"`
	Step  int     `json:"step,omitempty"`
	Total int     `json:"total,omitempty"` // steps of the whole run
	Text  string  `json:"text,omitempty"`  // a message, or a sample
	Name  string  `json:"name,omitempty"`  // of what is being counted
	Done  int64   `json:"done,omitempty"`  // of Of, for long preparations
	Of    int64   `json:"of,omitempty"`
	Vals  Metrics `json:"metrics,omitempty"`
}

// The kinds of event.
const (
	EventIndex      = "index"      // the corpus is being read: Done of Of bytes
	EventPlan       = "plan"       // Text is the plan's summary in a line
	EventStep       = "step"       // a step was taken
	EventEval       = "eval"       // an evaluation
	EventEpoch      = "epoch"      // an epoch ended: its mean loss
	EventSample     = "sample"     // Text is a sample
	EventCheckpoint = "checkpoint" // Text is the path written
	EventWarning    = "warning"    // Text is what to know
	EventResumed    = "resumed"    // the checkpoint to go on from was read: Text says which
	EventNote       = "note"
)

// Observer receives events. It must not block for long: the training loop calls it.
type Observer func(Event)

// Figure is a number that may be NaN or infinite, which JSON's cannot: those are written as strings.
type Figure float64

// MarshalJSON writes "NaN", "Infinity" and "-Infinity" where there is no number.
func (f Figure) MarshalJSON() ([]byte, error) {
	v := float64(f)
	switch {
	case math.IsNaN(v):
		return []byte(`"NaN"`), nil
	case math.IsInf(v, 1):
		return []byte(`"Infinity"`), nil
	case math.IsInf(v, -1):
		return []byte(`"-Infinity"`), nil
	}
	return json.Marshal(v)
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (f *Figure) UnmarshalJSON(b []byte) error {
	switch string(b) {
	case `"NaN"`:
		*f = Figure(math.NaN())
	case `"Infinity"`:
		*f = Figure(math.Inf(1))
	case `"-Infinity"`:
		*f = Figure(math.Inf(-1))
	default:
		return json.Unmarshal(b, (*float64)(f))
	}
	return nil
}

// MarshalJSON writes each value as a Figure.
func (m Metrics) MarshalJSON() ([]byte, error) {
	out := make(map[string]Figure, len(m))
	for k, v := range m {
		out[k] = Figure(v)
	}
	return json.Marshal(out)
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (m *Metrics) UnmarshalJSON(b []byte) error {
	var in map[string]Figure
	if err := json.Unmarshal(b, &in); err != nil || in == nil {
		return err
	}
	*m = make(Metrics, len(in))
	for k, v := range in {
		(*m)[k] = float64(v)
	}
	return nil
}

// every limits how often something happens; the first call passes.
type every struct {
	gap  time.Duration
	last time.Time
}

func (e *every) due(now time.Time) bool {
	if now.Sub(e.last) < e.gap {
		return false
	}
	e.last = now
	return true
}

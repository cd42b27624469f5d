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
	EventNote       = "note"
)

// Observer receives events. It must not block for long: the training loop calls it.
type Observer func(Event)

// MarshalJSON writes values that JSON cannot hold (NaN and infinities) as strings.
func (m Metrics) MarshalJSON() ([]byte, error) {
	out := make(map[string]any, len(m))
	for k, v := range m {
		switch {
		case math.IsNaN(v):
			out[k] = "NaN"
		case math.IsInf(v, 1):
			out[k] = "Infinity"
		case math.IsInf(v, -1):
			out[k] = "-Infinity"
		default:
			out[k] = v
		}
	}
	return json.Marshal(out)
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (m *Metrics) UnmarshalJSON(b []byte) error {
	raw := map[string]any{}
	if err := json.Unmarshal(b, &raw); err != nil {
		return err
	}
	*m = Metrics{}
	for k, v := range raw {
		switch v := v.(type) {
		case float64:
			(*m)[k] = v
		case string:
			switch v {
			case "NaN":
				(*m)[k] = math.NaN()
			case "Infinity":
				(*m)[k] = math.Inf(1)
			case "-Infinity":
				(*m)[k] = math.Inf(-1)
			}
		}
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

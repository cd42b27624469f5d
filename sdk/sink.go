package sdk

import "time"

// Sink receives a run's figures. Calls come one at a time, on rank 0 only.
type Sink interface {
	Plugin
	// Open begins a run. After a resume it is called again: figures of steps after run.Step will come again and replace
	// those that are there.
	Open(run Run) error
	// Write receives figures in order of time.
	Write(records []Record) error
	// Close ends the run. What was written must be on disk when it returns.
	Close() error
}

// Run is what a sink is told about a run.
type Run struct {
	Settings Hypers
	Folder   string // of the run, absolute; the sink's files belong in here
	Recipe   string
	Step     int // the step that the run goes on from
}

// Record is the figures of one moment.
type Record struct {
	Kind   string // "step", "eval", "epoch"
	Step   int
	Time   time.Time
	Values map[string]float64
}

package train

import (
	"testing"
	"time"
)

// What a rank waits for is not hidden, wherever it waits.
func TestWaitsAreNotHidden(t *testing.T) {
	start := time.Now()
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	trace := StepTrace{
		Start: at(0), FirstIssued: at(10), BackwardEnd: at(100),
		Collectives: []Span{{"first", at(10), at(60)}, {"last", at(60), at(140)}},
		// For the first the backward pass waits, for the last the end of the step.
		Waits: []Span{{"first", at(40), at(60)}, {"last", at(110), at(140)}},
	}
	o := trace.overlap()
	for _, c := range []struct {
		name      string
		got, want time.Duration
	}{{"communication", o.comm, 130 * time.Millisecond}, {"hidden", o.hidden, 70 * time.Millisecond}, {"window", o.window, 70 * time.Millisecond}} {
		if c.got != c.want {
			t.Errorf("%s: %v, want %v", c.name, c.got, c.want)
		}
	}
	trace.Waits = nil
	if o := trace.overlap(); o.hidden != 90*time.Millisecond || o.window != 90*time.Millisecond {
		t.Errorf("without waits %v of %v are hidden", o.hidden, o.window)
	}
}

// What two groups do at once counts once.
func TestOverlappingCollectivesCountOnce(t *testing.T) {
	start := time.Now()
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	trace := StepTrace{
		Start: at(0), FirstIssued: at(10), BackwardEnd: at(100),
		Collectives: []Span{{"c", at(90), at(120)}, {"a", at(20), at(50)}, {"b", at(30), at(40)}, {"d", at(45), at(60)}},
	}
	if o := trace.overlap(); o.comm != 70*time.Millisecond || o.hidden != 50*time.Millisecond || o.window != 90*time.Millisecond {
		t.Errorf("%+v, want 70 ms of communication, 50 of them hidden, beside 90", o)
	}
}

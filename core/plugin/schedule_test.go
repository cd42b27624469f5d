package plugin

import (
	"errors"
	"fmt"
	"math"
	"os"
	"testing"

	"starling/sdk"
)

// clock is a schedule. Under some names it misbehaves.
type clock struct {
	name  string
	total int
	slope float64
}

func (c *clock) Manifest() sdk.Manifest {
	return sdk.Manifest{Name: c.name, Version: "1.0.0", Hypers: []sdk.Hyper{sdk.Float("slope", 1, "").AtLeast(0)}}
}

func (c *clock) Begin(h sdk.Hypers, total int) error {
	if c.name == "clock-refuses" {
		return errors.New("too steep")
	}
	c.total, c.slope = total, h.Float("slope")
	return nil
}

func (c *clock) Rate(step int) float64 {
	switch {
	case c.name == "clock-nan" && step == 70000:
		return math.NaN()
	case c.name == "clock-negative" && step == 2:
		return -1
	case c.name == "clock-panics":
		panic("no time")
	case c.name == "clock-random":
		return float64(os.Getpid())
	case c.name == "clock-dies" && step == 5 && !marked("done"):
		os.Exit(137)
	}
	return c.slope * (1 - float64(step)/float64(c.total))
}

func TestSchedule(t *testing.T) {
	u := use(t, "clock")
	const total = rateBatch + 10
	s, err := AskSchedule(t.Context(), u, map[string]any{"slope": 0.5}, total)
	if err != nil {
		t.Fatal(err)
	}
	want := clock{total: total, slope: 0.5}
	for _, step := range []int{0, 1, rateBatch - 1, rateBatch, total - 1} {
		if s.At(step) != want.Rate(step) {
			t.Errorf("step %d: %v, want %v", step, s.At(step), want.Rate(step))
		}
	}
	if s.At(total+5) != s.At(total-1) {
		t.Error("after the last step the rate does not stay")
	}
	again, err := AskSchedule(t.Context(), u, map[string]any{"slope": 0.5}, total)
	if err != nil || again.String() != s.String() {
		t.Errorf("%v: %v, want %v", err, again, s)
	}
	other, err := AskSchedule(t.Context(), u, map[string]any{"slope": 0.25}, total)
	if err != nil || other.String() == s.String() {
		t.Errorf("%v: %v has the text of another slope", err, other)
	}
	if _, err := AskSchedule(t.Context(), u, nil, 0); err == nil {
		t.Error("no steps were accepted")
	}
}

func TestScheduleErrors(t *testing.T) {
	for name, want := range map[string]string{
		"clock-nan":      "the learning rate of step 70000 is NaN",
		"clock-negative": "the learning rate of step 2 is -1",
		"clock-panics":   "the schedule panicked: no time",
		"clock-refuses":  "too steep",
		"clock-dies":     "asking for learning rates",
	} {
		_, err := AskSchedule(t.Context(), use(t, name), map[string]any{"slope": 1.0}, 80000)
		fails(t, err, name, want)
	}
}

// A schedule that says one thing here and another there has two texts, and so two digests.
func TestScheduleThatChanges(t *testing.T) {
	u := use(t, "clock-random")
	texts := map[string]bool{}
	for range 2 {
		s, err := AskSchedule(t.Context(), u, map[string]any{"slope": 1.0}, 10)
		if err != nil {
			t.Fatal(err)
		}
		texts[fmt.Sprint(s)] = true
	}
	if len(texts) != 2 {
		t.Errorf("%v", texts)
	}
}

package main

import (
	"math"
	"testing"

	"starling/sdk"
)

func TestShape(t *testing.T) {
	w := &wsd{}
	m, err := sdk.Describe(w)
	if err != nil {
		t.Fatal(err)
	}
	begin := func(total int, values map[string]any) error { return w.Begin(sdk.NewHypers(m, values), total) }
	if err := begin(100, map[string]any{"peak": 2.0, "warmup": int64(10), "floor": 0.1}); err != nil {
		t.Fatal(err)
	}
	for step, want := range map[int]float64{0: 0.2, 4: 1, 9: 2, 10: 2, 79: 2, 84: 2 * (0.1 + 0.9*(1-math.Sqrt(5.0/20))), 99: 0.2} {
		if got := w.Rate(step); math.Abs(got-want) > 1e-15 {
			t.Errorf("step %d: %v, want %v", step, got, want)
		}
	}
	if err := begin(100, map[string]any{"peak": 2.0, "decay": 0.5, "shape": "linear"}); err != nil {
		t.Fatal(err)
	}
	if got := w.Rate(74); math.Abs(got-1) > 1e-15 {
		t.Errorf("in the middle of a straight line from 2: %v", got)
	}
	if err := begin(10, map[string]any{"peak": 1.0, "warmup": int64(9)}); err == nil {
		t.Error("a rise into the decay was accepted")
	}
	if err := begin(1, map[string]any{"peak": 1.0}); err != nil || w.Rate(0) != 1 {
		t.Errorf("one step: %v, %v", w.Rate(0), err)
	}
}

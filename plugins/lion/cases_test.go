package main

// cases are those of testdata/golden/plugins.py.
var cases = map[string]struct {
	lr     float64
	hypers map[string]any
}{
	"lion":          {3e-3, map[string]any{"betas": []float64{0.9, 0.99}, "weight_decay": 0.1}},
	"lion_no_decay": {1e-2, map[string]any{"betas": []float64{0.95, 0.98}, "weight_decay": 0.0}},
}

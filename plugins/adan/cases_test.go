package main

// cases are those of testdata/golden/plugins.py.
var cases = map[string]struct {
	lr     float64
	hypers map[string]any
}{
	"adan":       {1e-2, map[string]any{"betas": []float64{0.98, 0.92, 0.99}, "eps": 1e-8, "weight_decay": 0.02}},
	"adan_plain": {3e-3, map[string]any{"betas": []float64{0.9, 0.8, 0.95}, "eps": 1e-6, "weight_decay": 0.0}},
}

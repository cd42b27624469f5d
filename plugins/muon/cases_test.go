package main

// cases are those of testdata/golden/plugins.py.
var cases = map[string]struct {
	lr     float64
	hypers map[string]any
}{
	"muon_wide":   {2e-2, map[string]any{"momentum": 0.95, "nesterov": true, "weight_decay": 0.1}},
	"muon_tall":   {2e-2, map[string]any{"momentum": 0.9, "nesterov": false, "weight_decay": 0.0}},
	"muon_square": {1e-2, map[string]any{"momentum": 0.95, "nesterov": true, "weight_decay": 0.1, "adjust_lr": "match_rms_adamw"}},
}

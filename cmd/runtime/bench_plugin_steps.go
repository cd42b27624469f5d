package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"starling/core/optim"
	"starling/core/plugin"
	"starling/core/train"
	"starling/recipes"
)

// pluginSteps are the whole training steps of a recipe with AdamW in the program and in a plugin.
type pluginSteps struct {
	Recipe  string `json:"recipe"`
	Threads int    `json:"threads"`
	// Steps were timed on each side, in Rounds runs that took turns.
	Steps  int `json:"steps"`
	Rounds int `json:"rounds"`
	// BuiltInMS and PluginMS are the medians of all steps; Ratio is the median over the rounds of the ratio of their medians, so that
	// a machine that grows slower counts on both sides.
	BuiltInMS float64   `json:"built_in_step_ms"`
	PluginMS  float64   `json:"plugin_step_ms"`
	Ratio     float64   `json:"ratio"`
	Ratios    []float64 `json:"ratios"`
}

// stepSeconds is about how long each run's timed steps take.
const stepSeconds = 2.0

// benchPluginSteps times a recipe's steps on one rank. Both sides must end with the same weights.
func benchPluginSteps(ctx context.Context, model string, rounds int, started time.Time) (*pluginSteps, error) {
	dir, err := os.MkdirTemp("", "starling-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	path := model
	if b, err := fs.ReadFile(recipes.Measured, model+".star"); err == nil {
		path = filepath.Join(dir, model+".star")
		if err := os.WriteFile(path, b, 0o600); err != nil {
			return nil, err
		}
	}
	use, err := reference(ctx, dir, referencePrefix+"adamw")
	if err != nil {
		return nil, err
	}
	var misfit error
	swap := func(s *train.Spec) {
		a, ok := s.Optimizer.(optim.AdamW)
		if !ok || a.State != "" || s.Mesh.Data != 1 {
			misfit = fmt.Errorf("%s does not use optim.adamw with float32 state on one rank", path)
			return
		}
		s.Optimizer = &plugin.Optimizer{Use: use, Schedule: a.Schedule, ParamGroups: a.ParamGroups,
			Hypers: map[string]any{"betas": []float64{a.Beta1, a.Beta2}, "eps": a.Eps, "weight_decay": a.WeightDecay}}
	}
	var set []string
	if path != model || strings.HasSuffix(path, "quickstart.star") { // whose ranks are a param
		set = []string{"ranks=1"}
	}
	run := func(steps int, change func(*train.Spec)) (*stepResult, error) {
		r, err := benchStep(ctx, path, stepOptions{set: set, steps: steps, change: change}, started)
		if misfit != nil {
			err = misfit
		}
		return r, err
	}
	first, err := run(2, nil)
	if err != nil {
		return nil, err
	}
	steps := min(200, max(3, int(stepSeconds/first.BestMS*1e3)))
	out := &pluginSteps{Recipe: first.Recipe, Threads: first.Threads, Rounds: rounds}
	var all [2][]float64
	for range rounds {
		var mid [2]float64
		sum := ""
		for side, change := range []func(*train.Spec){nil, swap} {
			r, err := run(steps, change)
			if err != nil {
				return nil, err
			}
			if side == 1 && r.WeightSHA256 != sum {
				return nil, fmt.Errorf("the plugin's weights %s are not the built-in's, %s", r.WeightSHA256, sum)
			}
			sum, mid[side] = r.WeightSHA256, r.MedianMS
			all[side] = append(all[side], r.seconds...)
		}
		out.Ratios = append(out.Ratios, round(mid[1]/mid[0], 4))
	}
	out.Steps = len(all[0])
	out.BuiltInMS, out.PluginMS = round(1e3*median(all[0]), 3), round(1e3*median(all[1]), 3)
	out.Ratio = median(append([]float64(nil), out.Ratios...))
	return out, nil
}

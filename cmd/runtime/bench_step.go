package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"starling/core/device"
	"starling/core/recipe"
	"starling/core/train"
)

// stepOptions are the flags of bench step.
type stepOptions struct {
	set     []string
	steps   int
	threads int
	profile string

	listen, transport string // as exec's

	change func(*train.Spec) // before the run, where there is one rank
}

// stepResult is the time of a recipe's training steps.
type stepResult struct {
	Recipe    string   `json:"recipe"`
	Set       []string `json:"set,omitempty"`
	Ranks     int      `json:"ranks"`
	Threads   int      `json:"threads_per_rank"`
	Kernels   string   `json:"kernels"`
	Steps     int      `json:"steps"`
	Targets   float64  `json:"targets_per_step"`
	MedianMS  float64  `json:"step_ms"`
	BestMS    float64  `json:"best_step_ms"`
	PerSecond float64  `json:"tokens_per_s"`
	Best      float64  `json:"best_tokens_per_s"`
	// CPUMS is the processor time of a step over all threads of one rank; 0 where there are several ranks. On a machine that does
	// other work as well it says more than the clock, if there is one thread: several wait for each other awake.
	CPUMS        float64 `json:"cpu_ms,omitempty"`
	FirstStepS   float64 `json:"first_step_s"`
	PeakRSSMB    float64 `json:"peak_mb"`
	PlannedMB    float64 `json:"planned_mb"`
	WorkMB       float64 `json:"work_mb"` // of it activations, and gathered parameters where they are sharded
	Parameters   int64   `json:"parameters"`
	TrainLoss    float64 `json:"loss"`
	WeightSHA256 string  `json:"weights_sha256"`

	seconds []float64 // of each step
}

// warmSteps are run and not counted.
const warmSteps = 3

func newBenchStep(started time.Time) *cobra.Command {
	var o stepOptions
	c := &cobra.Command{
		Use:   "step RECIPE.star",
		Short: "Time a recipe's training step",
		Long: `Time a recipe's training step: forward, backward, communication, clipping and update, as a run makes them, without evaluation,
samples and checkpoints. Prints the median and the best of --steps, after three that are not counted.`,
		Args: oneRecipe,
		RunE: stoppable(func(c *cobra.Command, args []string) error {
			r, err := benchStep(c.Context(), args[0], o, started)
			if err != nil {
				return err
			}
			return show(c, r, r.text)
		}),
	}
	f := c.Flags()
	f.StringArrayVar(&o.set, "set", nil, "set a recipe parameter, as `name=value`; may be repeated")
	f.IntVar(&o.steps, "steps", 12, "steps that are timed")
	f.IntVar(&o.threads, "threads", 0, "CPU threads per rank (default: the recipe's, else the usable cores shared among the ranks)")
	f.StringVar(&o.listen, "listen", "", "where the ranks listen for each other, as exec's")
	f.StringVar(&o.transport, "transport", "", "how the ranks move data, as exec's")
	f.StringVar(&o.profile, "profile", "", "write a CPU profile of this process to `file`: of the steps, where there is one rank")
	return c
}

// benchStep runs the steps as exec would.
func benchStep(ctx context.Context, path string, o stepOptions, started time.Time) (*stepResult, error) {
	if o.steps < 1 || o.threads < 0 {
		return nil, &exitError{2, fmt.Errorf("--steps %d, --threads %d: there must be at least one step, and threads cannot be negative", o.steps, o.threads)}
	}
	spec, err := recipe.Load(path, recipe.Options{Set: o.set})
	if err != nil {
		return nil, err
	}
	if o.change != nil {
		o.change(spec)
	}
	dir, err := os.MkdirTemp("", "starling-bench-")
	if err != nil {
		return nil, fmt.Errorf("a folder for the run: %w", err)
	}
	defer os.RemoveAll(dir)
	j := job{Recipe: path, Set: o.set, RunDir: dir, Threads: o.threads, World: spec.Mesh.Data, StartedUnixNano: started.UnixNano(), Listen: o.listen, Transport: o.transport,
		Timeout: spec.Mesh.TimeoutSec, StepsOnly: warmSteps + o.steps}
	j.bare(spec)
	if j.Digest, err = recipe.Digest(spec); err != nil {
		return nil, err
	}
	var spent []float64 // processor time at the end of each step
	if j.World == 1 {
		spec.OnStep = func(train.Metrics) (train.Action, error) {
			spent = append(spent, cpuSeconds())
			return train.Action{}, nil
		}
	}
	quiet := newDisplay(os.Stderr, nil, true)
	defer quiet.close()
	if o.profile != "" {
		f, err := os.Create(o.profile)
		if err != nil {
			return nil, fmt.Errorf("--profile: %w", err)
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return nil, fmt.Errorf("--profile: %w", err)
		}
		defer pprof.StopCPUProfile()
	}
	res, err := launch(ctx, j, spec, &printer{}, false, quiet)
	if err != nil {
		return nil, execOptions{listen: o.listen, transport: o.transport}.blame(err)
	}
	seconds, err := stepTimes(filepath.Join(dir, train.MetricsFile))
	if err != nil {
		return nil, err
	}
	if len(seconds) <= warmSteps {
		return nil, fmt.Errorf("the run logged %d steps, too few to time", len(seconds))
	}
	seconds = seconds[warmSteps:]
	p, err := train.Plan(spec, spec.Mesh.Data, 0)
	if err != nil {
		return nil, err
	}
	cpu := 0.0
	if n := len(spent); n > warmSteps {
		cpu = (spent[n-1] - spent[warmSteps-1]) / float64(n-warmSteps)
	}
	targets := float64(res.Tokens) / float64(res.Steps)
	mid, best := median(seconds), slices.Min(seconds)
	return &stepResult{
		Recipe: spec.Name, Set: o.set, Ranks: res.Ranks, Threads: res.Threads, Kernels: res.Kernels, Steps: len(seconds), Targets: targets,
		MedianMS: round(mid*1e3, 2), BestMS: round(best*1e3, 2), PerSecond: round(targets/mid, 1), Best: round(targets/best, 1), CPUMS: round(cpu*1e3, 2), FirstStepS: round(res.FirstStepS, 3),
		PeakRSSMB: round(float64(res.PeakRSS)/(1<<20), 1), PlannedMB: round(float64(res.PlannedPeak)/(1<<20), 1), WorkMB: round(float64(p.ArenaBytes[device.Work])/(1<<20), 1), Parameters: res.Parameters,
		TrainLoss: float64(res.TrainLoss), WeightSHA256: res.WeightsSHA256, seconds: seconds,
	}, nil
}

// bare leaves of a recipe what a benchmark of its steps runs.
func (j *job) bare(spec *train.Spec) {
	if j.StepsOnly == 0 {
		return
	}
	spec.Steps, spec.Epochs, spec.Transient = j.StepsOnly, 0, true
	spec.Evaluate, spec.Checkpoint, spec.Samples, spec.OnStep, spec.OnEval = nil, nil, nil, nil, nil
}

// stepTimes reads the seconds of each step from a run's metrics.
func stepTimes(path string) ([]float64, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("the run's metrics: %w", err)
	}
	defer f.Close()
	var seconds []float64
	tokens := 0.0
	for scan := bufio.NewScanner(f); scan.Scan(); {
		var line struct {
			Kind   string  `json:"kind"`
			Tokens float64 `json:"tokens"`
			Rate   float64 `json:"tokens_per_s"`
		}
		if err := json.Unmarshal(scan.Bytes(), &line); err != nil {
			return nil, fmt.Errorf("the run's metrics: %w", err)
		}
		if line.Kind == "step" && line.Rate > 0 {
			seconds = append(seconds, (line.Tokens-tokens)/line.Rate)
			tokens = line.Tokens
		}
	}
	return seconds, nil
}

func (r *stepResult) text() string {
	return table([][2]string{
		{"recipe", fmt.Sprintf("%s%s: %s parameters, %.0f targets a step", r.Recipe, setFlags(r.Set), count(r.Parameters), r.Targets)},
		{"placement", fmt.Sprintf("%d rank%s of %d thread%s, %s", r.Ranks, plural(r.Ranks), r.Threads, plural(r.Threads), r.Kernels)},
		{"step", fmt.Sprintf("%.1f ms, best %.1f ms", r.MedianMS, r.BestMS)},
		{"targets/s", fmt.Sprintf("%s, best %s", count(int64(r.PerSecond)), count(int64(r.Best)))},
		{"first step after", fmt.Sprintf("%.2f s", r.FirstStepS)},
		{"memory", fmt.Sprintf("%.0f MB resident at most, %.0f MB planned", r.PeakRSSMB, r.PlannedMB)},
		{"loss", fmt.Sprintf("%.4f after %d steps", r.TrainLoss, r.Steps+warmSteps)},
	})
}

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// memoryOptions are the flags of bench memory.
type memoryOptions struct {
	python string
	root   string
	rounds int
	steps  int
	only   string
}

// contest is training steps of one model at several placements, which take turns. The first is what the others are compared with.
type contest struct {
	Name    string
	entries []entry
}

// entry is one way to run the steps: this program's bench step with these arguments, or a peer's script.
type entry struct {
	Name   string
	args   []string
	script bool
}

func contests() []contest {
	ours := func(name string, args ...string) entry { return entry{name, args, false} }
	peer := func(name string, args ...string) entry { return entry{name, args, true} }
	two := func(zero int, more ...string) entry {
		name := fmt.Sprintf("2 ranks of 1 thread, zero %d", zero)
		return ours(strings.Join(append([]string{name}, more...), " "), append([]string{"--threads", "1", "--set", "ranks=2", "--set", fmt.Sprint("zero=", zero)}, more...)...)
	}
	set := func(values ...string) (args []string) {
		for _, v := range values {
			args = append(args, "--set", v)
		}
		return args
	}
	// Overlapping gains most where nothing waits for the whole gradient and buckets are small.
	apart := func(zero int, overlap string, more ...string) entry {
		return two(zero, append(set("clip_norm=0", "bucket_mb=4", "overlap="+overlap), more...)...)
	}
	four := func(more ...string) entry {
		return ours(strings.Join(append([]string{"4 ranks of 1 thread, zero 3"}, more...), " "), append([]string{"--threads", "1"}, set(append([]string{"ranks=4", "micro_batch=3", "zero=3"}, more...)...)...)...)
	}
	tcp := []string{"--listen", "tcp:127.0.0.1:0", "--transport", "tcp"}
	deep := []string{"--threads", "2", "--set", "layers=12", "--set", "micro_batch=2"}
	return []contest{
		{"sharding", []entry{two(0), two(1), two(2), two(3), two(3, set("keep_gathered=True")...)}},
		{"overlap", []entry{apart(1, "False"), apart(1, "True"), apart(3, "False"), apart(3, "True")}},
		{"overlap-network", []entry{apart(1, "False", tcp...), apart(1, "True", tcp...), apart(3, "False", tcp...), apart(3, "True", tcp...)}},
		{"offload", []entry{two(3), two(3, set("offload=host")...), two(3, set("offload=host", "offload_activations=True")...),
			two(3, set("offload=disk")...), two(3, set("offload=disk", "offload_activations=True")...)}},
		{"types", []entry{two(1), two(1, set("state=bf16")...), two(1, set("state=int8")...), two(1, set("reduce_dtype=bf16")...), two(1, set("precision=bf16")...)}},
		{"hybrid", []entry{four(), four("shard=2")}},
		{"peers", []entry{two(3), peer("FSDP2", "--mode", "fsdp"), peer("FSDP2, weights kept between the passes", "--mode", "fsdp", "--keep-gathered"), peer("DDP", "--mode", "ddp")}},
		{"efficiency", []entry{ours("1 rank of 2 threads", "--threads", "2", "--set", "ranks=1"), two(1), two(3)}},
		{"network", []entry{two(0, tcp...), two(3, tcp...)}},
		{"recompute", []entry{ours("12 layers, nothing recomputed", deep...), ours("12 layers, recompute.every(2)", append(slices.Clone(deep), set("recompute=every2")...)...),
			ours("12 layers, recompute.budget(\"60MB\")", append(slices.Clone(deep), set("recompute=60MB")...)...), ours("12 layers, recompute.all()", append(slices.Clone(deep), set("recompute=all")...)...)}},
	}
}

// entryResult is one entry's outcome: medians over the rounds, ratios to the first entry of the same round.
type entryResult struct {
	Name      string  `json:"name"`
	StepMS    float64 `json:"step_ms"`
	PerSecond float64 `json:"tokens_per_s"`
	Ratio     float64 `json:"step_time_ratio"`
	BestRatio float64 `json:"best_step_time_ratio"` // of the fastest step of all rounds
	PeakMB    float64 `json:"peak_mb"`              // of one rank; of all processes of a peer
	PlannedMB float64 `json:"planned_mb,omitempty"` // of one rank
	WorkMB    float64 `json:"work_mb,omitempty"`    // activations and gathered parameters, as planned
}

type contestResult struct {
	Name    string        `json:"name"`
	Entries []entryResult `json:"entries"`
}

type memoryResult struct {
	Limits   limits          `json:"limits"`
	Rounds   int             `json:"rounds"`
	Steps    int             `json:"steps"`
	Contests []contestResult `json:"contests"`
}

func newBenchMemory() *cobra.Command {
	var o memoryOptions
	c := &cobra.Command{
		Use:   "memory",
		Short: "Time what each way to hold less memory costs",
		Long: `Time the small GPT's training step at every stage of sharding, with and without overlapping, with state and activations off the device, in smaller types,
under recomputation, over TCP, on one rank, and beside PyTorch's FSDP2 and DDP, by turns, in processes. Needs a checkout of the project, and for the peers Python with PyTorch. Every figure is the median over --rounds.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			r, err := benchMemory(c.Context(), o)
			if err != nil {
				return err
			}
			return show(c, r, r.text)
		},
	}
	f := c.Flags()
	f.StringVar(&o.python, "python", "python3", "the Python of the peers, a `path` or a name")
	f.StringVar(&o.root, "root", ".", "`folder` of the checkout")
	f.IntVar(&o.rounds, "rounds", 3, "times that each placement runs")
	f.IntVar(&o.steps, "steps", 6, "steps that are timed in each")
	f.StringVar(&o.only, "only", "", "only the contest of this `name`: sharding, overlap, overlap-network, offload, types, hybrid, peers, efficiency, network or recompute")
	return c
}

func benchMemory(ctx context.Context, o memoryOptions) (*memoryResult, error) {
	if o.rounds < 1 || o.steps < 1 {
		return nil, &exitError{2, fmt.Errorf("--rounds %d, --steps %d: must be at least 1", o.rounds, o.steps)}
	}
	chosen := slices.DeleteFunc(contests(), func(c contest) bool { return o.only != "" && c.Name != o.only })
	if len(chosen) == 0 {
		var names []string
		for _, c := range contests() {
			names = append(names, c.Name)
		}
		return nil, &exitError{2, fmt.Errorf("--only %s: choose %s", o.only, strings.Join(names, ", "))}
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding this program's file: %w", err)
	}
	r := &memoryResult{Limits: measureLimits(usableThreads()), Rounds: o.rounds, Steps: o.steps}
	for _, c := range chosen {
		median, err := c.run(ctx, o, self)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.Name, err)
		}
		r.Contests = append(r.Contests, contestResult{c.Name, median})
	}
	return r, nil
}

// run lets the entries take turns.
func (c *contest) run(ctx context.Context, o memoryOptions, self string) ([]entryResult, error) {
	type series struct{ step, rate, ratio, peak, best []float64 }
	rounds := make([]series, len(c.entries))
	out := make([]entryResult, len(c.entries))
	for range o.rounds {
		for i, e := range c.entries {
			var one struct {
				StepMS    float64 `json:"step_ms"`
				BestMS    float64 `json:"best_step_ms"`
				PerSecond float64 `json:"tokens_per_s"`
				PeakMB    float64 `json:"peak_mb"`
				PlannedMB float64 `json:"planned_mb"`
				WorkMB    float64 `json:"work_mb"`
			}
			name, args := self, append([]string{"bench", "step", filepath.Join(o.root, "recipes", "small_gpt.star"), "--json"}, e.args...)
			if e.script {
				name, args = o.python, append([]string{filepath.Join(o.root, "testdata", "peers", "fsdp_step.py"), "--ranks", "2", "--threads", "1"}, e.args...)
			}
			if err := runJSON(ctx, &one, name, append(args, "--steps", fmt.Sprint(o.steps))...); err != nil {
				return nil, fmt.Errorf("%s: %w", e.Name, err)
			}
			s := &rounds[i]
			s.step, s.rate, s.peak, s.best = append(s.step, one.StepMS), append(s.rate, one.PerSecond), append(s.peak, one.PeakMB), append(s.best, one.BestMS)
			s.ratio = append(s.ratio, one.StepMS/rounds[0].step[len(s.step)-1])
			out[i].PlannedMB, out[i].WorkMB = one.PlannedMB, one.WorkMB
		}
	}
	for i, e := range c.entries {
		s := rounds[i]
		out[i].Name, out[i].StepMS, out[i].PerSecond, out[i].PeakMB = e.Name, round(median(s.step), 1), median(s.rate), median(s.peak)
		out[i].Ratio, out[i].BestRatio = round(median(s.ratio), 3), round(slices.Min(s.best)/slices.Min(rounds[0].best), 3)
	}
	return out, nil
}

func (r *memoryResult) text() string {
	var b strings.Builder
	b.WriteString(table(r.Limits.rows()))
	fmt.Fprintf(&b, "\n  the small GPT, recipes/small_gpt.star; medians of %d; ratios of step times to the first of each group\n", r.Rounds)
	for _, c := range r.Contests {
		var rows [][]string
		for _, e := range c.Entries {
			planned, work := "", ""
			if e.WorkMB > 0 {
				planned, work = fmt.Sprintf("%.0f", e.PlannedMB), fmt.Sprintf("%.1f", e.WorkMB)
			}
			rows = append(rows, []string{e.Name, fmt.Sprintf("%.1f", e.StepMS), count(int64(e.PerSecond)), fmt.Sprintf("%.3f×", e.Ratio), fmt.Sprintf("%.3f×", e.BestRatio), fmt.Sprintf("%.0f", e.PeakMB), planned, work})
		}
		b.WriteString("\n" + columns([]string{c.Name, "step ms", "tokens/s", "step time", "best steps", "peak MB", "planned MB", "activations MB"}, rows))
	}
	return b.String()
}

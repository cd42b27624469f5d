package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// peerOptions are the flags of bench peers.
type peerOptions struct {
	python  string
	root    string
	rounds  int
	only    string
	compile bool
	threads int
}

// duel is one piece of work that both do.
type duel struct {
	Name string
	// recipe and set are ours, script and args theirs.
	recipe string
	set    []string
	script string
	args   []string
}

func duels() []duel {
	small := func(precision string) duel {
		return duel{"small GPT, " + precision, "small_gpt.star", []string{"precision=" + precision}, "gpt_step.py", []string{"--preset", "small", "--precision", precision}}
	}
	large := func(precision string) duel {
		return duel{"GPT-2 124M, " + precision, "gpt2_124m.star", []string{"precision=" + precision}, "gpt_step.py", []string{"--preset", "124m", "--precision", precision, "--steps", "6"}}
	}
	images := func(precision string) duel {
		return duel{"cifar_resnet18, " + precision, "cifar_resnet18.star", []string{"precision=" + precision}, "resnet_step.py", []string{"--precision", precision}}
	}
	return []duel{
		small("fp32"), small("bf16"), large("fp32"), large("bf16"), images("fp32"), images("bf16"),
		{"quickstart, 2 ranks of 1 thread", "quickstart.star", nil, "gpt_step.py", []string{"--preset", "quickstart", "--family", "llama", "--steps", "60"}},
	}
}

// peerResult is one duel's outcome: medians over the rounds.
type peerResult struct {
	Work        string  `json:"work"`
	Peer        string  `json:"peer"`
	Mode        string  `json:"peer_mode"` // the faster of those that ran: eager or compiled
	Ours        float64 `json:"tokens_per_s"`
	Theirs      float64 `json:"peer_tokens_per_s"`
	Ratio       float64 `json:"ratio"`
	CPU         float64 `json:"cpu_ms"`
	PeerCPU     float64 `json:"peer_cpu_ms"`
	CPURatio    float64 `json:"cpu_ratio,omitempty"`
	Memory      float64 `json:"peak_mb"`
	PeerMemory  float64 `json:"peer_peak_mb"`
	MemoryRatio float64 `json:"memory_ratio"`
	First       float64 `json:"first_step_s"`
	PeerFirst   float64 `json:"peer_first_step_s"`
	FirstRatio  float64 `json:"first_step_ratio"`
}

type peersResult struct {
	Limits limits       `json:"limits"`
	Rounds int          `json:"rounds"`
	Duels  []peerResult `json:"peers"`
}

func newBenchPeers() *cobra.Command {
	var o peerOptions
	c := &cobra.Command{
		Use:   "peers",
		Short: "Compare training steps with PyTorch's",
		Long: `Run the training steps of recipes and of the same models in PyTorch by turns, and print the ratios. Needs Python with
PyTorch and a checkout of the project: the scripts are in testdata/peers, the recipes in recipes. A target is a token, or an image with
one label. Every figure is the median over --rounds.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			r, err := benchPeers(c.Context(), o)
			if err != nil {
				return err
			}
			return show(c, r, r.text)
		},
	}
	f := c.Flags()
	f.StringVar(&o.python, "python", "python3", "the Python to run, a `path` or a name")
	f.StringVar(&o.root, "root", ".", "`folder` of the checkout")
	f.IntVar(&o.rounds, "rounds", 3, "times that each side runs")
	f.StringVar(&o.only, "only", "", "only the work whose name contains this `text`")
	f.IntVar(&o.threads, "threads", 0, "threads of the peer, and of one rank (default: the usable cores); with 1 the ratio is of processor time, which other work on the machine disturbs little")
	f.BoolVar(&o.compile, "compile", false, "the peer also runs its model compiled (torch.compile; needs a C++ compiler): its faster mode is what counts")
	return c
}

func benchPeers(ctx context.Context, o peerOptions) (*peersResult, error) {
	if o.rounds < 1 {
		return nil, &exitError{2, fmt.Errorf("--rounds %d: must be at least 1", o.rounds)}
	}
	version, err := exec.CommandContext(ctx, o.python, "-c", "import torch; print(torch.__version__)").Output()
	if err != nil {
		var failed *exec.ExitError
		if errors.As(err, &failed) {
			err = errors.New(lastLine(failed.Stderr))
		}
		return nil, fmt.Errorf("%s cannot import torch: %w; name a Python that can with --python", o.python, err)
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding this program's file: %w", err)
	}
	modes := []string{"eager"}
	if o.compile {
		modes = append(modes, "compiled")
	}
	if o.threads < 0 {
		return nil, &exitError{2, fmt.Errorf("--threads %d: cannot be negative", o.threads)}
	}
	cores := o.threads
	if cores == 0 {
		cores = usableThreads()
	}
	r := &peersResult{Limits: measureLimits(cores), Rounds: o.rounds}
	for _, d := range duels() {
		if !strings.Contains(d.Name, o.only) {
			continue
		}
		args := append([]string{filepath.Join(o.root, "testdata", "peers", d.script), "--threads", fmt.Sprint(cores)}, d.args...)
		own := []string{"bench", "step", filepath.Join(o.root, "recipes", d.recipe), "--json"}
		if o.threads > 0 {
			own = append(own, "--threads", fmt.Sprint(cores), "--set", "ranks=1")
		}
		for _, s := range d.set {
			own = append(own, "--set", s)
		}
		var cpu, ours, memory, first []float64
		peers := make([]peerTimes, len(modes))
		for range o.rounds {
			var mine stepResult
			if err := runJSON(ctx, &mine, self, own...); err != nil {
				return nil, fmt.Errorf("%s: %w", d.Name, err)
			}
			for i, mode := range modes {
				theirs := args
				if mode == "compiled" {
					theirs = append(slices.Clone(args), "--compile")
				}
				if err := peers[i].run(ctx, o.python, theirs); err != nil {
					return nil, fmt.Errorf("%s: %w", d.Name, err)
				}
			}
			cpu, ours = append(cpu, mine.CPUMS), append(ours, mine.PerSecond)
			memory, first = append(memory, mine.PeakRSSMB*float64(mine.Ranks)), append(first, mine.FirstStepS)
		}
		best := 0 // of the peer's modes, the one with the fastest steps; start and memory are the least of all
		p := peerResult{Work: d.Name, Ours: median(ours), Memory: median(memory), First: median(first), CPU: median(cpu)}
		for i := range peers {
			if median(peers[i].rate) > median(peers[best].rate) {
				best = i
			}
			if m := median(peers[i].memory); i == 0 || m < p.PeerMemory {
				p.PeerMemory = m
			}
			if m := median(peers[i].first); i == 0 || m < p.PeerFirst {
				p.PeerFirst = m
			}
		}
		p.Peer = fmt.Sprintf("PyTorch %s, %d threads", strings.TrimSpace(string(version)), cores)
		p.Mode, p.Theirs, p.PeerCPU = modes[best], median(peers[best].rate), median(peers[best].cpu)
		if p.CPU > 0 {
			p.CPURatio = round(p.PeerCPU/p.CPU, 3)
		}
		p.Ratio, p.MemoryRatio, p.FirstRatio = round(p.Ours/p.Theirs, 3), round(p.Memory/p.PeerMemory, 3), round(p.First/p.PeerFirst, 3)
		r.Duels = append(r.Duels, p)
	}
	return r, nil
}

// peerTimes are a peer's figures, one of each a round.
type peerTimes struct{ rate, cpu, memory, first []float64 }

// run adds a round.
func (p *peerTimes) run(ctx context.Context, python string, args []string) error {
	var one struct {
		Rate   float64 `json:"tokens_per_s"`
		CPU    float64 `json:"cpu_ms"`
		Memory float64 `json:"peak_mb"`
		First  float64 `json:"first_step_s"`
	}
	if err := runJSON(ctx, &one, python, args...); err != nil {
		return err
	}
	p.rate, p.cpu = append(p.rate, one.Rate), append(p.cpu, one.CPU)
	p.memory, p.first = append(p.memory, one.Memory), append(p.first, one.First)
	return nil
}

// runJSON runs a program that prints one JSON object.
func runJSON(ctx context.Context, to any, name string, args ...string) error {
	c := exec.CommandContext(ctx, name, args...)
	out, err := c.Output()
	if err != nil {
		var failed *exec.ExitError
		if errors.As(err, &failed) {
			return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, lastLine(failed.Stderr))
		}
		return err
	}
	if err := json.Unmarshal(out, to); err != nil {
		return fmt.Errorf("%s printed no JSON: %w", name, err)
	}
	return nil
}

// lastLine is the last line of a program's complaint.
func lastLine(b []byte) string {
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return lines[len(lines)-1]
}

func (r *peersResult) text() string {
	var rows [][]string
	for _, d := range r.Duels {
		rows = append(rows, []string{d.Work, d.Mode, count(int64(d.Ours)), count(int64(d.Theirs)), fmt.Sprintf("%.2f×", d.Ratio),
			fmt.Sprintf("%.0f", d.CPU), fmt.Sprintf("%.0f", d.PeerCPU), fmt.Sprintf("%.2f×", d.CPURatio),
			fmt.Sprintf("%.0f", d.Memory), fmt.Sprintf("%.0f", d.PeerMemory), fmt.Sprintf("%.2f×", d.MemoryRatio),
			fmt.Sprintf("%.2f", d.First), fmt.Sprintf("%.2f", d.PeerFirst), fmt.Sprintf("%.2f×", d.FirstRatio)})
	}
	peer := ""
	if len(r.Duels) > 0 {
		peer = r.Duels[0].Peer
	}
	return table(r.Limits.rows()) + fmt.Sprintf("\n  the peer is %s; medians of %d\n\n", peer, r.Rounds) +
		columns([]string{"training step", "peer's mode", "targets/s", "peer", "ratio", "CPU ms", "peer", "ratio", "peak MB", "peer", "ratio", "first step s", "peer", "ratio"}, rows)
}

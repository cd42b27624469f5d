package main

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"starling/core/device"
	"starling/core/device/cpu"
	"starling/core/graph"
	"starling/core/plan"
	"starling/core/recipe"
	"starling/core/tensor"
	"starling/core/train"
	"starling/sdk/vec"
)

// opsOptions are the flags of bench ops.
type opsOptions struct {
	set     []string
	threads int
	rounds  int
	match   string
}

// opsResult is the speed of kernels beside the limits.
type opsResult struct {
	Recipe string   `json:"recipe,omitempty"`
	Limits limits   `json:"limits"`
	Ops    []opRate `json:"ops"`
	// StepMS is the time of all kernels of a step, Idle the part of the threads' time in it in which they had nothing to do.
	StepMS float64 `json:"step_ms,omitempty"`
	Idle   float64 `json:"idle,omitempty"`
}

// opRate is one kernel on one set of shapes.
type opRate struct {
	Op     string  `json:"op"`
	Shapes string  `json:"shapes"`
	Calls  int     `json:"calls"`
	MS     float64 `json:"ms"` // one call, the median
	Share  float64 `json:"share_of_step,omitempty"`
	GFLOPS float64 `json:"gflop_per_s"`
	GBps   float64 `json:"gb_per_s"`
	// Bound is the limit that the kernel is nearest to, "arithmetic" or "memory", and Of the fraction of it that it reaches: memory
	// counts every operand once, so that what lies in a cache can exceed 1.
	Bound string  `json:"bound"`
	Of    float64 `json:"of_limit"`
	// Idle is the part of the threads' time in which they had nothing to do: waited for the last of a kernel's tasks, or for work that
	// one thread does alone.
	Idle float64 `json:"idle"`
}

func newBenchOps() *cobra.Command {
	var o opsOptions
	c := &cobra.Command{
		Use:   "ops [RECIPE.star]",
		Short: "Time kernels beside the machine's limits",
		Long: `Time kernels beside the limits of the machine, which are measured first. Without a recipe the kernels of transformers run one by one on
common shapes. With a recipe its own programs run, forward, backward and update, so that each kernel finds the caches as it does in training; equal
kernels are one line. Idle is the part of the threads' time in which they had nothing to do.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if o.rounds < 1 || o.threads < 0 {
				return &exitError{2, fmt.Errorf("--rounds %d, --threads %d: there must be at least one round, and threads cannot be negative", o.rounds, o.threads)}
			}
			if o.threads == 0 {
				o.threads = usableThreads()
			}
			r := &opsResult{Limits: measureLimits(o.threads)}
			makeRoom(o.threads)
			dev, err := cpu.Open(cpu.Config{Threads: o.threads, Measure: true})
			if err != nil {
				return err
			}
			defer dev.Close()
			if len(args) == 1 {
				err = r.recipe(c.Context(), dev, args[0], o)
			} else {
				err = r.common(dev, o)
			}
			if err != nil {
				return err
			}
			return show(c, r, r.text)
		},
	}
	f := c.Flags()
	f.StringArrayVar(&o.set, "set", nil, "set a recipe parameter, as `name=value`; may be repeated")
	f.IntVar(&o.threads, "threads", 0, "CPU threads (default: the usable cores)")
	f.IntVar(&o.rounds, "rounds", 7, "times that each kernel is timed")
	f.StringVar(&o.match, "match", "", "only kernels whose name contains this `text`")
	return c
}

// sampleOf collects the times of equal kernels.
type sampleOf struct {
	op, shapes   string
	flops, bytes int64
	calls        int
	seconds      []float64
	total, used  float64 // seconds of the clock, and of threads that had work
}

// meter tells how much of their time a device's threads had work.
type meter struct {
	dev            *cpu.Device
	worked, waited time.Duration
}

func newMeter(dev *cpu.Device) *meter {
	m := &meter{dev: dev}
	m.worked, m.waited = dev.Spent()
	return m
}

// used is the seconds, over all threads, with work since it was called last, of which elapsed went by on the clock.
func (m *meter) used(elapsed time.Duration) float64 {
	worked, waited := m.dev.Spent()
	d := elapsed + worked - m.worked - (waited - m.waited)
	m.worked, m.waited = worked, waited
	return d.Seconds()
}

// idleShare is the part of so many threads' time that was not used.
func idleShare(threads int, total, used float64) float64 {
	if total <= 0 {
		return 0
	}
	return round(max(0, 1-used/(float64(threads)*total)), 3)
}

func (r *opsResult) add(s *sampleOf, total float64) {
	sec := median(s.seconds)
	o := opRate{Idle: idleShare(r.Limits.Threads, s.total, s.used), Op: s.op, Shapes: s.shapes, Calls: s.calls, MS: round(sec*1e3, 4), GFLOPS: round(float64(s.flops)/sec/1e9, 1), GBps: round(float64(s.bytes)/sec/1e9, 1)}
	if total > 0 {
		o.Share = round(sec*float64(s.calls)/total, 4)
	}
	peak := r.Limits.Peak
	if product(s.op) && strings.Contains(s.shapes, "bf16") && r.Limits.Half > 0 {
		peak = r.Limits.Half
	}
	arithmetic, memory := float64(s.flops)/sec/1e9/peak, float64(s.bytes)/sec/1e9/r.Limits.Copy
	o.Bound, o.Of = "memory", round(memory, 3)
	if arithmetic > memory {
		o.Bound, o.Of = "arithmetic", round(arithmetic, 3)
	}
	r.Ops = append(r.Ops, o)
}

// boundRecipe is the programs of a recipe's step in memory of their own, on values that do no harm.
type boundRecipe struct {
	spec     *train.Spec
	programs []*device.Bound
	mem      device.Memory
}

func (b *boundRecipe) close() {
	for _, a := range b.mem.Arenas {
		if a != nil {
			a.Free()
		}
	}
}

func bindRecipe(ctx context.Context, dev *cpu.Device, path string, set []string) (b *boundRecipe, err error) {
	b = &boundRecipe{}
	defer func() {
		if err != nil {
			b.close()
		}
	}()
	if b.spec, err = recipe.Load(path, recipe.Options{Set: set}); err != nil {
		return nil, err
	}
	(&job{StepsOnly: 1}).bare(b.spec)
	b.spec.Mesh.Data = 1
	if err := b.spec.Scan(ctx); err != nil {
		return nil, err
	}
	p, err := train.Plan(b.spec, 1, 0)
	if err != nil {
		return nil, err
	}
	for s := range device.NumSpaces {
		if b.mem.Arenas[s], err = dev.Alloc(s.String(), p.ArenaBytes[s]); err != nil {
			return nil, err
		}
	}
	b.mem.Stack = []device.Arena{b.mem.Arenas[device.Grads]}
	for _, q := range p.Params {
		values := make([]float32, q.Place.Shape.Numel())
		graph.InitValues(q.ParamAttrs, b.spec.Seed, 0, values)
		switch q.Place.DType {
		case tensor.F32:
			copy(device.View[float32](b.mem, q.Place), values)
		case tensor.BF16:
			vec.F32ToBF16(device.View[uint16](b.mem, q.Place), values)
		case tensor.F16:
			vec.F32ToF16(device.View[uint16](b.mem, q.Place), values)
		}
	}
	for _, name := range []string{plan.SegmentMicro, plan.SegmentNorm, plan.SegmentUpdate} {
		bound, err := device.Bind(dev, p.Segments[name], b.mem)
		if err != nil {
			return nil, err
		}
		for _, in := range p.Segments[name].Inputs {
			fillInput(b.mem, in)
		}
		b.programs = append(b.programs, bound)
	}
	return b, nil
}

// recipe times the programs of a recipe in their own order.
func (r *opsResult) recipe(ctx context.Context, dev *cpu.Device, path string, o opsOptions) error {
	bound, err := bindRecipe(ctx, dev, path, o.set)
	if err != nil {
		return err
	}
	defer bound.close()
	r.Recipe = bound.spec.Name
	programs := bound.programs
	spent := map[string]*sampleOf{}
	order := []*sampleOf{}
	meter := newMeter(dev)
	for round := range o.rounds + 1 {
		seen := map[string]float64{}
		env := &device.Env{FirstInLane: true, LastInLane: true, LastOnRank: true, Trace: func(in *device.Instr, start, end time.Time) {
			if in.Kind != device.Kernel {
				return
			}
			key := in.Op.Name + " " + shapesOf(in.In)
			s := spent[key]
			if s == nil {
				s = &sampleOf{op: in.Op.Name, shapes: shapesOf(in.In), flops: in.FLOPs, bytes: in.Bytes}
				spent[key] = s
				order = append(order, s)
			}
			if round == 0 {
				s.calls++
				meter.used(0)
				return
			}
			seen[key] += end.Sub(start).Seconds()
			s.total += end.Sub(start).Seconds()
			s.used += meter.used(end.Sub(start))
		}}
		for _, b := range programs {
			if err := b.Run(env); err != nil {
				return err
			}
		}
		for key, sec := range seen {
			spent[key].seconds = append(spent[key].seconds, sec/float64(spent[key].calls))
		}
	}
	total, clock, used := 0.0, 0.0, 0.0
	for _, s := range order {
		total += median(s.seconds) * float64(s.calls)
		clock += s.total
		used += s.used
	}
	r.StepMS, r.Idle = round(total*1e3, 2), idleShare(r.Limits.Threads, clock, used)
	slices.SortStableFunc(order, func(a, b *sampleOf) int {
		return cmp.Compare(median(b.seconds)*float64(b.calls), median(a.seconds)*float64(a.calls))
	})
	for _, s := range order {
		if strings.Contains(s.op, o.match) {
			r.add(s, total)
		}
	}
	return nil
}

// fillInput puts harmless values into an input: the ids 0 to 9, a scale of a thousandth, hyper-parameters of a slow AdamW.
func fillInput(mem device.Memory, o device.Operand) {
	switch o.DType {
	case tensor.F64:
		row := [graph.HyperCount]float64{graph.HyperLR: 1e-6, graph.HyperBeta1: 0.9, graph.HyperBeta2: 0.95, graph.HyperEps: 1e-8,
			graph.HyperCorrection1: 0.1, graph.HyperCorrection2: 0.05, graph.HyperGradScale: 1}
		for i, v := 0, device.View[float64](mem, o); i < len(v); i++ {
			v[i] = row[i%plan.HyperLen%len(row)]
		}
	case tensor.F32:
		r := rand.New(rand.NewPCG(1, 1))
		for i, v := 0, device.View[float32](mem, o); i < len(v); i++ {
			v[i] = float32(1e-3 * r.Float64())
		}
	case tensor.BF16:
		v := device.View[uint16](mem, o)
		for i := range v {
			v[i] = 0x3a83 // about a thousandth
		}
	case tensor.I32:
		for i, v := 0, device.View[int32](mem, o); i < len(v); i++ {
			v[i] = int32(i % 10)
		}
	}
}

func shapesOf(ops []device.Operand) string {
	var parts []string
	for _, o := range ops {
		s := o.Shape.String()
		if o.DType != tensor.F32 {
			s = o.DType.String() + s
		}
		parts = append(parts, s)
	}
	return strings.Join(parts, " ")
}

func (r *opsResult) text() string {
	var b strings.Builder
	b.WriteString(table(r.Limits.rows()) + "\n")
	head := []string{"operation", "inputs", "calls", "ms", "GFLOP/s", "GB/s", "of the limit", "idle"}
	if r.Recipe != "" {
		head = append(head, "of a step")
	}
	var rows [][]string
	for _, o := range r.Ops {
		row := []string{o.Op, o.Shapes, fmt.Sprint(o.Calls), fmt.Sprintf("%.3f", o.MS), fmt.Sprintf("%.1f", o.GFLOPS), fmt.Sprintf("%.1f", o.GBps),
			fmt.Sprintf("%.0f%% %s", 100*o.Of, o.Bound), fmt.Sprintf("%.0f%%", 100*o.Idle)}
		if r.Recipe != "" {
			row = append(row, fmt.Sprintf("%.1f%%", 100*o.Share))
		}
		rows = append(rows, row)
	}
	b.WriteString(columns(head, rows))
	if r.Recipe != "" {
		fmt.Fprintf(&b, "\n  a step's kernels take %.1f ms, in which threads are idle for %.1f%% of their time\n", r.StepMS, 100*r.Idle)
	}
	return b.String()
}

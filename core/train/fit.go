package train

import (
	"fmt"
	"strings"

	"starling/core/plan"
)

// Fits refuses a plan that takes more memory than parallel.mesh(memory = …) allows a rank: with what takes it, and with changes to the
// recipe that would make it fit, each of them tried.
func (s *Spec) Fits(p *plan.Plan, scratch int64) error {
	m := PlanMemory(s, p, scratch)
	limit := s.Mesh.MemoryBytes
	if limit == 0 || m.Total() <= limit {
		return nil
	}
	var b strings.Builder
	fmt.Fprintf(&b, "parallel.mesh(memory = …): rank %d needs %s of memory and has %s:\n", p.Settings.Rank, mib(m.Total()), mib(limit))
	for _, l := range m.Lines(p) {
		fmt.Fprintf(&b, "    %-22s %s\n", l.Name, l.Text)
	}
	ways := s.waysToFit(p, scratch)
	if len(ways) == 0 {
		b.WriteString("no single change makes it fit; make the model smaller, or give each rank more memory")
	} else {
		fmt.Fprintf(&b, "any of these makes it fit:\n    %s", strings.Join(ways, "\n    "))
	}
	return s.place("mesh", fmt.Errorf("%s", b.String()))
}

// MemoryLine is one line of the report on a rank's memory.
type MemoryLine struct{ Name, Text string }

// Lines is the report on a rank's memory, largest concerns first.
func (m MemoryPlan) Lines(p *plan.Plan) []MemoryLine {
	sum := p.Summary()
	var out []MemoryLine
	add := func(name string, bytes int64, note string) {
		if bytes > 0 {
			out = append(out, MemoryLine{name, strings.TrimSpace(mib(bytes) + "  " + note)})
		}
	}
	add("parameters", m.Params, "")
	add("optimizer state", m.State, "")
	if len(p.Rounds) > 0 {
		add("gradients", m.Sums, fmt.Sprintf("this rank's part, %d partial sums deep", p.SumBuffers))
		add("gradient buckets", m.Grads, "on their way to their owners")
	} else {
		add("gradients", m.Grads/int64(max(1, p.GradBuffers)), "")
		add("lane stack", m.Grads-m.Grads/int64(max(1, p.GradBuffers)), fmt.Sprintf("%d more gradient buffers, to add lanes in tree order", p.GradBuffers-1))
	}
	peak := ""
	if sum.PeakAt != "" {
		peak = "at their most in " + sum.PeakAt
	}
	add("activations", m.Work-sum.GatheredBytes, peak)
	add("gathered parameters", sum.GatheredBytes, "of blocks in use")
	add("inputs and outputs", m.IO, "")
	add("communication", m.Communication, "")
	add("loader", m.Loader, "")
	add("corpus", m.Corpus, "")
	add("checkpoint copy", m.Snapshot, "")
	add("scratch", m.Scratch, "")
	add("on disk", m.OnDisk, "optimizer state, and parameters where they are sharded; not counted")
	return out
}

// waysToFit tries changes to the recipe, those first that cost the least time, and returns up to three that fit.
func (s *Spec) waysToFit(p *plan.Plan, scratch int64) []string {
	world := p.Settings.World
	type way struct {
		text   string
		change func(*Spec)
	}
	var all []way
	again := func(t *Spec) { t.Mesh.Recompute = plan.Recompute{All: true} }
	if world > 1 {
		for z := s.Mesh.Zero + 1; z <= 3; z++ {
			all = append(all, way{fmt.Sprintf("parallel.mesh(zero = %d)", z), func(t *Spec) { t.Mesh.Zero = z }})
		}
	}
	all = append(all, way{"recompute = recompute.all()", again})
	if s.Mesh.Offload != OffloadDisk {
		all = append(all, way{`parallel.mesh(offload = "disk")`, func(t *Spec) { t.Mesh.Offload = OffloadDisk }})
	}
	for m := s.Data.MicroBatch / 2; m >= 1; m /= 2 {
		if s.Data.GlobalBatch%m == 0 {
			all = append(all, way{fmt.Sprintf("loader(micro_batch = %d)", m), func(t *Spec) { t.Data.MicroBatch = m }})
		}
	}
	if s.Precision == "fp32" {
		all = append(all, way{"precision = precision.bf16()", func(t *Spec) { t.Precision = "bf16" }})
	}
	for n := 2 * world; n <= s.Data.LaneCount(); n *= 2 {
		all = append(all, way{fmt.Sprintf("parallel.mesh(data = %d, zero = 3)", n), func(t *Spec) { t.Mesh.Data, t.Mesh.Zero = n, 3 }})
		all = append(all, way{fmt.Sprintf("parallel.mesh(data = %d, zero = 3) and recompute = recompute.all()", n),
			func(t *Spec) { t.Mesh.Data, t.Mesh.Zero = n, 3; again(t) }})
	}
	if world > 1 {
		all = append(all, way{"parallel.mesh(zero = 3) and recompute = recompute.all()", func(t *Spec) { t.Mesh.Zero = 3; again(t) }})
	}
	var out []string
	for _, w := range all {
		if len(out) == 3 {
			break
		}
		t := *s
		w.change(&t)
		q, err := Plan(&t, t.Mesh.Data, 0)
		if err != nil {
			continue
		}
		if n := PlanMemory(&t, q, scratch).Total(); n <= s.Mesh.MemoryBytes {
			out = append(out, fmt.Sprintf("%s: %s", w.text, mib(n)))
		}
	}
	return out
}

// mib prints a size in MiB, or GiB where it is large.
func mib(n int64) string {
	if n >= 10<<30 {
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	}
	return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
}

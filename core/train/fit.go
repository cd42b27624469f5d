package train

import (
	"fmt"
	"strings"

	"starling/core/plan"
)

// Fits refuses a plan that takes more memory than parallel.mesh(memory = …) allows a rank, or more of the host's than host_memory: with what
// takes it, and with changes to the recipe that would make it fit, each of them tried.
func (s *Spec) Fits(p *plan.Plan, scratch int64) error {
	m := PlanMemory(s, p, scratch)
	if s.holds(m) {
		return nil
	}
	var b strings.Builder
	if limit := s.Mesh.MemoryBytes; limit > 0 && m.Total() > limit {
		fmt.Fprintf(&b, "parallel.mesh(memory = …): rank %d needs %s of memory and has %s:\n", p.Settings.Rank, mib(m.Total()), mib(limit))
	} else {
		fmt.Fprintf(&b, "parallel.mesh(host_memory = …): rank %d needs %s of the host's memory and has %s:\n", p.Settings.Rank, mib(m.Host()), mib(s.Mesh.HostBytes))
	}
	for _, l := range m.Lines(p) {
		fmt.Fprintf(&b, "    %-22s %s\n", l.Name, l.Text)
	}
	ways := s.waysToFit(p, scratch)
	if len(ways) == 0 {
		b.WriteString("no change that was tried makes it fit; make the model smaller, or give each rank more memory")
	} else {
		fmt.Fprintf(&b, "any of these makes it fit; behind each the most that a rank then needs:\n    %s", strings.Join(ways, "\n    "))
	}
	return s.place("mesh", fmt.Errorf("%s", b.String()))
}

// holds reports whether a rank has the memory that it needs.
func (s *Spec) holds(m MemoryPlan) bool { return s.lacks(m) == 0 }

// lacks is how much memory a rank needs above what it has, on the device and of the host.
func (s *Spec) lacks(m MemoryPlan) (n int64) {
	if limit := s.Mesh.MemoryBytes; limit > 0 {
		n += max(0, m.Total()-limit)
	}
	if limit := s.Mesh.HostBytes; limit > 0 {
		n += max(0, m.Host()-limit)
	}
	return n
}

// Text is the memory that a rank needs, the host's apart where it is counted so.
func (m MemoryPlan) Text() string {
	if host := m.Host(); host > 0 {
		return mib(m.Total()) + ", and " + mib(host) + " of the host's"
	}
	return mib(m.Total())
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
	add("compression", m.Compression, "gradients that are not sent yet, and buffers")
	add("optimizer plugins", m.Plugins, "results on their way; of whole tensors, one tensor with its state")
	add("scratch", m.Scratch, "")
	apart := ""
	if m.Where == OffloadHost {
		apart = "host: "
	}
	add(apart+"loader", m.Loader, "")
	add(apart+"corpus", m.Corpus, "")
	add(apart+"checkpoint copy", m.Snapshot, "")
	note := ""
	if m.Where == OffloadDisk {
		apart, note = "disk: ", "not counted"
	}
	add(apart+"parameters", m.Off.Params, note)
	add(apart+"optimizer state", m.Off.State, note)
	add(apart+"activations", m.Off.Work, strings.TrimSpace("between the passes  "+note))
	return out
}

// mib prints a size in MiB, or GiB where it is large and KiB where it is small.
func mib(n int64) string {
	if n >= 10<<30 {
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	}
	if n < 1<<20/10 {
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
}

package train

import (
	"fmt"
	"slices"
	"strings"

	"starling/core/optim"
	"starling/core/plan"
)

// mostPlans bounds how many changes are planned before a run is refused: planning a large model takes a second.
const mostPlans = 40

// change is a change to a recipe that saves memory.
type change struct {
	text   string
	family string // changes of one family exclude each other
	bits   bool   // it changes the trained weights
	make   func(*Spec)
}

// waysToFit tries changes to the recipe, those first that cost the least time and change no weights, and returns up to three that fit, with
// what the rank that needs most then takes. Where single changes do not do, it tries two and three together.
func (s *Spec) waysToFit(p *plan.Plan, scratch int64) []string {
	var out []string
	plans := 0
	// try reports what a rank lacks with some changes, 0 where they fit; below 0 they cannot be made.
	try := func(together ...change) int64 {
		if plans == mostPlans {
			return -1
		}
		plans++
		t := *s
		var texts []string
		for _, c := range together {
			c.make(&t)
			texts = append(texts, c.text)
		}
		m, err := t.mostMemory(scratch)
		if err != nil {
			return -1
		}
		if lack := t.lacks(m); lack > 0 {
			return lack
		}
		text := strings.Join(texts, " and ") + ": " + m.Text()
		if slices.ContainsFunc(together, func(c change) bool { return c.bits }) {
			text += " (gives other weights)"
		}
		out = append(out, text)
		return 0
	}
	var strongest []change // of each family the one that comes nearest, where none fits alone
	nearest := map[string]int64{}
	for _, c := range s.changes(p) {
		if len(out) == 3 {
			return out
		}
		lack := try(c)
		if lack <= 0 {
			continue
		}
		i := slices.IndexFunc(strongest, func(other change) bool { return other.family == c.family })
		switch {
		case i < 0:
			strongest = append(strongest, c)
		case lack > nearest[c.family]:
			continue
		default:
			strongest[i] = c
		}
		nearest[c.family] = lack
	}
	for size := 2; size <= 3; size++ {
		subsets(strongest, size, func(together []change) bool {
			if !exclusive(together) {
				try(together...)
			}
			return len(out) < 3
		})
		if len(out) > 0 {
			break // more at once would be more than it takes
		}
	}
	return out
}

// exclusive reports whether changes set one thing: more ranks come with zero = 3.
func exclusive(together []change) bool {
	has := func(family string) bool {
		return slices.ContainsFunc(together, func(c change) bool { return c.family == family })
	}
	return has("zero") && has("data")
}

// subsets calls f on every choice of n of list, in order, until f returns false.
func subsets(list []change, n int, f func([]change) bool) {
	var choose func(from int, chosen []change) bool
	choose = func(from int, chosen []change) bool {
		if len(chosen) == n {
			return f(chosen)
		}
		for i := from; i < len(list); i++ {
			if !choose(i+1, append(slices.Clone(chosen), list[i])) {
				return false
			}
		}
		return true
	}
	choose(0, nil)
}

// mostMemory plans a changed spec and returns the memory of the rank that needs most: the first, which reads and writes for others, or
// the last, whose share of uneven parts is largest.
func (s *Spec) mostMemory(scratch int64) (MemoryPlan, error) {
	if err := s.Validate(); err != nil {
		return MemoryPlan{}, err
	}
	var most MemoryPlan
	for _, rank := range slices.Compact([]int{0, s.Mesh.Data - 1}) {
		p, err := Plan(s, s.Mesh.Data, rank)
		if err != nil {
			return MemoryPlan{}, err
		}
		if m := PlanMemory(s, p, scratch); rank == 0 || m.Total() > most.Total() {
			most = m
		}
	}
	return most, nil
}

// changes lists what could be changed, by what it costs.
func (s *Spec) changes(p *plan.Plan) []change {
	world, mesh := p.Settings.World, s.Mesh
	var out []change
	add := func(family string, bits bool, text string, make func(*Spec)) {
		out = append(out, change{text, family, bits, make})
	}
	if world > 1 {
		for z := mesh.Zero + 1; z <= 3; z++ {
			add("zero", false, fmt.Sprintf("parallel.mesh(zero = %d)", z), func(t *Spec) { t.Mesh.Zero = z })
		}
	}
	if p.Settings.Hybrid() {
		for n := mesh.Shard + 1; n < world; n++ {
			if world%n == 0 {
				add("shard", false, fmt.Sprintf("parallel.mesh(shard = %d)", n), func(t *Spec) { t.Mesh.Shard = n })
			}
		}
		add("shard", false, "parallel.mesh(shard = 0)", func(t *Spec) { t.Mesh.Shard = 0 })
	}
	if mesh.KeepGathered && world > 1 {
		add("gathered", false, "parallel.mesh(keep_gathered = False)", func(t *Spec) { t.Mesh.KeepGathered = false })
	}
	if r := mesh.Recompute; !r.All {
		add("recompute", false, "recompute = recompute.all()", func(t *Spec) { t.Mesh.Recompute = plan.Recompute{All: true} })
	}
	if mesh.Offload != OffloadDisk {
		add("offload", false, `parallel.mesh(offload = "disk")`, func(t *Spec) { t.Mesh.Offload, t.Mesh.HostBytes = OffloadDisk, 0 })
	}
	if !mesh.OffloadWork {
		where := mesh.Offload
		if where == "" {
			where = OffloadDisk
		}
		add("offload", false, fmt.Sprintf("parallel.mesh(offload = %q, offload_activations = True)", where), func(t *Spec) { t.Mesh.Offload, t.Mesh.OffloadWork = where, true })
	}
	if mesh.Offload == OffloadHost && !mesh.OffloadWork { // where the host has too little
		add("offload", false, `parallel.mesh(offload = "disk", offload_activations = True)`, func(t *Spec) { t.Mesh.Offload, t.Mesh.HostBytes, t.Mesh.OffloadWork = OffloadDisk, 0, true })
	}
	if o, ok := s.Optimizer.(optim.AdamW); ok && o.State != optim.StateInt8 {
		for _, state := range []string{optim.StateBF16, optim.StateInt8} {
			if o.State == "" || state == optim.StateInt8 {
				add("state", true, fmt.Sprintf("optim.adamw(state = %q)", state), func(t *Spec) {
					small := o
					small.State = state
					t.Optimizer = small
				})
			}
		}
	}
	for m := s.Data.MicroBatch / 2; m >= 1; m /= 2 {
		if s.Data.GlobalBatch%m == 0 {
			add("micro", true, fmt.Sprintf("loader(micro_batch = %d)", m), func(t *Spec) { t.Data.MicroBatch = m })
		}
	}
	if s.Precision == "fp32" {
		add("precision", true, "precision = precision.bf16()", func(t *Spec) { t.Precision = "bf16" })
	}
	for n := 2 * world; n <= s.Data.LaneCount(); n *= 2 {
		add("data", false, fmt.Sprintf("parallel.mesh(data = %d, zero = 3)", n), func(t *Spec) { t.Mesh.Data, t.Mesh.Zero = n, 3 })
	}
	return out
}

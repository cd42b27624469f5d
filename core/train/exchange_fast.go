package train

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"starling/core/comm"
	"starling/core/plan"
	"starling/sdk/vec"
)

// Values of Mesh.Reduction beside comm's names of algorithms.
const (
	ReductionCanonical = "canonical"
	ReductionFast      = "fast"
)

// fastAlgorithm returns how gradients are summed outside the canonical order; ok is false where they are summed in it.
func (m Mesh) fastAlgorithm() (a comm.Algorithm, ok bool, err error) {
	switch m.Reduction {
	case "", ReductionCanonical:
		return comm.Auto, false, nil
	case ReductionFast:
		return comm.Auto, true, nil
	case comm.Ring.String(), comm.Doubling.String():
		a, err = comm.ParseAlgorithm(m.Reduction)
		return a, true, err
	}
	return 0, false, fmt.Errorf("parallel.mesh(reduction = %q): must be %q, %q, or an algorithm to force: %q or %q", m.Reduction, ReductionCanonical, ReductionFast, comm.Ring, comm.Doubling)
}

// checkReduction reports a reduction that does not exist, or that cannot work.
func (m Mesh) checkReduction() error {
	_, fast, err := m.fastAlgorithm()
	if err == nil && fast && m.Zero >= 2 {
		err = fmt.Errorf("parallel.mesh(reduction = %q, zero = %d): under zero 2 and 3 ranks add lane by lane in the order of the tree; use zero = 0 or 1, or reduction = %q", m.Reduction, m.Zero, ReductionCanonical)
	}
	return err
}

// fastSums adds this rank's subtrees to one vector, and sums those over the ranks outside the canonical order.
type fastSums struct {
	own        [][]float32
	collective *comm.Collective
	handle     *comm.Handle
}

func newFastSums(g *comm.Group, a comm.Algorithm, k bucketParts) (exchange, error) {
	f := &fastSums{own: k.own}
	var err error
	if k.chunks == nil {
		f.collective, err = g.PrepareAllReduceFast(k.label, a, k.own[0])
	} else {
		f.collective, err = g.PrepareReduceScatterFast(k.label, a, k.chunks, k.own[0])
	}
	return f, err
}

func (f *fastSums) start(int) {
	for _, o := range f.own[1:] {
		vec.Add(f.own[0], f.own[0], o)
	}
	f.handle = f.collective.Start()
}

func (f *fastSums) wait(ctx context.Context, trace *StepTrace) error {
	h := f.handle
	if h == nil {
		return nil
	}
	f.handle = nil
	return trace.await(ctx, h)
}

func (f *fastSums) forget() { f.handle = nil }

// reductionNote says how the buckets are summed, "" where that is in the canonical order.
func reductionNote(m Mesh, p *plan.Plan, g *comm.Group) string {
	a, fast, err := m.fastAlgorithm()
	if err != nil || !fast || g == nil {
		return ""
	}
	count := map[string]int{}
	for _, b := range p.Buckets {
		count[g.Choose(a, int(b.Place.Bytes())).String()]++
	}
	var parts []string
	for name, n := range count {
		parts = append(parts, fmt.Sprintf("%s for %d of %d gradient buckets", name, n, len(p.Buckets)))
	}
	slices.Sort(parts)
	return fmt.Sprintf("reduction = %q: %s; the weights depend on the number of ranks and on how they are connected", m.Reduction, strings.Join(parts, ", "))
}

package train

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"starling/core/comm"
	"starling/sdk/vec"
)

// Values of Mesh.Reduction beside comm's names of algorithms.
const (
	ReductionCanonical = "canonical"
	ReductionFast      = "fast"
)

// algorithm returns how gradients are summed: fast says outside the canonical order.
func (m Mesh) algorithm() (a comm.Algorithm, fast bool, err error) {
	switch m.Reduction {
	case "", ReductionCanonical:
		return comm.Auto, false, nil
	case ReductionFast:
		return comm.Auto, true, nil
	case comm.Direct.String(), comm.Hierarchical.String(), comm.Ring.String(), comm.Doubling.String():
		a, err = comm.ParseAlgorithm(m.Reduction)
		return a, a == comm.Ring || a == comm.Doubling, err
	}
	return 0, false, fmt.Errorf("parallel.mesh(reduction = %q): must be %q, or to force one of its algorithms %q or %q; outside the canonical order %q, %q or %q",
		m.Reduction, ReductionCanonical, comm.Direct, comm.Hierarchical, ReductionFast, comm.Ring, comm.Doubling)
}

// Canonical reports whether gradients are summed in the canonical order, by whatever algorithm.
func (m Mesh) Canonical() bool {
	_, fast, err := m.algorithm()
	return !fast && err == nil
}

// ReductionCounts reports whether how gradients are summed changes bits: outside the canonical order, and where what crosses between
// hosts is compressed, which a direct sum has nothing of.
func (m Mesh) ReductionCounts() bool { return !m.Canonical() || m.Compress.Active() && m.Flat() }

// perHost is how many ranks each of the declared hosts has where sums go host by host, else 1.
func (m Mesh) perHost(world int) int {
	if _, each, why := m.hostShape(); len(m.Hosts) == world && why == "" && !m.Flat() {
		return each
	}
	return 1
}

// hostShape is that of the declared hosts, whose processes are given ranks by host.
func (m Mesh) hostShape() (hosts, each int, why string) {
	var names []string
	if len(m.Hosts) == m.Data {
		for _, p := range m.Axes().OrderRanks(m.Hosts, false) {
			names = append(names, m.Hosts[p])
		}
	}
	return comm.HostShape(names)
}

// CheckHosts reports a sum host by host that the declared hosts do not allow. A run may be given others.
func (m Mesh) CheckHosts() error {
	if _, _, why := m.hostShape(); len(m.Hosts) > 0 && m.Reduction == comm.Hierarchical.String() && why != "" {
		return fmt.Errorf("parallel.mesh(reduction = %q, hosts = [%s]): %s; leave the choice to the run, or declare hosts that can be summed one by one", m.Reduction, strings.Join(m.Hosts, ", "), why)
	}
	return nil
}

// Flat reports whether sums over several hosts are to be made at once (comm.Options.Flat).
func (m Mesh) Flat() bool { return m.Reduction == comm.Direct.String() }

// checkReduction reports a reduction that does not exist, or that cannot work.
func (m Mesh) checkReduction() error {
	_, fast, err := m.algorithm()
	if err == nil && fast && m.Zero >= 2 {
		err = fmt.Errorf("parallel.mesh(reduction = %q, zero = %d): under zero 2 and 3 ranks add lane by lane in the order of the tree; use zero = 0 or 1, or reduction = %q", m.Reduction, m.Zero, ReductionCanonical)
	}
	return err
}

// reachable reports an algorithm that is asked for and that the ranks of g, as they are connected, cannot carry out.
func (m Mesh) reachable(g *comm.Group) error {
	a, _, err := m.algorithm()
	if err == nil && a != comm.Auto {
		err = g.Allows(a)
	}
	if err != nil {
		return fmt.Errorf("parallel.mesh(reduction = %q): %w", m.Reduction, err)
	}
	return nil
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

func (f *fastSums) arrived() bool { return f.handle == nil || f.handle.Over() }

func (f *fastSums) forget() { f.handle = nil }

func (f *fastSums) way() string { return f.collective.Way() }

// reductionNote says how the buckets are summed.
func reductionNote(m Mesh, buckets []exchange, lossy *compression) string {
	count := map[string]int{}
	for i, b := range buckets {
		way := b.way()
		if lossy.takes(i) {
			way = m.Compress.String()
			if lossy.hosted() {
				way = "between hosts " + way
			}
		}
		count[way]++
	}
	var parts []string
	for name, n := range count {
		parts = append(parts, fmt.Sprintf("%s for %d of %d gradient buckets", name, n, len(buckets)))
	}
	slices.Sort(parts)
	text := fmt.Sprintf("reduction = %q: %s", cmp.Or(m.Reduction, ReductionCanonical), strings.Join(parts, ", "))
	if !m.Canonical() {
		text += "; the weights depend on the number of ranks and on how they are connected"
	}
	return text
}

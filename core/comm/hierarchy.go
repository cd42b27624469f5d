package comm

import (
	"context"
	"fmt"
	"slices"
)

// Sums over several hosts. Between hosts a link is slow and shared by all their ranks, so as little as possible should
// cross it: first the ranks of a host add what they have, each a part of the vector; then ranks of one place in their
// hosts (a rail) complete the tree for that part, all rails in parallel; then each host's ranks give each other their
// parts. What crosses is one partial sum for each maximal subtree of a host's lanes instead of one for each rank's, and
// because those are nodes of the same tree, the bits are those of the flat sum.

// hierarchy is a group's view of its hosts.
type hierarchy struct {
	host  *Group // this rank's host
	rail  *Group // the ranks of this rank's place in every host
	each  int    // ranks on a host
	hosts int
	// memory holds the sums of a host's subtrees, for each segment that is under way.
	memory [hierarchySegments][][]float32
}

// located is a transport that knows where its ranks run.
type located interface {
	// hostOf names a rank's host.
	hostOf(rank int) string
}

// HostOf returns the identity of a rank's host, "" where t does not know it.
func HostOf(t Transport, rank int) string {
	if l, ok := t.(located); ok {
		return l.hostOf(rank)
	}
	return ""
}

// Neighbours returns how many ranks of t run on its own host, itself included; all of them where it does not know.
func Neighbours(t Transport) int {
	l, ok := t.(located)
	if !ok || l.hostOf(t.Rank()) == "" {
		return t.World()
	}
	n := 0
	for r := range t.World() {
		if l.hostOf(r) == l.hostOf(t.Rank()) {
			n++
		}
	}
	return n
}

// hostsOf is HostShape of the hosts of a group's ranks.
func hostsOf(t Transport, ranks []int) (hosts, each int, why string) {
	names := make([]string, len(ranks))
	if l, ok := t.(located); ok {
		for i, r := range ranks {
			names[i] = l.hostOf(r)
		}
	}
	return HostShape(names)
}

// HostShape returns on how many hosts ranks run and how many each of those has, or why they cannot be summed host by host: one
// host, hosts of one rank, or hosts whose ranks are not equally many neighbours. hosts names each rank's.
func HostShape(hosts []string) (count, each int, why string) {
	if len(hosts) == 0 || hosts[0] == "" {
		return 0, 0, "all ranks are on one host"
	}
	var names []string
	var counts []int
	for _, h := range hosts {
		if len(names) == 0 || names[len(names)-1] != h {
			if slices.Contains(names, h) {
				return 0, 0, "the ranks of a host are not neighbours"
			}
			names, counts = append(names, h), append(counts, 0)
		}
		counts[len(counts)-1]++
	}
	switch {
	case len(names) == 1:
		return 0, 0, "all ranks are on one host"
	case slices.Min(counts) != slices.Max(counts):
		return 0, 0, fmt.Sprintf("some hosts have more of the ranks than others (%d and %d)", slices.Min(counts), slices.Max(counts))
	case counts[0] == 1:
		return 0, 0, "each host has one rank, and nothing to add first"
	}
	return len(names), counts[0], ""
}

// hierarchyOf returns the group's hierarchy, or nil and why it has none.
func hierarchyOf(t Transport, g *Group, opt Options) (*hierarchy, string, error) {
	name, ranks, self := g.name, g.ranks, g.self
	if opt.Flat {
		return nil, "all ranks are summed at once", nil
	}
	hosts, each, why := hostsOf(t, ranks)
	if why != "" {
		return nil, why, nil
	}
	opt.Flat, opt.OnStall, opt.Recorder = true, nil, nil // what is recorded is the whole group's
	y := &hierarchy{each: each, hosts: hosts}
	at := self / each
	var rail []int
	for h := range hosts {
		rail = append(rail, ranks[h*each+self%each])
	}
	var err error
	if y.host, err = newGroup(t, name+", ranks of one host", ranks[at*each:(at+1)*each], opt, g); err != nil {
		return nil, "", err
	}
	if y.rail, err = newGroup(t, name+", between hosts", rail, opt, g); err != nil {
		_ = y.host.Close()
		return nil, "", err
	}
	return y, "", nil
}

// fail ends what the group's hosts are doing for it.
func (y *hierarchy) fail(err error) {
	if y != nil {
		y.host.fail(err, false)
		y.rail.fail(err, false)
	}
}

func (y *hierarchy) close() error {
	if y == nil {
		return nil
	}
	err := y.host.Close()
	if e := y.rail.Close(); err == nil {
		err = e
	}
	return err
}

// hierarchySegments is how many segments of a vector are under way at once: one between the ranks of a host, two between
// hosts, of which the second begins as soon as the first is through.
const hierarchySegments = 3

// hierarchySegment is the length of a segment in pieces: long enough that what begins and ends a collective is little.
const hierarchySegment = 4

// prepareTree prepares the sum of own over all members into dst, on every member. The vector is cut into segments, which
// follow each other through the three phases: while one crosses between hosts, the next is added and the last is gathered.
func (y *hierarchy) prepareTree(g *Group, call Call, red *Reduction, own [][]float32, dst []float32) (*Collective, error) {
	length := max(pieceFloats(g.opt.PieceBytes)*hierarchySegment, ChunkAlign*y.each)
	between, inside, err := y.split(g, red)
	if err != nil {
		return nil, err
	}
	p := &hierarchyPlan{}
	for lo := 0; lo < len(dst) || lo == 0; lo += length {
		part := Range{lo, min(lo+length, len(dst))}
		s, err := y.prepareSegment(len(p.segments)%hierarchySegments, call.Label, inside, between, own, dst, part)
		if err != nil {
			return nil, err
		}
		p.segments = append(p.segments, s)
	}
	return g.prepare(call, p.run).by(Hierarchical.String()), nil
}

// split parts a sum into that between hosts and those inside this one, one for each maximal subtree of its lanes.
func (y *hierarchy) split(g *Group, red *Reduction) (between *Reduction, inside []*Reduction, err error) {
	var lanes []Range // of each host
	for h := range y.hosts {
		lanes = append(lanes, Range{red.assign[h*y.each].Lo, red.assign[(h+1)*y.each-1].Hi})
	}
	if between, err = NewReduction(red.lanes, lanes); err != nil {
		return nil, nil, err
	}
	first := g.self / y.each * y.each
	for _, root := range MaximalSubtrees(red.lanes, lanes[g.self/y.each].Lo, lanes[g.self/y.each].Hi) {
		var assign []Range
		for _, a := range red.assign[first : first+y.each] {
			a.Lo, a.Hi = max(a.Lo, root.Lo), min(a.Hi, root.Hi)
			if a.Hi < a.Lo {
				a.Lo, a.Hi = root.Lo, root.Lo
			}
			assign = append(assign, a)
		}
		inside = append(inside, newReduction(red.lanes, root, assign).roundedAs(red))
	}
	return between.roundedAs(red), inside, nil
}

// prepareSegment prepares the sum of a part of the vector.
func (y *hierarchy) prepareSegment(slot int, label string, inside []*Reduction, between *Reduction, own [][]float32, dst []float32, part Range) (s hierarchyStep, err error) {
	dst = dst[part.Lo:part.Hi]
	chunks := Chunks(len(dst), y.each, ChunkAlign)
	mine := dst[chunks[y.host.self].Lo:chunks[y.host.self].Hi]
	sums := y.sums(slot, len(inside), len(mine))
	k := 0 // of own
	for i, red := range inside {
		var parts [][]float32
		for range red.Nodes(y.host.self) {
			parts = append(parts, own[k][part.Lo:part.Hi])
			k++
		}
		c, err := y.host.PrepareReduceScatterTree(label, red, chunks, parts, sums[i])
		if err != nil {
			return s, fmt.Errorf("subtree %d of this host: %w", i, err)
		}
		s.add = append(s.add, c)
	}
	if s.cross, err = y.rail.PrepareAllReduceTree(label, between, sums, mine); err != nil {
		return s, err
	}
	s.gather = []*Collective{y.host.prepareGatherOf(Call{Element: Float32, Label: label}, inBytes(chunks, 4), bytesOf(dst))}
	return s, nil
}

// sums returns memory for the sums of a host's subtrees in a segment, which all collectives of the group share: they run one
// after another.
func (y *hierarchy) sums(slot, count, n int) [][]float32 {
	out := make([][]float32, count)
	for i := range out {
		out[i] = y.sum(slot, i, n)
	}
	return out
}

// sum returns that of subtree i.
func (y *hierarchy) sum(slot, i, n int) []float32 {
	for len(y.memory[slot]) <= i {
		y.memory[slot] = append(y.memory[slot], nil)
	}
	if len(y.memory[slot][i]) < n {
		y.memory[slot][i] = make([]float32, n)
	}
	return y.memory[slot][i][:n]
}

// hierarchyPlan is one prepared sum.
type hierarchyPlan struct{ segments []hierarchyStep }

// hierarchyStep is what is done with a segment.
type hierarchyStep struct {
	add    []*Collective // inside the host, a sum for each of its subtrees
	cross  *Collective   // between hosts
	gather []*Collective // inside the host again
}

// run carries the sum out. The members of a host start its collectives in one order, whatever the time: that of this loop.
func (p *hierarchyPlan) run(r *run) error {
	r.flush() // the waiting is done in other groups
	last := len(p.segments) - 1
	begin := func(k int) {
		for _, c := range p.segments[k].add {
			c.Start()
		}
	}
	begin(0)
	for k := 0; k <= last+1; k++ {
		if k < last {
			begin(k + 1)
		}
		if k <= last {
			for _, c := range p.segments[k].add {
				if err := c.over(); err != nil {
					return err
				}
			}
			p.segments[k].cross.Start()
		}
		if k > 0 {
			if err := p.segments[k-1].cross.over(); err != nil {
				return err
			}
			for _, c := range p.segments[k-1].gather {
				c.Start()
			}
		}
	}
	for _, s := range p.segments {
		for _, c := range s.gather {
			if err := c.over(); err != nil {
				return err
			}
		}
	}
	return nil
}

// over waits for a collective that was started; the group's failure ends it, and its deadline.
func (c *Collective) over() error { return c.h.Wait(context.Background()) }

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
}

// located is a transport that knows where its ranks run.
type located interface {
	// hostOf names a rank's host.
	hostOf(rank int) string
}

// hierarchyOf returns the group's hierarchy, or nil where it has none: one host, hosts of one rank, or hosts whose ranks
// are not equally many neighbours in the group.
func hierarchyOf(t Transport, name string, ranks []int, self int, opt Options) (*hierarchy, error) {
	l, ok := t.(located)
	if !ok || opt.Flat {
		return nil, nil
	}
	var names []string
	each := 0
	for m, r := range ranks {
		h := l.hostOf(r)
		if h == "" {
			return nil, nil
		}
		if len(names) == 0 || names[len(names)-1] != h {
			if slices.Contains(names, h) || len(names) > 0 && m != each*len(names) {
				return nil, nil
			}
			names = append(names, h)
		}
		if len(names) == 1 {
			each++
		}
	}
	if len(names) < 2 || each < 2 || each*len(names) != len(ranks) {
		return nil, nil
	}
	opt.Flat, opt.OnStall = true, nil
	y := &hierarchy{each: each, hosts: len(names)}
	at := self / each
	var rail []int
	for h := range names {
		rail = append(rail, ranks[h*each+self%each])
	}
	var err error
	if y.host, err = NewGroup(t, name+", ranks of one host", ranks[at*each:(at+1)*each], opt); err != nil {
		return nil, err
	}
	if y.rail, err = NewGroup(t, name+", between hosts", rail, opt); err != nil {
		_ = y.host.Close()
		return nil, err
	}
	return y, nil
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

// prepareTree prepares the sum of own over all members into dst, on every member.
func (y *hierarchy) prepareTree(g *Group, call Call, red *Reduction, own [][]float32, dst []float32) (*Collective, error) {
	var lanes []Range // of each host
	for h := range y.hosts {
		lanes = append(lanes, Range{red.assign[h*y.each].Lo, red.assign[(h+1)*y.each-1].Hi})
	}
	parts := Chunks(len(dst), y.each, ChunkAlign)
	mine := dst[parts[y.host.self].Lo:parts[y.host.self].Hi]
	first := g.self / y.each * y.each
	var steps []*Collective
	var sums [][]float32
	k := 0 // of own
	for i, root := range MaximalSubtrees(red.lanes, lanes[g.self/y.each].Lo, lanes[g.self/y.each].Hi) {
		var assign []Range
		for _, a := range red.assign[first : first+y.each] {
			a.Lo, a.Hi = max(a.Lo, root.Lo), min(a.Hi, root.Hi)
			if a.Hi < a.Lo {
				a.Lo, a.Hi = root.Lo, root.Lo
			}
			assign = append(assign, a)
		}
		part := newReduction(red.lanes, root, assign)
		nodes := len(part.Nodes(y.host.self))
		sum := make([]float32, len(mine))
		c, err := y.host.PrepareReduceScatterTree(fmt.Sprintf("%s, lanes %v", call.Label, root), part, parts, own[k:k+nodes], sum)
		if err != nil {
			return nil, fmt.Errorf("subtree %d of this host: %w", i, err)
		}
		k += nodes
		steps, sums = append(steps, c), append(sums, sum)
	}
	between, err := NewReduction(red.lanes, lanes)
	if err != nil {
		return nil, err
	}
	c, err := y.rail.PrepareAllReduceTree(call.Label, between, sums, mine)
	if err != nil {
		return nil, err
	}
	steps = append(steps, c)
	if c, err = y.host.PrepareAllGather(call.Label, parts, dst); err != nil {
		return nil, err
	}
	steps = append(steps, c)
	return g.prepare(call, func(*run) error {
		for _, c := range steps {
			if err := c.Run(context.Background()); err != nil { // the group's failure ends it, and its deadline
				return err
			}
		}
		return nil
	}), nil
}

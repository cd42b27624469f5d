package comm

import "fmt"

// Subgroup makes this rank's end of a group of some of g's members, given by their positions, with g's transport and options. All of
// them call it with the same name, which must be unique among the groups of the transport. It is closed on its own, before g.
func (g *Group) Subgroup(name string, members []int) (*Group, error) {
	ranks := make([]int, len(members))
	for i, m := range members {
		if m < 0 || m >= len(g.ranks) {
			return nil, fmt.Errorf("comm: group %s: group %s has no member %d", name, g.name, m)
		}
		ranks[i] = g.ranks[m]
	}
	return newGroup(g.t, g.name+", "+name, ranks, g.opt, g)
}

package mesh

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// Hosts take ranks so that as many blocks of the inner axes as can be lie on one host.
func TestOrderHosts(t *testing.T) {
	data := func(n int) Axes { return Axes{{"data", n}} }
	for _, c := range []struct {
		mesh  Axes
		room  []int
		first bool
		want  []int
	}{
		{data(8), []int{4, 4}, false, []int{0, 1}},
		{data(8), []int{3, 4, 1}, false, []int{0, 1, 2}}, // nothing but neighbours matters
		{Axes{{"replica", 2}, {"shard", 4}}, []int{3, 4, 1}, false, []int{1, 0, 2}},
		{Axes{{"replica", 2}, {"shard", 4}}, []int{3, 4, 1}, true, []int{0, 2, 1}},
		{Axes{{"replica", 4}, {"shard", 2}}, []int{3, 5}, false, []int{0, 1}}, // one has to be split
		{Axes{{"replica", 4}, {"shard", 2}}, []int{1, 2, 2, 1, 2}, false, []int{1, 2, 4, 0, 3}},
		{Axes{{"data", 2}, {"pipeline", 2}, {"tensor", 2}}, []int{2, 4, 2}, false, []int{1, 0, 2}},
		{Axes{{"data", 2}, {"pipeline", 2}, {"tensor", 3}}, []int{3, 6, 3}, false, []int{1, 0, 2}},
		{data(1), []int{1}, true, []int{0}},
		{data(1), nil, true, nil},
	} {
		if got := c.mesh.OrderHosts(c.room, c.first); !slices.Equal(got, c.want) {
			t.Errorf("%v on hosts of %v ranks, the first stays: %v: order %v, want %v", c.mesh, c.room, c.first, got, c.want)
		}
	}
}

func TestOrderRanks(t *testing.T) {
	for _, c := range []struct {
		mesh        Axes
		hosts, want string // a letter for each process's host, and for each rank's
		split       int
	}{
		{Axes{{"data", 4}}, "aabb", "aabb", 1},
		{Axes{{"data", 4}}, "abab", "aabb", 1},
		{Axes{{"data", 4}}, "aaaa", "aaaa", 0},
		{Axes{{"replica", 2}, {"shard", 2}}, "abba", "aabb", 0},
		{Axes{{"replica", 3}, {"shard", 2}}, "abbcca", "aabbcc", 0},
		{Axes{{"replica", 3}, {"shard", 2}}, "abbbcb", "bbbbac", 1},
	} {
		hosts := strings.Split(c.hosts, "")
		order := c.mesh.OrderRanks(hosts, false)
		got := make([]string, len(order))
		last := map[string]int{}
		for r, p := range order {
			got[r] = hosts[p]
			if before, ok := last[hosts[p]]; ok && p < before {
				t.Errorf("%s: the processes of host %s are out of order: %v", c.hosts, hosts[p], order)
			}
			last[hosts[p]] = p
		}
		if strings.Join(got, "") != c.want {
			t.Errorf("%v, processes on %s: ranks on %v, want %s", c.mesh, c.hosts, got, c.want)
		}
		if n, split := c.mesh.Split(got); split != c.split || n*c.mesh[len(c.mesh)-1].Size != len(hosts) {
			t.Errorf("%v on %v: %d of %d blocks are split, want %d", c.mesh, got, split, n, c.split)
		}
	}
	for seed := range 50 { // whatever the hosts, every process gets a rank, and the first one rank 0 where it must
		var hosts []string
		for i := range 12 {
			hosts = append(hosts, fmt.Sprint((i*(seed+3)+i*i)%(1+seed%5)))
		}
		order := Axes{{"replica", 4}, {"shard", 3}}.OrderRanks(hosts, true)
		sorted := slices.Sorted(slices.Values(order))
		for i, p := range sorted {
			if p != i || len(sorted) != 12 || order[0] != 0 {
				t.Fatalf("hosts %v: processes %v", hosts, order)
			}
		}
	}
}

package mesh

// Where the ranks of a mesh go. The last axis of a mesh talks most and the first least, so the blocks of ranks that share a
// place on the outer axes are kept on one host, the larger blocks before the smaller ones where both cannot be.

// blocks returns the ranks of the mesh's blocks, from all of them down to those of the last axis.
func (a Axes) blocks() []int {
	out := make([]int, len(a))
	n := 1
	for i := len(a) - 1; i >= 0; i-- {
		n *= a[i].Size
		out[i] = n
	}
	return out
}

// OrderHosts returns the order in which hosts with room for so many ranks each take the ranks of the mesh, first the lowest. The
// next is always the host that ends with the largest block, the earlier of equal ones. With first, host 0 stays first.
func (a Axes) OrderHosts(room []int, first bool) []int {
	blocks := a.blocks()
	ends := func(rank int) int {
		for i, b := range blocks {
			if rank%b == 0 {
				return i
			}
		}
		return len(blocks)
	}
	taken := make([]bool, len(room))
	var out []int
	at := 0
	for range room {
		next := -1
		for h, n := range room {
			if !taken[h] && (next < 0 || ends(at+n) < ends(at+room[next])) {
				next = h
			}
			if first && len(out) == 0 {
				break
			}
		}
		taken[next] = true
		at += room[next]
		out = append(out, next)
	}
	return out
}

// OrderRanks returns, for a job whose processes run on the hosts named, which process takes each rank of the mesh: those of a
// host are neighbours, in their order, and hosts follow each other as OrderHosts says.
func (a Axes) OrderRanks(hosts []string, first bool) []int {
	place := map[string]int{}
	var processes [][]int // of each host
	for p, h := range hosts {
		if _, ok := place[h]; !ok {
			place[h] = len(processes)
			processes = append(processes, nil)
		}
		processes[place[h]] = append(processes[place[h]], p)
	}
	room := make([]int, len(processes))
	for h, p := range processes {
		room[h] = len(p)
	}
	var out []int
	for _, h := range a.OrderHosts(room, first) {
		out = append(out, processes[h]...)
	}
	return out
}

// Split counts the blocks of the mesh's last axis, and those of them that lie on several of the hosts on which the ranks run.
func (a Axes) Split(hosts []string) (blocks, split int) {
	if len(a) == 0 {
		return 0, 0
	}
	size := a[len(a)-1].Size
	for at := 0; at+size <= len(hosts); at += size {
		blocks++
		for _, h := range hosts[at : at+size] {
			if h != hosts[at] {
				split++
				break
			}
		}
	}
	return blocks, split
}

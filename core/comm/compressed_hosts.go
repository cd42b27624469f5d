package comm

// Compressed sums over several hosts. Inside a host memory is fast, so its members first add what they have there, exactly, each a
// part of the vector; what a host has of a part is then compressed once, by the member that has it, and crosses to the members of
// equal place in the other hosts. So a host, not a member, is a contributor, and what it could not send is kept where it was added.

// Hosting says where a member is among the hosts whose members add before anything is compressed.
type Hosting struct {
	Rank, Ranks int
	// Each is how many neighbouring members each host has; 1 where every member contributes by itself.
	Each int
}

// Hosting returns this member's.
func (g *Group) Hosting() Hosting {
	h := Hosting{Rank: g.self, Ranks: g.Size(), Each: 1}
	if g.hosts != nil {
		h.Each = g.hosts.each
	}
	return h
}

// Hosts is how many contributors there are, Host which of them is this member's, Place this member's place in it.
func (h Hosting) Hosts() int { return h.Ranks / h.Each }
func (h Hosting) Host() int  { return h.Rank / h.Each }
func (h Hosting) Place() int { return h.Rank % h.Each }

// Compressing says what a member compresses of a vector, as one of several contributors of that.
type Compressing struct {
	// Parts are ranges of the vector, which count one behind the other; the contributors' are the same.
	Parts                     []Range
	Contributor, Contributors int
	// Chunks are those of the contributors in Parts: of the chunk of its own a member gets the sum.
	Chunks []Range
	// Chunk is this member's chunk, as a range of the vector.
	Chunk Range
}

// Len is how many elements are compressed.
func (c Compressing) Len() int { return total(c.Parts) }

// At is where the member's own chunk begins in Parts.
func (c Compressing) At() int { return c.Chunks[c.Contributor].Lo }

func total(ranges []Range) (n int) {
	for _, r := range ranges {
		n += r.Len()
	}
	return n
}

// Sum is what a member compresses in PrepareAllReduceCompressed of n elements.
func (h Hosting) Sum(n int) Compressing {
	return h.of(Chunks(n, h.Each, ChunkAlign)[h.Place()])
}

// Whole is what a member has in PrepareSums of n elements: all that its host has added, as have the host's other members. The chunks are
// the shares of contributors where something is to be shared out among them.
func (h Hosting) Whole(n int) Compressing { return h.of(Range{0, n}) }

func (h Hosting) of(part Range) Compressing {
	c := Compressing{Parts: []Range{part}, Contributor: h.Host(), Contributors: h.Hosts(), Chunks: Chunks(part.Len(), h.Hosts(), ChunkAlign)}
	c.Chunk = Range{part.Lo + c.Chunks[h.Host()].Lo, part.Lo + c.Chunks[h.Host()].Hi}
	return c
}

// Scatter is what a member compresses in PrepareReduceScatterCompressed of a vector cut into chunks: those of the members at its place
// in their hosts.
func (h Hosting) Scatter(chunks []Range) Compressing {
	c := Compressing{Contributor: h.Host(), Contributors: h.Hosts(), Chunk: chunks[h.Rank]}
	if h.Each == 1 {
		c.Parts, c.Chunks = []Range{{0, extent(chunks)}}, chunks
		return c
	}
	at := 0
	for host := range h.Hosts() {
		k := chunks[host*h.Each+h.Place()]
		c.Parts, c.Chunks = append(c.Parts, k), append(c.Chunks, Range{at, at + k.Len()})
		at += k.Len()
	}
	return c
}

// within returns where the sum over one of the host's subtrees goes: for each range, what this member's first partial sum of that
// subtree has there, or memory of the group's where it has none.
func (y *hierarchy) within(subtree int, nodes [][]float32, ranges []Range) [][]float32 {
	var room []float32
	if len(nodes) == 0 {
		room = y.sum(0, subtree, total(ranges))
	}
	out := make([][]float32, len(ranges))
	for i, r := range ranges {
		if len(nodes) > 0 {
			out[i] = nodes[0][r.Lo:r.Hi]
			continue
		}
		out[i], room = room[:r.Len()], room[r.Len():]
	}
	return out
}

// eachSubtree calls f for each subtree of the host's lanes, with what this member has of it.
func (y *hierarchy) eachSubtree(inside []*Reduction, own [][]float32, f func(i int, red *Reduction, nodes [][]float32)) {
	for i, red := range inside {
		n := len(red.Nodes(y.host.self))
		f(i, red, own[:n])
		own = own[n:]
	}
}

// prepareCompressed prepares the compressed sum of own over all members into dst, on every member.
func (y *hierarchy) prepareCompressed(g *Group, call Call, red *Reduction, own [][]float32, dst []float32, z Compressor) (*Collective, error) {
	between, inside, err := y.split(g, red)
	if err != nil {
		return nil, err
	}
	chunks := Chunks(len(dst), y.each, ChunkAlign)
	part := chunks[y.host.self]
	var s hierarchyStep
	var sums [][]float32
	y.eachSubtree(inside, own, func(i int, red *Reduction, nodes [][]float32) {
		sum := y.within(i, nodes, []Range{part})[0]
		s.add = append(s.add, y.host.prepareScatterOf(call.Label, red, chunks, nodes, sum))
		sums = append(sums, sum)
	})
	if s.cross, err = y.rail.PrepareAllReduceCompressed(call.Label, between, sums, dst[part.Lo:part.Hi], z); err != nil {
		return nil, err
	}
	s.gather = []*Collective{y.host.prepareGatherOf(Call{Element: Float32, Label: call.Label}, inBytes(chunks, 4), bytesOf(dst))}
	p := &hierarchyPlan{segments: []hierarchyStep{s}}
	return g.prepare(call, p.run).by(Hierarchical.String()), nil
}

// prepareScatterCompressed prepares the compressed sum of own over all members, of which each gets its chunk in dst. For every host in
// turn, its members' chunks are added inside this one; what this member then has are the chunks of its rail.
func (y *hierarchy) prepareScatterCompressed(g *Group, call Call, red *Reduction, chunks []Range, own [][]float32, dst []float32, z Compressor) (*Collective, error) {
	between, inside, err := y.split(g, red)
	if err != nil {
		return nil, err
	}
	var theirs []Range // of this member's rail
	for h := range y.hosts {
		theirs = append(theirs, chunks[y.at(h, y.host.self)])
	}
	var s hierarchyStep
	parts := make([][][]float32, y.hosts)
	y.eachSubtree(inside, own, func(i int, red *Reduction, nodes [][]float32) {
		for h, sum := range y.within(i, nodes, theirs) {
			s.add = append(s.add, y.host.prepareScatterOf(call.Label, red, chunks[h*y.each:(h+1)*y.each], nodes, sum))
			parts[h] = append(parts[h], sum)
		}
	})
	rail := g.Hosting().Scatter(chunks).Chunks
	cross := Call{Op: OpReduceScatterTree, Element: Float32, Label: call.Label, Bytes: 4 * int64(extent(rail)), Detail: detail(between.digest, rail, "compressed")}
	s.cross = y.rail.prepareCompressed(cross, between, rail, parts, dst, nil, z)
	p := &hierarchyPlan{segments: []hierarchyStep{s}}
	return g.prepare(call, p.run).by(Hierarchical.String()), nil
}

// prepareSums prepares several sums over the hosts, each of whose members has what its host has added.
func (y *hierarchy) prepareSums(g *Group, call Call, red *Reduction, own [][]float32, body func(own [][]float32, sum func([]float32) error) error) (*Collective, error) {
	_, inside, err := y.split(g, red)
	if err != nil {
		return nil, err
	}
	one, err := NewReduction(y.hosts, Assign(y.hosts, y.hosts))
	if err != nil {
		return nil, err
	}
	var add []*Collective
	var added [][]float32
	y.eachSubtree(inside, own, func(i int, red *Reduction, nodes [][]float32) {
		sum := y.within(i, nodes, []Range{{0, len(own[0])}})[0]
		c, e := y.host.PrepareAllReduceTree(call.Label, red, nodes, sum)
		if e != nil {
			err = e
		}
		add, added = append(add, c), append(added, sum)
	})
	if err != nil {
		return nil, err
	}
	s := &hostSums{y: y, label: call.Label, red: one, prepared: map[vectorAt]hierarchyStep{}}
	sum := s.sum
	return g.prepare(call, func(r *run) error {
		r.flush() // the waiting is done in other groups
		for _, c := range add {
			c.Start()
		}
		for _, c := range add {
			if err := c.over(); err != nil {
				return err
			}
		}
		return body(added, sum)
	}).by(Hierarchical.String()), nil
}

// hostSums are the sums over hosts of one prepared collective: each rail adds a part, and a host's members give each other theirs.
type hostSums struct {
	y        *hierarchy
	label    string
	red      *Reduction // a lane for each host
	prepared map[vectorAt]hierarchyStep
}

// vectorAt names a vector by its place in memory.
type vectorAt struct {
	first *float32
	n     int
}

func (s *hostSums) sum(v []float32) error {
	at := vectorAt{n: len(v)}
	if len(v) > 0 {
		at.first = &v[0]
	}
	step, ok := s.prepared[at]
	if !ok {
		chunks := Chunks(len(v), s.y.each, ChunkAlign)
		mine := v[chunks[s.y.host.self].Lo:chunks[s.y.host.self].Hi]
		var err error
		if step.cross, err = s.y.rail.PrepareAllReduceTree(s.label, s.red, [][]float32{mine}, mine); err != nil {
			return err
		}
		step.gather = []*Collective{s.y.host.prepareGatherOf(Call{Element: Float32, Label: s.label}, inBytes(chunks, 4), bytesOf(v))}
		s.prepared[at] = step
	}
	step.cross.Start()
	if err := step.cross.over(); err != nil {
		return err
	}
	step.gather[0].Start()
	return step.gather[0].over()
}

package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"starling/core/comm"
	"starling/core/device"
	"starling/core/graph"
	"starling/core/tensor"
)

// Unit is a group of parameters that is cut over the ranks as one vector: the parameters one behind the other, each at a
// multiple of unitAlign elements. Gradients, state and parameters of a unit have the same layout and the same cut, so that
// the owner of a range has all there is of it.
//
// Cuts lie at boundaries of norm blocks (graph.SumSquaresBlock elements, restarting at each parameter), so that a block's sum
// of squares is one rank's work; what lies between two parameters is never read, stored or counted.
type Unit struct {
	Index int
	// Label names the first and the last parameter, for people.
	Label    string
	Members  []Member
	Elements int // length of the vector
	// Chunks is the range of each rank in the vector, which it updates. A parameter in no bucket (frozen, unreached) belongs wholly to rank 0 unless
	// parameters are sharded.
	Chunks []comm.Range
	// Trained says that the unit changes in a step.
	Trained bool
	// Buffers says that its members are buffers, which are never rounded and never sharded.
	Buffers bool
	// Sharded says that a rank keeps its own chunk alone; the whole exists only while instructions need it.
	Sharded bool
	// Held is the range that this rank keeps where Sharded: its chunk, or under hybrid sharding its replicas' chunks as well.
	Held comm.Range
	// Place is what this rank keeps, in Params: Held where Sharded, else the whole vector.
	Place device.Operand

	order []int // ranks, in the order of their chunks
}

// Member is a parameter's place in the vector of a unit, in elements.
type Member struct {
	Param    string
	At, Size int
}

// unitAlign keeps every parameter of a vector aligned in memory, whether its elements take four bytes or two.
const unitAlign = device.Align / 2

// memberOf finds a parameter in a unit.
func (u *Unit) memberOf(name string) Member {
	for _, m := range u.Members {
		if m.Param == name {
			return m
		}
	}
	panic("plan: broken invariant: unit " + u.Label + " has no parameter " + name)
}

// share is the range of a member's elements that rank owns.
func (u *Unit) share(m Member, rank int) comm.Range {
	return within(u.Chunks[rank], m)
}

// within is the range of a member's elements that lies in a range of the unit's.
func within(c comm.Range, m Member) comm.Range {
	lo, hi := max(c.Lo, m.At)-m.At, min(c.Hi, m.At+m.Size)-m.At
	if lo >= hi {
		return comm.Range{}
	}
	return comm.Range{Lo: lo, Hi: hi}
}

func (u *Unit) add(name string, size int) {
	u.Members = append(u.Members, Member{name, u.Elements, size})
	u.Elements = int(roundUp(int64(u.Elements+size), unitAlign))
	u.Label = u.Members[0].Param
	if len(u.Members) > 1 {
		u.Label += " … " + name
	}
}

// shard groups gradients and parameters into buckets and units where state is sharded. Buckets follow the order in which
// gradients are complete, as in distribute. Each use of a tied parameter has a bucket of its own, so that all of them are cut alike; every
// other bucket is one unit.
func shard(s *State, value map[Gradient]*graph.Value) error {
	uses := map[string]int{}
	for _, gr := range s.Grads {
		uses[gr.Param]++
	}
	tied := map[string]int{} // name → unit
	buffers := s.buffers()
	limit, most := s.bucketLimits(value)
	var cur *Bucket
	var unit *Unit
	key := ""
	cut := func() {
		if cur == nil {
			return
		}
		cur.Label = unit.Label
		s.Buckets = append(s.Buckets, *cur)
		cur, limit = nil, most
	}
	open := func(u *Unit) {
		unit = u
		cur = &Bucket{Index: len(s.Buckets), Unit: u.Index, Buffers: u.Buffers}
	}
	fresh := func(name string) *Unit {
		u := &Unit{Index: len(s.Units), Trained: true, Buffers: buffers[name]}
		s.Units = append(s.Units, u)
		return u
	}
	for _, gr := range s.Grads {
		size := value[gr].Shape.Numel()
		bytes := aligned(int64(4 * size))
		if uses[gr.Param] > 1 {
			cut()
			at, ok := tied[gr.Param]
			if !ok {
				at = fresh(gr.Param).Index
				s.Units[at].add(gr.Param, size)
				tied[gr.Param] = at
			}
			open(s.Units[at])
			cur.Grads = []Gradient{gr}
			cut()
			continue
		}
		if cur != nil && (int64(4*unit.Elements)+bytes > limit || unit.Buffers != buffers[gr.Param] || s.Settings.Zero == 3 && !unit.Buffers && blockOf(gr.Param) != key) {
			cut()
		}
		if cur == nil {
			open(fresh(gr.Param))
			key = blockOf(gr.Param)
		}
		if bytes > s.Settings.BucketBytes {
			s.Notes = append(s.Notes, fmt.Sprintf("the gradient of %s takes %s, more than a bucket of %s: it travels in a bucket of its own",
				gr.Param, bytesString(bytes), bytesString(s.Settings.BucketBytes)))
		}
		unit.add(gr.Param, size)
		cur.Grads = append(cur.Grads, gr)
	}
	cut()
	idleUnits(s, uses, buffers)
	owned := make([]int64, s.Settings.World)
	for _, u := range s.Units {
		if err := s.cut(u, owned); err != nil {
			return err
		}
	}
	s.placeBuckets()
	return nil
}

// bucketLimits bounds the first bucket and the others. Where gradients only pass through, memory for two buckets is all that
// the whole gradient takes, so a small model's buckets are an eighth of it.
func (s *State) bucketLimits(value map[Gradient]*graph.Value) (first, others int64) {
	first, others = s.Settings.FirstBucketBytes, s.Settings.BucketBytes
	if !s.Settings.passing() {
		return first, others
	}
	total := int64(0)
	for _, v := range value {
		total += v.Bytes()
	}
	others = max(min(others, total/8), min(first, others))
	return min(first, others), others
}

// idleUnits makes units of the parameters that have no gradient.
func idleUnits(s *State, uses map[string]int, buffers map[string]bool) {
	var names []string
	size := map[string]int{}
	for _, n := range s.Graph.Params() {
		a := n.Attrs.(graph.ParamAttrs)
		if uses[a.Name] == 0 {
			names = append(names, a.Name)
			size[a.Name] = n.Out[0].Shape.Numel()
		}
	}
	slices.Sort(names)
	var u *Unit
	for i, name := range names {
		if u == nil || u.Buffers != buffers[name] || blockOf(name) != blockOf(names[i-1]) || int64(4*(u.Elements+size[name])) > s.Settings.BucketBytes {
			u = &Unit{Index: len(s.Units), Buffers: buffers[name]}
			s.Units = append(s.Units, u)
		}
		u.add(name, size[name])
	}
}

// blockOf is the part of a parameter's name that says in which block of the model it lies, such as h.3 of h.3.attn.qkv.weight:
// up to its first number, or else its first part.
func blockOf(name string) string {
	parts := strings.Split(name, ".")
	for i, p := range parts {
		if strings.Trim(p, "0123456789") == "" {
			return strings.Join(parts[:i+1], ".")
		}
	}
	return parts[0]
}

// cut decides who owns which part of a unit. owned counts the elements that each rank has already and is brought up to
// date: a rank that got less of earlier units gets more of this one.
func (s *State) cut(u *Unit, owned []int64) error {
	n := s.Settings.World
	u.Sharded = s.Settings.Zero == 3 && !u.Buffers && int64(4*u.Elements) >= s.Settings.KeepWholeBytes
	u.Chunks = make([]comm.Range, n)
	u.order = ascending(0, n, 1)
	if u.Sharded {
		u.order = s.Settings.ranksInOrder()
	}
	if !u.Trained && !u.Sharded {
		u.Chunks[0].Hi = u.Elements
		for r := 1; r < n; r++ {
			u.Chunks[r] = comm.Range{Lo: u.Elements, Hi: u.Elements}
		}
		return nil
	}
	cuts, err := s.cutsOf(u)
	if err != nil {
		return err
	}
	total := int64(u.Elements)
	for _, o := range owned {
		total += o
	}
	// What each rank should get, scaled so that it adds up.
	want := make([]float64, n)
	sum := 0.0
	for r := range want {
		want[r] = max(0, float64(total)/float64(n)-float64(owned[r]))
		sum += want[r]
	}
	at, upTo := 0, 0.0
	for i, r := range u.order {
		upTo += want[r] / sum * float64(u.Elements)
		end := nearest(cuts, upTo)
		if i == n-1 {
			end = u.Elements
		}
		u.Chunks[r] = comm.Range{Lo: at, Hi: max(at, end)}
		at = u.Chunks[r].Hi
		owned[r] += int64(u.Chunks[r].Len())
	}
	u.Held = s.Settings.part(u, s.Settings.Rank)
	return nil
}

// cutsOf lists the places, ascending, at which a unit's vector may be cut.
func (s *State) cutsOf(u *Unit) ([]int, error) {
	attrs := map[string]graph.ParamAttrs{}
	for _, n := range s.Graph.Params() {
		a := n.Attrs.(graph.ParamAttrs)
		attrs[a.Name] = a
	}
	var cuts []int
	for _, m := range u.Members {
		step := graph.SumSquaresBlock
		if u.Trained && !u.Buffers {
			up, err := s.Settings.Update(attrs[m.Param])
			if err != nil {
				return nil, fmt.Errorf("optimizer for parameter %s: %w", m.Param, err)
			}
			if up.Whole {
				step = m.Size
			}
		}
		for at := 0; at < m.Size; at += step {
			cuts = append(cuts, m.At+at)
		}
	}
	return append(cuts, u.Elements), nil
}

// nearest is the element of an ascending list that is nearest to x, the lower one of two.
func nearest(list []int, x float64) int {
	i, _ := slices.BinarySearchFunc(list, x, func(v int, x float64) int { return cmp.Compare(float64(v), x) })
	switch {
	case i == len(list):
		return list[i-1]
	case i > 0 && x-float64(list[i-1]) <= float64(list[i])-x:
		return list[i-1]
	}
	return list[i]
}

// placeBuckets gives the buckets their places in Grads. Gradients that are whole for the step, or for the micro-batches of a
// lane, lie one behind the other; otherwise two buckets at a time have memory, one that is being filled and one on its way.
func (s *State) placeBuckets() {
	var blocks []*block
	at := int64(0)
	for i := range s.Buckets {
		b := &s.Buckets[i]
		n := s.Units[b.Unit].Elements
		b.Place = device.Operand{Type: graph.Type{DType: tensor.F32, Shape: tensor.Shape{n}}, Space: device.Grads, Offset: at}
		at += b.Place.Bytes()
		blocks = append(blocks, &block{bytes: aligned(b.Place.Bytes()), start: i, end: i + 1})
	}
	if !s.Settings.passing() {
		return
	}
	placeBlocks(blocks)
	for i := range s.Buckets {
		s.Buckets[i].Place.Offset = blocks[i].offset
	}
}

// passing reports whether gradients only pass through: every micro-batch is a lane, and finished buckets leave for their owners.
func (s Settings) passing() bool { return s.stage() >= 2 && s.Lanes == s.MicroBatches }

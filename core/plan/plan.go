package plan

import (
	"cmp"
	"fmt"
	"slices"

	"starling/core/comm"
	"starling/core/device"
	"starling/core/graph"
	"starling/core/tensor"
)

// The segments of a training plan.
const (
	SegmentMicro  = "micro"
	SegmentNorm   = "norm"
	SegmentUpdate = "update"
)

// InputHyper is the input of the update segment: f64[groups, HyperLen], one row for each group of parameters.
const InputHyper = "hyper"

// The collectives that Start and Wait instructions name.
const (
	// AllReduce sums a bucket over the lanes of all ranks and gives everyone the whole sum.
	AllReduce = "all_reduce"
	// ReduceScatter sums a bucket and leaves each rank with its chunk: Bucket.Sum.
	ReduceScatter = "reduce_scatter"
	// AllGather completes the vector of a unit, whose number the instruction's Bucket is, at the instruction's Out[0].
	AllGather = "all_gather"
)

// The groups of ranks that Start and Wait instructions name.
const (
	dataGroup = "data"
	// ShardGroup are Settings.ShardRanks, among which parameters are sharded, ReplicaGroup Settings.ReplicaRanks. They are groups beside the
	// data group even where they have the same ranks: parameters that are needed next do not queue behind gradients.
	ShardGroup   = "shard"
	ReplicaGroup = "replicas"
	// UpdatedGroup are all ranks, where parameters travel that are updated while gradients still travel among the data group.
	UpdatedGroup = "updated"
)

// Plan is everything that a rank runs, with the place of every value.
type Plan struct {
	Settings Settings
	// Params lists the parameters in order of name.
	Params  []Param
	Buckets []Bucket
	// Units are the groups of parameters that are cut over the ranks; none where nothing is sharded.
	Units []*Unit
	// Segments are SegmentMicro, SegmentNorm, SegmentUpdate and those of AddForward, by name.
	Segments map[string]*device.Segment
	// ArenaBytes is the extent of each arena; of Grads there are GradBuffers.
	ArenaBytes [device.NumSpaces]int64
	// GradBuffers is the depth of the stack of gradient buffers that this rank needs to fold its lanes.
	GradBuffers int
	// Groups is the number of rows of the table of hyper-parameters.
	Groups int
	// Reduction is the canonical sum over the lanes of all ranks, shared by all buckets, where a rank's lanes are one range.
	Reduction *comm.Reduction
	// Rounds are the turns of lanes where gradients are sharded, else nil; SumBuffers is then the depth of the stack of Sums.
	Rounds     []Round
	SumBuffers int
	// Renewals are the parts of the norm and update segments by the bucket that lets them run, where each bucket's parameters are
	// updated as it arrives (Settings.Early), else nil. The last entry, behind those of the buckets, is what is left of the segments at the end.
	Renewals []Renewal
	// Announce is, with Renewals, the first bucket that leaves behind the loss and the weight of a micro-batch.
	Announce int
	// Passes holds the training graph as traced (its pass has no name) and after each pass.
	Passes []PassRecord
	// Unreached names the trainable parameters that the loss does not depend on.
	Unreached []string
	// Notes are remarks for the person who runs the plan.
	Notes []string

	lowered  []lowered
	params   map[string]int            // name → index in Params
	grads    map[string]device.Operand // accumulators by the name of the gradient's output
	reduced  map[string]device.Operand // this rank's part of each gradient's sum, likewise
	bucketOf map[string]int            // bucket of each gradient, likewise
	turns    map[*graph.Node]int       // of the norm and update segments: see turn
}

// lowered remembers what a segment was made from.
type lowered struct {
	name  string
	graph *graph.Graph
	where binding
	// leastWork bounds the segment's WorkBytes from below.
	leastWork int64
	// gatherBytes is the part of its Work arena for parameters that are gathered.
	gatherBytes int64
	// peak is the node at which the most transient memory is in use.
	peak *graph.Node
}

// Param is a parameter with the places that belong to it.
type Param struct {
	graph.ParamAttrs
	// Whole is the type of the whole parameter.
	Whole graph.Type
	// Place is where it lies in Params as it is used, rounded under half precision: the whole of it, or where Sharded the
	// elements Held as a vector.
	Place device.Operand
	// Exact is where the part Owned lies in fp32, in its own shape if that is all of it: in Params, or under half precision in State.
	Exact device.Operand
	// Held is the range of elements that this rank keeps where Sharded, Owned among them.
	Held comm.Range
	// Unit is the number of the unit that it belongs to where state is sharded, else -1.
	Unit    int
	Sharded bool
	// Owned is the range of its elements that this rank updates, the whole where nothing is sharded, and Shares the range of
	// each rank (nil where nothing is sharded). Empty ranges are common: a small parameter has one owner.
	Owned  comm.Range
	Shares []comm.Range
	// Uses are the accumulators of its gradient, one for each use, in trace order. Empty for a parameter that is frozen or
	// does not reach the loss: it has no slots, no partials and no update either.
	Uses []device.Operand
	// Reduced is the part Owned of each use's sum over lanes; after the norm segment the whole gradient of that part is in the
	// first.
	Reduced []device.Operand
	// Slots are its optimizer state, of the part Owned.
	Slots []SlotPlace
	// Group is the parameter's row of the table of hyper-parameters.
	Group int
	// Partials, in IO, receives the norm's partial results (Settings.Norm) for the gradient's blocks, of the part Owned:
	// f64[ceil(elements / graph.SumSquaresBlock)].
	Partials device.Operand
	// Block and Pos tell where the recipe made it.
	Block string
	Pos   graph.Position

	update Update
}

// Trained reports whether the parameter gets gradients and updates, or is a buffer that averages what the steps see.
func (p *Param) Trained() bool { return len(p.Uses) > 0 }

// Optimised reports whether the optimizer renews the parameter, and the gradient's norm counts it.
func (p *Param) Optimised() bool { return p.Trained() && !p.Buffer }

// updated reports whether this rank updates some of it.
func (p *Param) updated() bool { return p.Trained() && p.Owned.Len() > 0 }

// ownedType is the type of the part that this rank updates: a vector, or the whole parameter in its own shape.
func (p *Param) ownedType() graph.Type { return p.partType(p.Owned.Len()) }

func (p *Param) partType(n int) graph.Type {
	if n == p.Whole.Shape.Numel() {
		return p.Whole
	}
	return graph.Type{DType: p.Whole.DType, Shape: tensor.Shape{n}}
}

// OwnedPlace is where the part Owned lies in Params, as it is used.
func (p *Param) OwnedPlace() device.Operand {
	o := p.Place
	o.Shape = p.ownedType().Shape
	if p.Owned.Len() > 0 {
		o.Offset += int64(p.Owned.Lo-p.Held.Lo) * int64(o.DType.Size())
	}
	return o
}

// External reports whether the parameter's update is made outside the program.
func (p *Param) External() bool { return p.Trained() && p.update.External }

// SlotPlace is a piece of optimizer state with its place in State.
type SlotPlace struct {
	Slot
	// Key is the name under which it is stored, <parameter>/<slot>.
	Key   string
	Place device.Operand
}

// Build lowers a training graph: forward only, with the outputs OutputLoss and OutputWeight, any further outputs being
// metrics. It adds the input InputSeed and the backward pass; train itself is left as it is.
func Build(train *graph.Graph, s Settings) (*Plan, error) {
	s = s.withDefaults()
	if err := s.Validate(); err != nil {
		return nil, err
	}
	if s.Recompute.Budget > 0 {
		return fitBudget(train, s)
	}
	red, err := comm.NewReduction(s.Lanes, comm.Assign(s.Lanes, s.World))
	if err != nil {
		return nil, err
	}
	red = s.rounded(red)
	p := &Plan{
		Settings: s, Segments: map[string]*device.Segment{}, params: map[string]int{}, grads: map[string]device.Operand{},
		reduced: map[string]device.Operand{}, bucketOf: map[string]int{}, turns: map[*graph.Node]int{},
		Reduction: red, GradBuffers: red.Fold(s.Rank).Buffers,
	}
	if s.stage() >= 2 {
		p.GradBuffers = 1
		if p.Rounds, p.SumBuffers, err = planRounds(s); err != nil {
			return nil, err
		}
	}
	st := &State{Settings: s, Graph: train}
	records, err := runPasses(st, Passes())
	if err != nil {
		return nil, err
	}
	p.Passes = append([]PassRecord{{Graph: train}}, records...)
	p.Buckets, p.Units, p.Unreached, p.Notes = st.Buckets, st.Units, st.Unreached, st.Notes
	if err := p.layOut(st); err != nil {
		return nil, err
	}
	for _, build := range []func(*State) error{p.buildMicro, p.buildNorm, p.buildClip, p.buildUpdate} {
		if err := build(st); err != nil {
			return nil, err
		}
	}
	p.planRenewals()
	return p, nil
}

// AddForward lowers a graph over the parameters of the training graph, such as an evaluation or one step of
// sampling, and adds it under name. A parameter that the training graph lacks, or has in another shape, is an error.
func (p *Plan) AddForward(name string, g *graph.Graph) error {
	if _, dup := p.Segments[name]; dup {
		return fmt.Errorf("plan: segment %s exists already", name)
	}
	st := &State{Settings: p.Settings, Graph: g}
	if _, err := runPasses(st, ForwardPasses()); err != nil {
		return fmt.Errorf("segment %s: %w", name, err)
	}
	l := &lowering{plan: p, g: st.Graph, where: binding{nowhere, nowhere}}
	return l.lower(name)
}

// Param returns the parameter of that name, nil if there is none.
func (p *Plan) Param(name string) *Param {
	if i, ok := p.params[name]; ok {
		return &p.Params[i]
	}
	return nil
}

// SegmentNames lists the segments in the order in which they were added.
func (p *Plan) SegmentNames() []string {
	names := make([]string, len(p.lowered))
	for i, l := range p.lowered {
		names[i] = l.name
	}
	return names
}

// layOut gives every parameter, slot and accumulator its place.
func (p *Plan) layOut(st *State) error {
	for _, n := range st.Graph.Params() {
		p.Params = append(p.Params, Param{ParamAttrs: n.Attrs.(graph.ParamAttrs), Block: n.Block, Pos: n.Pos, Unit: -1,
			Whole: n.Out[0].Type, Owned: comm.Range{Hi: n.Out[0].Shape.Numel()}, Place: device.Operand{Space: device.Params}})
	}
	slices.SortFunc(p.Params, func(a, b Param) int { return cmp.Compare(a.Name, b.Name) })
	for i := range p.Params {
		q := &p.Params[i]
		p.params[q.Name] = i
		q.Place.Type = p.Settings.used(q.Whole, q.Buffer)
	}
	if len(p.Units) > 0 {
		p.placeUnits()
	} else {
		for i := range p.Params {
			q := &p.Params[i]
			q.Place.Offset = p.alloc(device.Params, q.Place.Bytes())
		}
	}
	for i := range p.Params {
		q := &p.Params[i]
		q.Exact = q.OwnedPlace()
		if p.Settings.half() && !q.Buffer {
			t := q.ownedType()
			q.Exact = device.Operand{Type: t, Space: device.State, Offset: p.alloc(device.State, t.Bytes())}
		}
	}
	p.placeGrads()
	return p.placeState()
}

// placeUnits lays the units out in Params, whole or this rank's chunk of them.
func (p *Plan) placeUnits() {
	for _, u := range p.Units {
		n := u.Elements
		if u.Sharded {
			n = u.Held.Len()
		}
		u.Place = device.Operand{Type: p.vector(u, n), Space: device.Params}
		u.Place.Offset = p.alloc(device.Params, u.Place.Bytes())
		for _, m := range u.Members {
			q := p.Param(m.Param)
			q.Unit, q.Sharded = u.Index, u.Sharded
			for r := range p.Settings.World {
				q.Shares = append(q.Shares, u.share(m, r))
			}
			q.Owned = q.Shares[p.Settings.Rank]
			if !u.Sharded {
				q.Place = p.memberPlace(u.Place, u, q)
				continue
			}
			q.Held = within(u.Held, m)
			q.Place = device.Operand{Type: p.Settings.used(q.partType(q.Held.Len()), u.Buffers), Space: device.Params, Offset: u.Place.Offset}
			if q.Held.Len() > 0 {
				q.Place.Offset += int64(m.At+q.Held.Lo-u.Held.Lo) * int64(q.Place.DType.Size())
			}
		}
	}
}

func inBlock(block string) string {
	if block == "" {
		return ""
	}
	return " (block " + block + ")"
}

// placeGrads lays the accumulators out in the order of the buckets, and finds this rank's part of each sum.
func (p *Plan) placeGrads() {
	for i := range p.Buckets {
		b := &p.Buckets[i]
		p.ArenaBytes[device.Grads] = max(p.ArenaBytes[device.Grads], b.Place.Offset+aligned(b.Place.Bytes()))
		if b.Unit >= 0 {
			p.placeSum(b)
		}
		at := b.Place.Offset
		for _, gr := range b.Grads {
			q := p.Param(gr.Param)
			for len(q.Uses) <= gr.Use {
				q.Uses = append(q.Uses, device.Operand{})
				q.Reduced = append(q.Reduced, device.Operand{})
			}
			use := device.Operand{Type: q.Whole, Space: device.Grads, Offset: at}
			part := use
			if b.Unit >= 0 {
				use, part = p.placesIn(b, q)
			}
			q.Uses[gr.Use], q.Reduced[gr.Use] = use, part
			p.grads[gr.Output()], p.reduced[gr.Output()], p.bucketOf[gr.Output()] = use, part, i
			at += aligned(use.Bytes())
		}
	}
}

// placeSum gives this rank's chunk of a bucket's sum its place: over the bucket itself, whose memory is free once it is
// summed, or where gradients are sharded in Sums.
func (p *Plan) placeSum(b *Bucket) {
	c := p.Units[b.Unit].Chunks[p.Settings.Rank]
	b.Sum = device.Operand{Type: p.gradVector(c.Len()), Space: device.Grads, Offset: b.Place.Offset + 4*int64(c.Lo)}
	if p.Rounds != nil {
		b.Sum.Space, b.Sum.Offset = device.Sums, p.alloc(device.Sums, b.Sum.Bytes())
	}
}

// placesIn are the places of a parameter's gradient in a bucket, whole, and of this rank's part in the bucket's sum.
func (p *Plan) placesIn(b *Bucket, q *Param) (use, part device.Operand) {
	u := p.Units[b.Unit]
	m := u.memberOf(q.Name)
	use = device.Operand{Type: q.Whole, Space: device.Grads, Offset: b.Place.Offset + 4*int64(m.At)}
	part = device.Operand{Type: q.ownedType(), Space: b.Sum.Space, Offset: b.Sum.Offset}
	if q.Owned.Len() > 0 {
		part.Offset += 4 * int64(m.At+q.Owned.Lo-u.Chunks[p.Settings.Rank].Lo)
	}
	return use, part
}

func (p *Plan) gradVector(n int) graph.Type {
	return graph.Type{DType: tensor.F32, Shape: tensor.Shape{n}}
}

// placeState asks the optimizer for every trained parameter's update and lays its slots out, all of one name together.
func (p *Plan) placeState() error {
	var names []string
	for i := range p.Params {
		q := &p.Params[i]
		if !q.Trained() {
			continue
		}
		if q.Buffer {
			q.update = p.Settings.averaged(q)
			continue
		}
		u, err := p.Settings.Update(q.ParamAttrs)
		if err != nil {
			return fmt.Errorf("optimizer for parameter %s%s: %w", q.Name, inBlock(q.Block), err)
		}
		if u.Op == nil && !u.External || u.Group < 0 {
			return fmt.Errorf("optimizer for parameter %s%s: the update has no operation or a negative group", q.Name, inBlock(q.Block))
		}
		q.update, q.Group = u, u.Group
		p.Groups = max(p.Groups, u.Group+1)
		for _, s := range u.Slots {
			q.Slots = append(q.Slots, SlotPlace{Slot: s, Key: q.Name + "/" + s.Name})
			if !slices.Contains(names, s.Name) {
				names = append(names, s.Name)
			}
		}
	}
	for _, name := range names {
		for i := range p.Params {
			q := &p.Params[i]
			for k := range q.Slots {
				if s := &q.Slots[k]; s.Name == name {
					t := s.of(q.ownedType())
					if s.Own && q.updated() {
						t.Shape = append(tensor.Shape{}, s.Shape...)
					}
					s.Place = device.Operand{Type: t, Space: device.State, Offset: p.alloc(device.State, t.Bytes())}
				}
			}
		}
	}
	return nil
}

// alloc appends bytes to an arena and returns their offset.
func (p *Plan) alloc(space device.Space, bytes int64) int64 {
	at := p.ArenaBytes[space]
	p.ArenaBytes[space] += aligned(bytes)
	return at
}

func (p *Plan) allocIO(t graph.Type) device.Operand {
	return device.Operand{Type: t, Space: device.IO, Offset: p.alloc(device.IO, t.Bytes())}
}

// paramOf is the parameter behind a parameter node of any graph of the plan.
func (p *Plan) paramOf(n *graph.Node) (*Param, error) {
	a := n.Attrs.(graph.ParamAttrs)
	q := p.Param(a.Name)
	switch {
	case q == nil:
		return nil, fmt.Errorf("parameter %s%s does not exist in the training graph: metrics and samples can use the layers that the loss has made, under the same names, and no others", a.Name, at(n))
	case !sameType(q.Whole, n.Out[0].Type):
		return nil, fmt.Errorf("parameter %s is %v here%s and %v in the training graph", a.Name, n.Out[0].Type, at(n), q.Whole)
	}
	return q, nil
}

// buildMicro lowers one micro-batch. Behind the instruction that completes a bucket stand its Fold, where this rank
// runs several lanes, and its Start, where there are other ranks.
func (p *Plan) buildMicro(st *State) error {
	complete := map[*graph.Node][]int{} // node → the buckets that it completes
	for _, b := range p.Buckets {
		last := st.Graph.Output(b.Grads[len(b.Grads)-1].Output()).Def
		complete[last] = append(complete[last], b.Index)
	}
	l := &lowering{plan: p, g: st.Graph, where: binding{nowhere, p.accumulatorPlace}}
	if p.Rounds != nil {
		l.before = p.freeBuckets(st, l)
	}
	l.after = func(n *graph.Node) {
		for _, i := range complete[n] {
			o := []device.Operand{p.Buckets[i].Place}
			to := p.Rounding(p.Buckets[i])
			if to != tensor.Invalid {
				l.seg.Instrs = append(l.seg.Instrs, device.Instr{Kind: device.Round, Out: o, When: device.LastInLane, Bucket: i, Rounding: to,
					Bytes: 2 * o[0].Bytes(), FLOPs: o[0].Bytes() / 4})
			}
			if p.GradBuffers > 1 {
				l.seg.Instrs = append(l.seg.Instrs, device.Instr{Kind: device.Fold, Out: o, When: device.LastInLane, Bucket: i, Rounding: to,
					Bytes: 3 * o[0].Bytes(), FLOPs: o[0].Bytes() / 4})
			}
			if p.Settings.World > 1 {
				l.seg.Instrs = append(l.seg.Instrs, device.Instr{Kind: device.Start, Out: o, When: p.leaves(), Bucket: i,
					Group: dataGroup, Collective: p.reduction()})
			}
		}
	}
	return l.lower(SegmentMicro)
}

// leaves is the moment at which a complete bucket leaves for other ranks.
func (p *Plan) leaves() device.When {
	if p.Rounds != nil {
		return device.LastInLane
	}
	return device.LastOnRank
}

// reduction is the collective by which buckets are summed.
func (p *Plan) reduction() string {
	if len(p.Units) > 0 {
		return ReduceScatter
	}
	return AllReduce
}

// freeBuckets returns what puts a Wait before the first write into a bucket whose memory may still be on its way: that of the
// round before, and where gradients only pass through that of an earlier bucket.
func (p *Plan) freeBuckets(st *State, l *lowering) func(*graph.Node) {
	writes := map[*graph.Node]int{}
	for _, b := range p.Buckets {
		for _, gr := range b.Grads {
			writes[st.Graph.Output(gr.Output()).Def] = b.Index
		}
	}
	opened := make([]bool, len(p.Buckets))
	return func(n *graph.Node) {
		i, ok := writes[n]
		if !ok || opened[i] {
			return
		}
		opened[i] = true
		free := []int{i}
		if p.Settings.passing() {
			free = free[:0]
			switch {
			case i == 0: // the last buckets of the round before
				for k := max(0, len(p.Buckets)-2); k < len(p.Buckets); k++ {
					free = append(free, k)
				}
			case i >= 2:
				free = append(free, i-2)
			}
		}
		for _, k := range free {
			l.seg.Instrs = append(l.seg.Instrs, device.Instr{Kind: device.Wait, Bucket: k, Out: []device.Operand{p.Buckets[k].Place},
				Group: dataGroup, Collective: p.reduction()})
		}
	}
}

// accumulatorPlace finds the place of a gradient by its output's name.
func (p *Plan) accumulatorPlace(name string) (device.Operand, bool) {
	o, ok := p.grads[name]
	return o, ok
}

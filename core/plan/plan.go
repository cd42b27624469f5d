package plan

import (
	"cmp"
	"fmt"
	"slices"

	"starling/core/comm"
	"starling/core/device"
	"starling/core/graph"
)

// The segments of a training plan.
const (
	SegmentMicro  = "micro"
	SegmentNorm   = "norm"
	SegmentUpdate = "update"
)

// InputHyper is the input of the update segment: f64[groups, HyperLen], one row for each group of parameters.
const InputHyper = "hyper"

// The names that Start and Wait instructions carry.
const (
	dataGroup = "data"
	allReduce = "all_reduce"
)

// Plan is everything that a rank runs, with the place of every value.
type Plan struct {
	Settings Settings
	// Params lists the parameters in order of name.
	Params  []Param
	Buckets []Bucket
	// Segments are SegmentMicro, SegmentNorm, SegmentUpdate and those of AddForward, by name.
	Segments map[string]*device.Segment
	// ArenaBytes is the extent of each arena; of Grads there are GradBuffers.
	ArenaBytes [device.NumSpaces]int64
	// GradBuffers is the depth of the stack of gradient buffers that this rank needs to fold its lanes.
	GradBuffers int
	// Groups is the number of rows of the table of hyper-parameters.
	Groups int
	// Reduction is the canonical sum over the lanes of all ranks, shared by all buckets.
	Reduction *comm.Reduction
	// Passes holds the training graph as traced (its pass has no name) and after each pass.
	Passes []PassRecord
	// Unreached names the trainable parameters that the loss does not depend on.
	Unreached []string
	// Notes are remarks for the person who runs the plan.
	Notes []string

	lowered []lowered
	params  map[string]int            // name → index in Params
	grads   map[string]device.Operand // accumulators by the name of the gradient's output
}

// lowered remembers what a segment was made from.
type lowered struct {
	name  string
	graph *graph.Graph
	where binding
	// leastWork bounds the segment's WorkBytes from below.
	leastWork int64
}

// Param is a parameter with the places that belong to it.
type Param struct {
	graph.ParamAttrs
	Place device.Operand
	// Uses are the accumulators of its gradient, one for each use, in trace order; after the norm segment the whole
	// gradient is in the first. Empty for a parameter that is frozen or does not reach the loss: it has no slots, no
	// partials and no update either.
	Uses  []device.Operand
	Slots []SlotPlace
	// Group is the parameter's row of the table of hyper-parameters.
	Group int
	// Partials, in IO, receives the sums of squares of the gradient's blocks: f64[ceil(elements / graph.SumSquaresBlock)].
	Partials device.Operand
	// Block and Pos tell where the recipe made it.
	Block string
	Pos   graph.Position

	update Update
}

// Trained reports whether the parameter gets gradients and updates.
func (p *Param) Trained() bool { return len(p.Uses) > 0 }

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
	red, err := comm.NewReduction(s.Lanes, comm.Assign(s.Lanes, s.World))
	if err != nil {
		return nil, err
	}
	p := &Plan{
		Settings: s, Segments: map[string]*device.Segment{}, params: map[string]int{}, grads: map[string]device.Operand{},
		Reduction: red, GradBuffers: red.Fold(s.Rank).Buffers,
	}
	st := &State{Settings: s, Graph: train}
	records, err := runPasses(st, Passes())
	if err != nil {
		return nil, err
	}
	p.Passes = append([]PassRecord{{Graph: train}}, records...)
	p.Buckets, p.Unreached, p.Notes = st.Buckets, st.Unreached, st.Notes
	if err := p.layOut(st); err != nil {
		return nil, err
	}
	for _, build := range []func(*State) error{p.buildMicro, p.buildNorm, p.buildUpdate} {
		if err := build(st); err != nil {
			return nil, err
		}
	}
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
		p.Params = append(p.Params, Param{ParamAttrs: n.Attrs.(graph.ParamAttrs), Block: n.Block, Pos: n.Pos,
			Place: device.Operand{Type: n.Out[0].Type, Space: device.Params}})
	}
	slices.SortFunc(p.Params, func(a, b Param) int { return cmp.Compare(a.Name, b.Name) })
	for i := range p.Params {
		q := &p.Params[i]
		p.params[q.Name] = i
		q.Place.Offset = p.alloc(device.Params, q.Place.Bytes())
	}
	p.placeGrads()
	return p.placeState()
}

func inBlock(block string) string {
	if block == "" {
		return ""
	}
	return " (block " + block + ")"
}

// placeGrads lays the accumulators out in the order of the buckets.
func (p *Plan) placeGrads() {
	for _, b := range p.Buckets {
		at := b.Place.Offset
		for _, gr := range b.Grads {
			q := p.Param(gr.Param)
			for len(q.Uses) <= gr.Use {
				q.Uses = append(q.Uses, device.Operand{})
			}
			p.grads[gr.Output()] = device.Operand{Type: q.Place.Type, Space: device.Grads, Offset: at}
			q.Uses[gr.Use] = p.grads[gr.Output()]
			at += aligned(q.Place.Bytes())
		}
		p.ArenaBytes[device.Grads] = b.Place.Offset + b.Place.Bytes()
	}
}

// placeState asks the optimizer for every trained parameter's update and lays its slots out, all of one name together.
func (p *Plan) placeState() error {
	var names []string
	for i := range p.Params {
		q := &p.Params[i]
		if !q.Trained() {
			continue
		}
		u, err := p.Settings.Update(q.ParamAttrs)
		if err != nil {
			return fmt.Errorf("optimizer for parameter %s%s: %w", q.Name, inBlock(q.Block), err)
		}
		if u.Op == nil || u.Group < 0 {
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
					s.Place = device.Operand{Type: q.Place.Type, Space: device.State, Offset: p.alloc(device.State, q.Place.Bytes())}
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

// placeOfParam is the place of a parameter node of any graph of the plan.
func (p *Plan) placeOfParam(n *graph.Node) (device.Operand, error) {
	a := n.Attrs.(graph.ParamAttrs)
	q := p.Param(a.Name)
	switch {
	case q == nil:
		return device.Operand{}, fmt.Errorf("parameter %s%s does not exist in the training graph", a.Name, at(n))
	case !sameType(q.Place.Type, n.Out[0].Type):
		return device.Operand{}, fmt.Errorf("parameter %s is %v here%s and %v in the training graph", a.Name, n.Out[0].Type, at(n), q.Place.Type)
	}
	return q.Place, nil
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
	l.after = func(n *graph.Node) {
		for _, i := range complete[n] {
			o := []device.Operand{p.Buckets[i].Place}
			if p.GradBuffers > 1 {
				l.seg.Instrs = append(l.seg.Instrs, device.Instr{Kind: device.Fold, Out: o, When: device.LastInLane, Bucket: i,
					Bytes: 3 * o[0].Bytes(), FLOPs: o[0].Bytes() / 4})
			}
			if p.Settings.World > 1 {
				l.seg.Instrs = append(l.seg.Instrs, device.Instr{Kind: device.Start, Out: o, When: device.LastOnRank, Bucket: i,
					Group: dataGroup, Collective: allReduce})
			}
		}
	}
	return l.lower(SegmentMicro)
}

// accumulatorPlace finds the place of a gradient by its output's name.
func (p *Plan) accumulatorPlace(name string) (device.Operand, bool) {
	o, ok := p.grads[name]
	return o, ok
}

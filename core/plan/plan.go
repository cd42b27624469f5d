package plan

import (
	"fmt"

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

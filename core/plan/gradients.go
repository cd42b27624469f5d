package plan

import (
	"fmt"
	"slices"
	"strings"

	"starling/core/comm"
	"starling/core/device"
	"starling/core/graph"
	"starling/core/tensor"
)

// The names by which the host and the training graph agree.
const (
	// OutputLoss and OutputWeight are the loss of a micro-batch, as a weighted sum, and its weight: f32 scalars.
	OutputLoss, OutputWeight = "loss", "weight"
	// InputSeed is the f32 scalar that Build adds to the training graph: the gradient of the loss with respect to
	// itself. The host writes scale / nominal weight there.
	InputSeed = "seed"
)

var storeName = graph.OpGradStore.Name

// differentiate appends the backward pass. It leaves every output as it was and adds one for each use of each
// trainable parameter, named by Gradient.Output; every new node belongs to the backward phase. Parameters that the loss
// does not depend on get no output and a note.
func differentiate(s *State) error {
	g := clone(s.Graph)
	loss, err := lossOf(g)
	if err != nil {
		return err
	}
	b := &graph.Builder{G: g, Phase: graph.Backward}
	seed, err := b.Apply(graph.OpInput, graph.InputAttrs{Name: InputSeed, DType: tensor.F32})
	if err != nil {
		return err
	}
	grads, unreached, err := graph.Differentiate(g, loss, seed[0])
	if err != nil {
		return err
	}
	for _, d := range grads {
		gr := Gradient{d.Param.Attrs.(graph.ParamAttrs).Name, d.Use}
		s.Grads = append(s.Grads, gr)
		b.Output(gr.Output(), d.Value)
	}
	for _, n := range unreached {
		name := n.Attrs.(graph.ParamAttrs).Name
		s.Unreached = append(s.Unreached, name)
		s.Notes = append(s.Notes, fmt.Sprintf("parameter %s%s does not reach the loss: it gets no gradient and keeps its initial value", name, at(n)))
	}
	if len(s.Grads) == 0 {
		return fmt.Errorf("the loss depends on no trainable parameter")
	}
	s.Graph = g
	return nil
}

// at names a node's block and position, for errors about it.
func at(n *graph.Node) string {
	var parts []string
	if n.Block != "" {
		parts = append(parts, "block "+n.Block)
	}
	if p := n.Pos.String(); p != "" {
		parts = append(parts, p)
	}
	if len(parts) == 0 {
		return ""
	}
	return " (" + strings.Join(parts, ", ") + ")"
}

func lossOf(g *graph.Graph) (*graph.Value, error) {
	for _, name := range []string{OutputLoss, OutputWeight} {
		v := g.Output(name)
		if v == nil {
			return nil, fmt.Errorf("the training graph has no output %q", name)
		}
		if v.DType != tensor.F32 || len(v.Shape) != 0 {
			return nil, fmt.Errorf("the training graph's output %q is %v%s: it must be an f32 scalar", name, v.Type, at(v.Def))
		}
	}
	for _, o := range g.Outputs {
		if strings.HasPrefix(o.Name, gradPrefix) {
			return nil, fmt.Errorf("the training graph's output %q takes a name that is kept for gradients", o.Name)
		}
	}
	if v := g.Input(InputSeed); v != nil {
		return nil, fmt.Errorf("the training graph's input %q%s takes the name of the gradient's seed", InputSeed, at(v.Def))
	}
	return g.Output(OutputLoss), nil
}

// accumulate makes every gradient the result of a node that can add into an accumulator, read by nothing else. A
// product that accumulates and whose result goes nowhere else writes its accumulator itself, under whatever shape;
// behind every other gradient a grad_store is inserted. The choice depends on the graph alone, never on placement,
// because a product that continues a sum rounds differently from one that is added to it.
func accumulate(s *State) error {
	g := s.Graph
	consumers := consumersOf(g)
	stores := map[*graph.Value][]string{} // gradient → its outputs' names
	direct := map[string]*graph.Value{}   // output → result of the node that accumulates
	passed := map[*graph.Node]bool{}      // views between the two, which nothing needs any more
	for _, o := range g.Outputs {
		if !strings.HasPrefix(o.Name, gradPrefix) {
			continue
		}
		if v := accumulator(o.Value, consumers); v != nil {
			direct[o.Name] = v
			for w := o.Value; w != v; w = w.Def.In[0] {
				passed[w.Def] = true
			}
		} else {
			stores[o.Value] = append(stores[o.Value], o.Name)
		}
	}
	r := newRewriter()
	stored := map[string]*graph.Value{}
	for _, n := range g.Nodes {
		if passed[n] {
			continue
		}
		r.copy(n)
		for _, v := range n.Out {
			for _, name := range stores[v] {
				r.b.Pos, r.b.Block, r.b.Phase = n.Pos, n.Block, graph.Backward
				stored[name] = r.b.Must(graph.OpGradStore, nil, r.env[v])[0]
			}
		}
	}
	for _, o := range g.Outputs {
		v := r.env[o.Value]
		if st := stored[o.Name]; st != nil {
			v = st
		} else if d := direct[o.Name]; d != nil {
			v = r.env[d]
		}
		r.b.Output(o.Name, v)
	}
	s.Graph = r.b.G
	return nil
}

// accumulator looks through views for the accumulating node that makes v, nil if there is none or something else
// reads its result.
func accumulator(v *graph.Value, consumers map[*graph.Value]uses) *graph.Value {
	for {
		u := consumers[v]
		if len(u.nodes)+len(u.outputs) != 1 {
			return nil
		}
		n := v.Def
		switch {
		case n.Op.Accumulates && v == n.Out[0]:
			return v
		case n.Op.View:
			v = n.In[0]
		default:
			return nil
		}
	}
}

// Bucket is a consecutive range of the Grads arena that travels between ranks as one.
type Bucket struct {
	Index int
	// Label names the first and the last of its gradients, for people.
	Label string
	// Place is the range as a vector of f32.
	Place device.Operand
	// Grads are in the order of completion, which is also that of their places.
	Grads []Gradient
	// Unit is the number of the unit whose layout and cut the bucket has where state is sharded, else -1.
	Unit int
	// Buffers says that the bucket holds what buffers average, not gradients: it travels in fp32 as it is.
	Buffers bool
	// Sum is where this rank's chunk of the sum over lanes lies where state is sharded, as a vector of f32: in the bucket
	// itself, or in Sums.
	Sum device.Operand
}

// distribute sorts the gradients by the moment at which they are complete and cuts them into buckets, the first one
// small so that communication starts early. A tensor is never split: one that is larger than a bucket gets a bucket of
// its own, and a note. A bucket's extent is rounded up so that the ranks own equal chunks of it; the padding stays zero. The
// cut depends on the graph, the bucket sizes and the number of ranks alone, so every rank makes the same one.
func distribute(s *State) error {
	index := indexOf(s.Graph)
	done := map[Gradient]int{}
	value := map[Gradient]*graph.Value{}
	for _, gr := range s.Grads {
		value[gr] = s.Graph.Output(gr.Output())
		done[gr] = index[value[gr].Def]
	}
	slices.SortStableFunc(s.Grads, func(a, b Gradient) int { return done[a] - done[b] })
	if s.Settings.stage() > 0 {
		return shard(s, value)
	}
	limit := s.Settings.FirstBucketBytes
	var cur []Gradient
	var offset, size int64
	buffers := s.buffers()
	kind := false
	cut := func() {
		size = roundUp(size, 4*comm.ChunkAlign*int64(s.Settings.World))
		b := newBucket(len(s.Buckets), offset, size, cur)
		b.Buffers = kind
		s.Buckets = append(s.Buckets, b)
		cur, offset, size = nil, offset+size, 0
		limit = s.Settings.BucketBytes
	}
	for _, gr := range s.Grads {
		n := aligned(value[gr].Bytes())
		if size > 0 && (size+n > limit || buffers[gr.Param] != kind) {
			cut()
		}
		kind = buffers[gr.Param]
		if n > s.Settings.BucketBytes {
			s.Notes = append(s.Notes, fmt.Sprintf("the gradient of %s takes %s, more than a bucket of %s: it travels in a bucket of its own",
				gr.Param, bytesString(n), bytesString(s.Settings.BucketBytes)))
		}
		cur = append(cur, gr)
		size += n
	}
	cut()
	return nil
}

func newBucket(index int, offset, size int64, grads []Gradient) Bucket {
	label := grads[0].Param
	if len(grads) > 1 {
		label += " … " + grads[len(grads)-1].Param
	}
	return Bucket{
		Index: index, Label: label, Grads: grads, Unit: -1,
		Place: device.Operand{
			Type:  graph.Type{DType: tensor.F32, Shape: tensor.Shape{int(size / 4)}},
			Space: device.Grads, Offset: offset,
		},
	}
}

// aligned rounds up to the alignment of operands.
func aligned(n int64) int64 { return roundUp(n, device.Align) }

func roundUp(n, unit int64) int64 { return (n + unit - 1) / unit * unit }

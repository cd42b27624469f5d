package plan

import (
	"strings"

	"starling/core/graph"
	"starling/core/tensor"
)

// halfOps are the operations that devices compute on bfloat16 operands, with the number of leading inputs that may be half
// values; the rest keep their types. Their arithmetic is that of fp32 with one rounding of each result, but for products, whose
// sums have a class of arithmetic of their own.
var halfOps = map[string]int{
	"linear": 3, "linear_grad_x": 2, "linear_grad_b": 1,
	"conv2d": 3, "conv2d_grad_x": 2,
	"add": 2, "sub": 2, "mul": 2,
	"relu": 1, "gelu": 1, "gelu_erf": 1, "silu": 1, "swiglu": 2,
	"relu_grad": 2, "gelu_grad": 2, "gelu_erf_grad": 2, "silu_grad": 2, "swiglu_grad": 3,
	"slice": 1, "pad_slice": 1, "concat": 1 << 30,
	"attention": 3, "attention_grad": 5,
	"layer_norm": 3, "layer_norm_grad": 3, "rms_norm": 2, "rms_norm_grad": 3,
}

// wideGradients are the gradients of weights whose sums stay in fp32.
var wideGradients = map[string]*graph.Op{"linear_grad_w": graph.OpLinearGradWWide, "conv2d_grad_w": graph.OpConv2DGradWWide}

// narrow lets operations read and write bfloat16 where precision has put casts around them: an operation whose operands were
// all widened and whose results are all rounded does both itself. Gradients of weights are summed in fp32 and not rounded on the way to their
// accumulators. What is widened and rounded again is what it was.
func narrow(s *State) error {
	if s.Settings.Half != tensor.BF16 {
		return nil
	}
	w := narrower{rewriter: newRewriter(), old: s.Graph, consumers: consumersOf(s.Graph), rounded: map[*graph.Value]*graph.Value{}, exact: map[*graph.Value]*graph.Value{}}
	for _, n := range s.Graph.Nodes {
		w.node(n)
	}
	s.Graph = w.finish(s.Graph)
	return prune(s)
}

// narrower is a rewriter that knows which values of the old graph have become half values.
type narrower struct {
	*rewriter
	old       *graph.Graph
	consumers map[*graph.Value]uses
	rounded   map[*graph.Value]*graph.Value // fp32 value of the old graph that exists as a half value only → that value
	exact     map[*graph.Value]*graph.Value // half value of the old graph → the fp32 sum that it need not have been rounded from
}

func (w *narrower) node(n *graph.Node) {
	switch {
	case n.Op == graph.OpCast:
		w.cast(n)
	case wideGradients[n.Op.Name] != nil && widened(n.In[0]) && widened(n.In[1]):
		out := w.apply(n, wideGradients[n.Op.Name], n.Attrs, w.half(n.In[0]), w.half(n.In[1]))
		w.env[n.Out[0]] = out[0]
		w.exact[n.Out[0]] = out[0]
	case w.fits(n):
		in := w.inputs(n)
		for i := range min(halfOps[n.Op.Name], len(in)) {
			in[i] = w.half(n.In[i])
		}
		for i, v := range w.apply(n, n.Op, n.Attrs, in...) {
			old := n.Out[i]
			if v.DType == tensor.BF16 {
				w.rounded[old] = v
			}
			w.env[old] = v
		}
	default:
		w.copy(n)
	}
}

// cast leaves out what a half value need not go through.
func (w *narrower) cast(n *graph.Node) {
	from, to := n.In[0], n.Out[0]
	switch {
	case to.DType == tensor.BF16 && w.rounded[from] != nil:
		w.env[to] = w.rounded[from]
	case to.DType == tensor.BF16 && widened(from):
		w.env[to] = w.half(from)
	case to.DType == tensor.F32 && w.exact[from] != nil:
		w.env[to] = w.exact[from]
	default:
		w.copy(n)
		if sum := w.exact[from]; sum != nil && to.DType == tensor.BF16 {
			w.exact[to] = sum
		}
	}
}

// widened reports whether a value of the old graph is a bfloat16 value in fp32.
func widened(v *graph.Value) bool {
	return v.Def.Op == graph.OpCast && v.DType == tensor.F32 && v.Def.In[0].DType == tensor.BF16
}

// half is the bfloat16 form of a widened value.
func (w *narrower) half(v *graph.Value) *graph.Value { return w.env[v.Def.In[0]] }

// fits reports whether every floating-point operand of n that may be half was widened, and every result of that type is
// rounded and read in no other way.
func (w *narrower) fits(n *graph.Node) bool {
	count := halfOps[n.Op.Name]
	if count == 0 {
		return false
	}
	for i, v := range n.In {
		if i < count && !widened(v) {
			return false
		}
	}
	for i, v := range n.Out {
		if i == 1 && (strings.HasSuffix(n.Op.Name, "_norm") || n.Op == graph.OpAttention) { // statistics are fp32
			continue
		}
		u := w.consumers[v]
		if len(u.outputs) > 0 {
			return false
		}
		for _, c := range u.nodes {
			if c.Op != graph.OpCast || c.Out[0].DType != tensor.BF16 {
				return false
			}
		}
	}
	return true
}

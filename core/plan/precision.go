package plan

import (
	"slices"
	"strings"

	"starling/core/graph"
	"starling/core/tensor"
)

// inHalf are the operations whose operands are rounded to the half type wherever they come from: products, and the table that
// they share their weights with.
var inHalf = []string{"linear", "matmul", "attention", "conv2d", "embedding"}

// inFull are the operations that take and give fp32: reductions, norms, losses, and functions whose results grow or vanish fast.
var inFull = []string{
	"sum", "mean", "softmax", "log_softmax", "cross_entropy", "layer_norm", "rms_norm", "batch_norm", "batch_norm_fixed",
	"exp", "log", "pow", "pow_scalar", "sqrt", "rsqrt", "square", "div", "max_pool", "avg_pool",
}

// autocast rounds what the forward pass computes to the half type: parameters as they are used, the operands and results of
// products, and whatever other operations make of such values alone. Operations on the list inFull, and those that mix half
// and fp32 values, work in fp32. The arithmetic of every node is that of fp32 and its result is rounded once, by a cast node of its own, so that
// what is kept for the backward pass takes two bytes.
//
// Each use of a parameter has a cast of its own: the gradients of several uses are added in fp32. Outputs keep their types.
func autocast(s *State) error {
	if !s.Settings.half() {
		return nil
	}
	c := caster{rewriter: newRewriter(), half: s.Settings.Half, narrow: map[*graph.Value]*graph.Value{}, wide: map[*graph.Value]*graph.Value{}}
	for _, n := range s.Graph.Nodes {
		c.node(n)
	}
	for _, o := range s.Graph.Outputs {
		v := c.env[o.Value]
		if o.Value.DType == tensor.F32 && v.DType != tensor.F32 {
			v = c.full(o.Value.Def, o.Value)
		}
		c.b.Output(o.Name, v)
	}
	s.Graph = c.b.G
	return nil
}

// half reports whether the recipe's precision is a half type.
func (s Settings) half() bool { return s.Half == tensor.BF16 || s.Half == tensor.F16 }

// caster is a rewriter that knows each value in both types. The keys are values of the old graph.
type caster struct {
	*rewriter
	half         tensor.DType
	narrow, wide map[*graph.Value]*graph.Value
}

func (c *caster) node(n *graph.Node) {
	if isSource(n) {
		c.copy(n)
		return
	}
	full := slices.Contains(inFull, n.Op.Name)
	if !full && !slices.Contains(inHalf, n.Op.Name) {
		full = !c.allHalf(n)
	}
	if n.Op == graph.OpCast { // the recipe's own: from the exact value
		full = true
	}
	if n.Op.View && !full {
		out := c.apply(n, n.Op, n.Attrs, c.rounded(n, n.In[0]))
		c.env[n.Out[0]], c.narrow[n.Out[0]] = out[0], out[0]
		return
	}
	in := make([]*graph.Value, len(n.In))
	for i, v := range n.In {
		switch {
		case v.DType != tensor.F32:
			in[i] = c.env[v]
		case full:
			in[i] = c.full(n, v)
		default:
			in[i] = c.widened(n, v)
		}
	}
	out := c.apply(n, n.Op, n.Attrs, in...)
	for i, v := range n.Out {
		c.env[v] = out[i]
	}
	if v := n.Out[0]; !full && v.DType == tensor.F32 {
		c.env[v] = c.apply(n, graph.OpCast, graph.CastAttrs{To: c.half}, out[0])[0]
		c.narrow[v] = c.env[v]
	}
}

// allHalf reports whether a node's floating-point inputs are half values, constants, which have no type of their own, and
// parameters; at least one must be half.
func (c *caster) allHalf(n *graph.Node) bool {
	some := false
	for _, v := range n.In {
		if v.DType != tensor.F32 {
			continue
		}
		switch {
		case c.env[v].DType == c.half:
			some = true
		case v.Def.Op != graph.OpConst && v.Def.Op != graph.OpParam:
			return false
		}
	}
	return some
}

// rounded is a value in the half type.
func (c *caster) rounded(n *graph.Node, v *graph.Value) *graph.Value {
	if v.Def.Op == graph.OpParam { // one cast for each use
		return c.apply(n, graph.OpCast, graph.CastAttrs{To: c.half}, c.env[v])[0]
	}
	if c.narrow[v] == nil {
		c.narrow[v] = c.apply(v.Def, graph.OpCast, graph.CastAttrs{To: c.half}, c.env[v])[0]
	}
	return c.narrow[v]
}

// widened is the half value as an operand of fp32 arithmetic.
func (c *caster) widened(n *graph.Node, v *graph.Value) *graph.Value {
	return c.apply(n, graph.OpCast, graph.CastAttrs{To: tensor.F32}, c.rounded(n, v))[0]
}

// full is a value in fp32, as exact as there is: parameters are rounded all the same, buffers are not.
func (c *caster) full(n *graph.Node, v *graph.Value) *graph.Value {
	if a, param := v.Def.Attrs.(graph.ParamAttrs); a.Buffer || !param && c.env[v].DType == tensor.F32 {
		return c.env[v]
	}
	return c.widened(n, v)
}

// recast makes the backward pass read half values where it would read their fp32 forms: a value that was widened for the forward
// pass is widened again, and a result that was rounded is read as it was rounded. Otherwise the fp32 form of every activation
// would be kept for the backward pass.
func recast(s *State) error {
	if !s.Settings.half() {
		return nil
	}
	narrow := map[*graph.Value]*graph.Value{} // fp32 value of the forward pass → its half form
	for _, n := range s.Graph.Nodes {
		if n.Op != graph.OpCast || isBackward(n) {
			continue
		}
		switch from, to := n.In[0], n.Out[0]; {
		case from.DType == s.Settings.Half && to.DType == tensor.F32:
			narrow[to] = from
		case from.DType == tensor.F32 && to.DType == s.Settings.Half && from.Def.Op != graph.OpParam:
			narrow[from] = to
		}
	}
	r := newRewriter()
	type copied struct {
		value *graph.Value
		at    int
	}
	recent := map[*graph.Value]copied{}
	for i, n := range s.Graph.Nodes {
		if !isBackward(n) {
			r.copy(n)
			continue
		}
		in := r.inputs(n)
		for k, v := range n.In {
			h := narrow[v]
			if h == nil || n.Op == graph.OpCast {
				continue
			}
			c, ok := recent[h]
			if !ok || i-c.at > recastReach {
				c = copied{r.apply(n, graph.OpCast, graph.CastAttrs{To: tensor.F32}, r.env[h])[0], i}
				recent[h] = c
			}
			in[k] = c.value
		}
		out := r.apply(n, n.Op, n.Attrs, in...)
		for k, v := range n.Out {
			r.env[v] = out[k]
		}
	}
	s.Graph = r.finish(s.Graph)
	return nil
}

// recastReach is for how many nodes a value that the backward pass widens is worth keeping.
const recastReach = 4

// isWeight reports whether a node stands for a parameter as it is used under half precision: the cast of a parameter to the
// half type. It is no work of the program: the update leaves the rounded weights in Params.
func (s Settings) isWeight(n *graph.Node) bool {
	return s.half() && n.Op == graph.OpCast && n.In[0].Def.Op == graph.OpParam && n.Out[0].DType == s.Half
}

// halfGradients are the operations whose gradients of weights are rounded to the half type, as the products that they belong to.
var halfGradients = []string{"linear_grad_w", "linear_grad_b", "conv2d_grad_w", "matmul"}

// exactGradient looks behind the roundings that differentiation turned around: the gradient of a weight that is rounded for use alone, as in a
// norm, was never a half value.
func (s Settings) exactGradient(v *graph.Value) *graph.Value {
	wide := v.Def
	if wide.Op != graph.OpCast || !s.isHalf(wide.In[0]) {
		return v
	}
	narrow := wide.In[0].Def
	if narrow.Op != graph.OpCast || narrow.In[0].DType != tensor.F32 || slices.Contains(halfGradients, rootOf(narrow.In[0]).Def.Op.Name) {
		return v
	}
	return narrow.In[0]
}

// widen gives every node that works on half values the arithmetic of fp32: its operands are widened and its results rounded.
// Differentiation leaves such nodes where a value has several uses and their gradients are added.
func widen(s *State) error {
	if !s.Settings.half() {
		return nil
	}
	r := newRewriter()
	for _, n := range s.Graph.Nodes {
		if n.Op == graph.OpCast || n.Op.View || isSource(n) || !slices.ContainsFunc(n.In, s.Settings.isHalf) {
			r.copy(n)
			continue
		}
		in := r.inputs(n)
		for i, v := range n.In {
			if s.Settings.isHalf(v) {
				in[i] = r.apply(n, graph.OpCast, graph.CastAttrs{To: tensor.F32}, in[i])[0]
			}
		}
		out := r.apply(n, n.Op, n.Attrs, in...)
		for i, v := range n.Out {
			r.env[v] = out[i]
			if s.Settings.isHalf(v) {
				r.env[v] = r.apply(n, graph.OpCast, graph.CastAttrs{To: v.DType}, out[i])[0]
			}
		}
	}
	for _, o := range s.Graph.Outputs {
		v := o.Value
		if strings.HasPrefix(o.Name, gradPrefix) {
			v = s.Settings.exactGradient(v)
		}
		r.b.Output(o.Name, r.env[v])
	}
	s.Graph = r.b.G
	return nil
}

func (s Settings) isHalf(v *graph.Value) bool { return s.half() && v.DType == s.Half }

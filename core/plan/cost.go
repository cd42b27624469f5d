package plan

import (
	"fmt"

	"starling/core/graph"
)

// Cost is the arithmetic and the memory traffic of one run of a node, as instructions carry them.
func Cost(n *graph.Node) (flops, bytes int64) { return cost(n) }

// cost is the arithmetic and the memory traffic of one run of a node: a multiply-add counts as two operations, every
// operand is read or written once. Transcendental functions are counted by the rough price of their polynomials; the figures
// serve cost models and people, nothing depends on their last digit.
func cost(n *graph.Node) (flops, bytes int64) {
	for _, v := range n.In {
		bytes += v.Bytes()
	}
	for _, v := range n.Out {
		bytes += v.Bytes()
	}
	if n.Op.Name == "embedding" {
		bytes = 2*n.Out[0].Bytes() + n.In[1].Bytes() // reads the rows that it needs, not the table
	}
	if f, ok := products[n.Op.Name]; ok {
		return f(n), bytes
	}
	work := numel(n.Out[0])
	for _, v := range n.In {
		work = max(work, numel(v))
	}
	if per, ok := perElement[n.Op.Name]; ok {
		return per * work, bytes
	}
	return work, bytes
}

// perElement is the arithmetic for each element of the largest operand; an operation in neither table does one.
var perElement = map[string]int64{
	"const": 0, "cast": 0, "transpose": 0, "slice": 0, "pad_slice": 0, "concat": 0, "broadcast_to": 0, "embedding": 0, "grad_store": 0,
	"exp": 12, "log": 12, "tanh": 16, "sigmoid": 14, "gelu": 22, "gelu_erf": 22, "silu": 15, "swiglu": 16, "pow_scalar": 24,
	"tanh_grad": 3, "sigmoid_grad": 3, "gelu_grad": 28, "gelu_erf_grad": 28, "silu_grad": 18, "swiglu_grad": 20,
	"softmax": 16, "softmax_grad": 4, "log_softmax": 16, "log_softmax_grad": 16, "cross_entropy": 14, "cross_entropy_grad": 14,
	"layer_norm": 8, "layer_norm_grad": 12, "rms_norm": 5, "rms_norm_grad": 9, "rotary": 3, "dropout": 12,
	"sum_squares": 2, "sum_abs": 1, "max_abs": 1, "clip_value": 2, "round_to": 1, "adamw": 14, "adamw_bf16": 16, "adamw_int8": 30, "sgd": 6,
}

// products are the operations whose arithmetic is more than a pass over their operands.
var products = map[string]func(n *graph.Node) int64{
	// [...,M,K] · [...,K,N]: K is the operand's elements divided by the rows that they make.
	"matmul": func(n *graph.Node) int64 {
		s := n.In[0].Shape
		k := s[len(s)-1]
		if n.Attrs.(graph.MatmulAttrs).TransA {
			k = s[len(s)-2]
		}
		return 2 * numel(n.Out[0]) * int64(k)
	},
	"linear":        func(n *graph.Node) int64 { return 2 * numel(n.Out[0]) * int64(n.In[1].Shape[1]) },
	"linear_grad_x": func(n *graph.Node) int64 { return 2 * numel(n.Out[0]) * int64(n.In[1].Shape[0]) },
	"linear_grad_w": func(n *graph.Node) int64 { return 2 * numel(n.In[0]) * int64(n.Out[0].Shape[1]) },

	"linear_grad_w_wide": func(n *graph.Node) int64 { return 2 * numel(n.In[0]) * int64(n.Out[0].Shape[1]) },

	// The logits, and the two products of their gradient.
	"linear_cross_entropy":       func(n *graph.Node) int64 { return linearLoss(n.In[0], n.In[1], 2, 14) },
	"linear_cross_entropy_grads": func(n *graph.Node) int64 { return linearLoss(n.In[1], n.In[2], 6, 28) },

	// Every output element of a convolution is a product over the kernel's window and channels.
	"conv2d":             func(n *graph.Node) int64 { return 2 * numel(n.Out[0]) * window(n.In[1]) },
	"conv2d_grad_x":      func(n *graph.Node) int64 { return 2 * numel(n.In[0]) * window(n.In[1]) },
	"conv2d_grad_w":      func(n *graph.Node) int64 { return 2 * numel(n.In[0]) * window(n.Out[0]) },
	"conv2d_grad_w_wide": func(n *graph.Node) int64 { return 2 * numel(n.In[0]) * window(n.Out[0]) },

	"max_pool":      func(n *graph.Node) int64 { return pooled(n, n.Out[0]) },
	"avg_pool":      func(n *graph.Node) int64 { return pooled(n, n.Out[0]) },
	"max_pool_grad": func(n *graph.Node) int64 { return numel(n.In[0]) },
	"avg_pool_grad": func(n *graph.Node) int64 { return pooled(n, n.In[0]) },

	// Two products over the scores forward, five backward; a causal mask leaves about half of them.
	"attention_joint":      func(n *graph.Node) int64 { return 2 * scores(n, n.Out[0], n.Out[0]) },
	"attention_joint_grad": func(n *graph.Node) int64 { return 5 * scores(n, n.In[0], n.In[0]) },

	"attention":      func(n *graph.Node) int64 { return 2 * scores(n, n.In[0], n.In[1]) },
	"attention_grad": func(n *graph.Node) int64 { return 5 * scores(n, n.In[1], n.In[2]) },
}

func numel(v *graph.Value) int64 { return int64(v.Shape.Numel()) }

// linearLoss is the arithmetic of products of x and w, so many for each pair of their elements, and of each logit.
func linearLoss(x, w *graph.Value, products, logit int64) int64 {
	return numel(x)*int64(w.Shape[0])*products + numel(x)/int64(w.Shape[1])*int64(w.Shape[0])*logit
}

// window is the number of elements of w[O,C,KH,KW] that make one output.
func window(w *graph.Value) int64 { return numel(w) / int64(w.Shape[0]) }

func pooled(n *graph.Node, v *graph.Value) int64 {
	a := n.Attrs.(graph.PoolAttrs)
	return numel(v) * int64(a.KH*a.KW)
}

// scores is the arithmetic of one product over the scores of q[B,T,H,D] and k[B,S,G,D].
func scores(n *graph.Node, q, k *graph.Value) int64 {
	t, s := int64(q.Shape[1]), int64(k.Shape[1])
	seen := t * s
	causal := false
	switch a := n.Attrs.(type) {
	case graph.AttentionAttrs:
		causal = a.Causal
	case graph.JointAttentionAttrs:
		causal = a.Causal
	}
	if causal {
		seen = causalPairs(t, s)
	}
	return 2 * seen * int64(q.Shape[0]*q.Shape[2]*q.Shape[3])
}

// causalPairs counts the pairs of t queries and s keys with key <= query + s - t.
func causalPairs(t, s int64) int64 {
	first := s - t + 1 // keys that query 0 sees
	skip := max(0, 1-first)
	n := t - skip
	return n * (max(first, 1) + s) / 2
}

// flopsString prints arithmetic with a unit.
func flopsString(n int64) string {
	switch {
	case n >= 1e12:
		return fmt.Sprintf("%.2f TFLOP", float64(n)/1e12)
	case n >= 1e9:
		return fmt.Sprintf("%.2f GFLOP", float64(n)/1e9)
	case n >= 1e6:
		return fmt.Sprintf("%.2f MFLOP", float64(n)/1e6)
	case n >= 1e3:
		return fmt.Sprintf("%.2f kFLOP", float64(n)/1e3)
	}
	return fmt.Sprintf("%d FLOP", n)
}

// bytesString prints a size in binary units.
func bytesString(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.2f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	case n >= 1<<10:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%d B", n)
}

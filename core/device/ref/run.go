package ref

import (
	"fmt"

	"starling/core/graph"
	"starling/core/tensor"
)

// Feeds are the values of a graph's inputs and parameters, by name.
type Feeds map[string]*graph.Array

// Run computes a graph in float64 and returns its outputs by name. Nothing is rounded on the way, except by cast and to the
// half types.
// Feeds must hold every input and parameter under its name, with the graph's shape.
func Run(g *graph.Graph, feeds Feeds) (map[string]*graph.Array, error) {
	values := map[*graph.Value]*graph.Array{}
	for _, n := range g.Nodes {
		switch a := n.Attrs.(type) {
		case graph.InputAttrs:
			if err := feed(values, n, "input "+a.Name, feeds[a.Name]); err != nil {
				return nil, err
			}
		case graph.ParamAttrs:
			if err := feed(values, n, "parameter "+a.Name, feeds[a.Name]); err != nil {
				return nil, err
			}
		default:
			in := make([]*graph.Array, len(n.In))
			for i, v := range n.In {
				in[i] = values[v]
			}
			for i, y := range n.Op.Ref(n, in) {
				if d := y.DType; d == tensor.BF16 || d == tensor.F16 {
					for k, v := range y.Data {
						y.Data[k] = graph.Round(d, v)
					}
				}
				values[n.Out[i]] = y
			}
		}
	}
	out := make(map[string]*graph.Array, len(g.Outputs))
	for _, o := range g.Outputs {
		out[o.Name] = values[o.Value]
	}
	return out, nil
}

func feed(values map[*graph.Value]*graph.Array, n *graph.Node, what string, a *graph.Array) error {
	v := n.Out[0]
	switch {
	case a == nil:
		return fmt.Errorf("ref: no value for %s", what)
	case !a.Shape.Equal(v.Shape) || len(a.Data) != v.Shape.Numel():
		return fmt.Errorf("ref: the value for %s is %v with %d elements, the graph has %v", what, a.Type, len(a.Data), v.Type)
	}
	values[v] = a
	return nil
}

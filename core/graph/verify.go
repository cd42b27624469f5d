package graph

import (
	"fmt"
)

// Verify checks a graph: every use has an earlier definition in the same graph, values are numbered without
// repetition, types are what the shape rules say, names of inputs, parameters and outputs are unique, outputs exist,
// and no two draws of the forward pass share a key. The first violation is an error that names the node.
func Verify(g *Graph) error {
	v := verifier{
		defined: map[*Value]bool{}, ids: map[int]bool{},
		names: map[string]bool{}, keys: map[uint64]bool{},
	}
	for i, n := range g.Nodes {
		if n == nil || n.Op == nil {
			return fmt.Errorf("node %d has no operation", i)
		}
		if err := v.node(n); err != nil {
			return &Error{Pos: n.Pos, Block: n.Block, Op: n.Op.Name, Msg: fmt.Sprintf("node %d: %v", i, err)}
		}
	}
	outputs := map[string]bool{}
	for _, o := range g.Outputs {
		if o.Value == nil || !v.defined[o.Value] {
			return fmt.Errorf("output %q is no value of the graph", o.Name)
		}
		if outputs[o.Name] {
			return fmt.Errorf("output %q is defined twice", o.Name)
		}
		outputs[o.Name] = true
	}
	return nil
}

type verifier struct {
	defined map[*Value]bool
	ids     map[int]bool
	names   map[string]bool
	keys    map[uint64]bool
}

func (v *verifier) node(n *Node) error {
	for i, in := range n.In {
		if in == nil || !v.defined[in] {
			return fmt.Errorf("input %d (%v) is not defined before it", i, in)
		}
	}
	types, err := n.Op.Infer(n.In, n.Attrs)
	if err != nil {
		return err
	}
	if len(types) != len(n.Out) {
		return fmt.Errorf("has %d results, its rule gives %d", len(n.Out), len(types))
	}
	for i, out := range n.Out {
		switch {
		case out.Def != n || out.Index != i:
			return fmt.Errorf("result %d (%v) belongs to another node", i, out)
		case v.ids[out.ID]:
			return fmt.Errorf("result %d has the number of another value, %v", i, out)
		case out.DType != types[i].DType || !out.Shape.Equal(types[i].Shape):
			return fmt.Errorf("result %d is %v, its rule gives %v", i, out.Type, types[i])
		}
		v.defined[out], v.ids[out.ID] = true, true
	}
	switch a := n.Attrs.(type) {
	case InputAttrs:
		return v.name("input " + a.Name)
	case ParamAttrs:
		return v.name("parameter " + a.Name)
	case DropoutAttrs:
		if n.Phase == Forward && v.keys[a.Key] {
			return fmt.Errorf("its key %#x is that of an earlier draw", a.Key)
		}
		v.keys[a.Key] = true
	}
	return nil
}

func (v *verifier) name(s string) error {
	if v.names[s] {
		return fmt.Errorf("%s is defined twice", s)
	}
	v.names[s] = true
	return nil
}

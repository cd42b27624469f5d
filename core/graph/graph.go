package graph

import (
	"fmt"

	"starling/core/tensor"
)

// Position is where in a recipe a node was made, with the calls that led there.
type Position struct {
	File      string
	Line, Col int
	// Callers are the enclosing calls, innermost first, without this position itself.
	Callers []Position
}

// String prints file:line:col, or "" for a node that no recipe made.
func (p Position) String() string {
	switch {
	case p.File == "":
		return ""
	case p.Col == 0:
		return fmt.Sprintf("%s:%d", p.File, p.Line)
	}
	return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Col)
}

// Type is what a value is: element type and static shape.
type Type struct {
	DType tensor.DType
	Shape tensor.Shape
}

// String prints f32[8,64].
func (t Type) String() string { return t.DType.String() + t.Shape.String() }

// Bytes is the memory of one value of this type.
func (t Type) Bytes() int64 { return int64(t.Shape.Numel()) * int64(t.DType.Size()) }

// Value is one result of a node: assigned once, used any number of times.
type Value struct {
	Type
	ID    int   // unique in its graph, ascending in the order of definition
	Def   *Node // the node that makes it
	Index int   // which of the node's results it is
}

// String prints %7.
func (v *Value) String() string { return fmt.Sprintf("%%%d", v.ID) }

// Node is one operation. Attrs has the type that the operation's entry names.
type Node struct {
	Op    *Op
	In    []*Value
	Out   []*Value
	Attrs any
	Pos   Position
	Block string // path of the enclosing blocks, such as "h.0.mlp"; "" outside any
	// Phase tells the backward pass's nodes from the forward pass's.
	Phase Phase
}

// Phase is the part of a step that a node belongs to.
type Phase uint8

// The phases of a step.
const (
	Forward Phase = iota
	Backward
)

// Output is a named result of a graph.
type Output struct {
	Name  string
	Value *Value
}

// Graph is a list of nodes in an order in which every use follows its definition.
// Inputs and parameters are nodes like any other (operations "input" and "param").
type Graph struct {
	Nodes   []*Node
	Outputs []Output
	nextID  int
}

// Inputs returns the input nodes in order of definition.
func (g *Graph) Inputs() []*Node { return g.byOp("input") }

// Params returns the parameter nodes in order of definition.
func (g *Graph) Params() []*Node { return g.byOp("param") }

func (g *Graph) byOp(name string) []*Node {
	var out []*Node
	for _, n := range g.Nodes {
		if n.Op.Name == name {
			out = append(out, n)
		}
	}
	return out
}

// Input returns the input of that name, or nil.
func (g *Graph) Input(name string) *Value {
	for _, n := range g.Inputs() {
		if n.Attrs.(InputAttrs).Name == name {
			return n.Out[0]
		}
	}
	return nil
}

// Output returns the output of that name, or nil.
func (g *Graph) Output(name string) *Value {
	for _, o := range g.Outputs {
		if o.Name == name {
			return o.Value
		}
	}
	return nil
}

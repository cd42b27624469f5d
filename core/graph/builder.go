package graph

import (
	"errors"
	"fmt"
	"strings"
)

// Error is a mistake in a model, with the place in the recipe that made it.
type Error struct {
	Pos   Position
	Block string
	Op    string
	Msg   string
}

// Error prints file:line:col: op: message, then the block and the calls that led there.
func (e *Error) Error() string {
	var b strings.Builder
	if p := e.Pos.String(); p != "" {
		b.WriteString(p + ": ")
	}
	if e.Op != "" {
		b.WriteString(e.Op + ": ")
	}
	b.WriteString(e.Msg)
	if e.Block != "" || len(e.Pos.Callers) > 0 {
		b.WriteString("\n    ")
		if e.Block != "" {
			b.WriteString("in block " + e.Block)
		}
		for i, c := range e.Pos.Callers {
			if i > 0 || e.Block != "" {
				b.WriteString(", ")
			}
			b.WriteString("called from " + c.String())
		}
	}
	return b.String()
}

// Builder appends nodes to a graph. Pos and Block are stamped on each new node;
// whoever traces a recipe sets them before every call.
type Builder struct {
	G     *Graph
	Pos   Position
	Block string
	Phase Phase
}

// NewBuilder starts an empty graph.
func NewBuilder() *Builder { return &Builder{G: &Graph{}} }

// Apply appends a node and returns its results. A mistake in the inputs is an *Error that
// points at the builder's position.
func (b *Builder) Apply(op *Op, attrs any, in ...*Value) ([]*Value, error) {
	types, err := op.Infer(in, attrs)
	if err != nil {
		var e *Error
		if errors.As(err, &e) {
			return nil, err
		}
		return nil, &Error{Pos: b.Pos, Block: b.Block, Op: op.Name, Msg: err.Error()}
	}
	n := &Node{Op: op, In: in, Attrs: attrs, Pos: b.Pos, Block: b.Block, Phase: b.Phase}
	for i, t := range types {
		n.Out = append(n.Out, &Value{Type: t, ID: b.G.nextID, Def: n, Index: i})
		b.G.nextID++
	}
	b.G.Nodes = append(b.G.Nodes, n)
	return n.Out, nil
}

// Must is Apply for transforms whose inputs are already known to be right, such as gradient rules: an error
// there is a broken invariant and panics.
func (b *Builder) Must(op *Op, attrs any, in ...*Value) []*Value {
	out, err := b.Apply(op, attrs, in...)
	if err != nil {
		panic(fmt.Sprintf("graph: broken invariant: %v", err))
	}
	return out
}

// Output names a result of the graph.
func (b *Builder) Output(name string, v *Value) {
	b.G.Outputs = append(b.G.Outputs, Output{name, v})
}

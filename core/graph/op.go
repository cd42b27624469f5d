package graph

import (
	"fmt"
	"slices"
)

// Op is one entry of the table of operations.
type Op struct {
	Name string
	// Doc says in one line what the operation computes.
	Doc string
	// Infer returns the types of the results, or what is wrong with the inputs. The
	// message speaks of shapes; the builder adds the position and the block.
	Infer func(in []*Value, attrs any) ([]Type, error)
	// Grad returns, for each input, the gradient that flows into it (nil where none does),
	// built from other operations. dout has one entry for each result, nil where the loss does
	// not depend on it. Nil means that the operation has no gradient.
	Grad func(b *Builder, n *Node, dout []*Value) []*Value
	// Ref computes the results in float64 (integers are held exactly). It is the oracle
	// of every kernel and every pass.
	Ref func(n *Node, in []*Array) []*Array
	// View marks an operation whose result is its first input's memory under another shape.
	View bool
	// InPlace says that result 0 may be written over input 0, or over any other one input of exactly its type:
	// its element i depends on element i alone of every input of that type. Updates of optimizers renew
	// several inputs at once, as their Doc says.
	InPlace bool
	// Accumulates says that kernels can continue the sum already in result 0 (used for the
	// products that make weight gradients); the chain of additions is part of the contract.
	Accumulates bool
}

// Array is a value of the float64 reference.
type Array struct {
	Type
	Data []float64 // row-major
}

// NewArray returns zeros of type t.
func NewArray(t Type) *Array { return &Array{t, make([]float64, t.Shape.Numel())} }

var ops = map[string]*Op{}

// register adds an entry; it is called from this package's variable declarations only.
func register(op Op) *Op {
	if _, dup := ops[op.Name]; dup {
		panic("graph: operation " + op.Name + " registered twice")
	}
	infer := op.Infer
	op.Infer = func(in []*Value, attrs any) ([]Type, error) {
		types, err := infer(in, attrs)
		if err != nil {
			return nil, err
		}
		for _, t := range types {
			if err := checkType(t); err != nil {
				return nil, err
			}
		}
		return types, nil
	}
	p := &op
	ops[op.Name] = p
	return p
}

// Lookup returns the operation of that name.
func Lookup(name string) (*Op, error) {
	if op, ok := ops[name]; ok {
		return op, nil
	}
	return nil, fmt.Errorf("unknown operation %q", name)
}

// Names returns the names of all operations, sorted.
func Names() []string {
	names := make([]string, 0, len(ops))
	for n := range ops {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

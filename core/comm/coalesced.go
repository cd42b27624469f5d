package comm

import (
	"context"
	"fmt"
)

// PrepareAllReduceList prepares the sum of several vectors over the members, in place, as one collective: small tensors
// then cost one exchange together instead of one each. The order of addition is that of AllReduce.
func (g *Group) PrepareAllReduceList(label string, list [][]float32) (*Collective, error) {
	n := 0
	for _, x := range list {
		n += len(x)
	}
	packed := make([]float32, n)
	red, err := NewReduction(g.Size(), Assign(g.Size(), g.Size()))
	if err != nil {
		return nil, err
	}
	c, err := g.PrepareAllReduceTree(label, red, [][]float32{packed}, packed)
	if err != nil {
		return nil, err
	}
	lengths := make([]int, len(list))
	for i, x := range list {
		lengths[i] = len(x)
	}
	c.h.call.Detail = detail(c.h.call.Detail, lengths)
	c.before = func() {
		at := 0
		for _, x := range list {
			at += copy(packed[at:], x)
		}
	}
	c.after = func() {
		at := 0
		for _, x := range list {
			at += copy(x, packed[at:])
		}
	}
	return c, nil
}

// AllReduceList is PrepareAllReduceList and Run.
func (g *Group) AllReduceList(ctx context.Context, label string, list [][]float32) error {
	c, err := g.PrepareAllReduceList(label, list)
	if err != nil {
		return fmt.Errorf("comm: all_reduce %q: %w", label, err)
	}
	return c.Run(ctx)
}

package comm

import (
	"fmt"
	"strings"

	"starling/core/comm/mesh"
)

// NewAxisGroup makes the group of the ranks that share this rank's place on all axes but those named: the group that sums
// gradients over data, or exchanges activations over tensor.
func NewAxisGroup(t Transport, m mesh.Axes, opt Options, names ...string) (*Group, error) {
	for i, x := range m {
		if x.Size < 1 {
			return nil, fmt.Errorf("comm: axis %s of the mesh %v has size %d", x.Name, m, x.Size)
		}
		for _, y := range m[:i] {
			if x.Name == y.Name {
				return nil, fmt.Errorf("comm: the mesh %v has two axes %q", m, x.Name)
			}
		}
	}
	if m.Ranks() != t.World() {
		return nil, fmt.Errorf("comm: the mesh %v has %d ranks, the job %d", m, m.Ranks(), t.World())
	}
	ranks, err := m.Peers(t.Rank(), names...)
	if err != nil {
		return nil, fmt.Errorf("comm: %w", err)
	}
	return NewGroup(t, strings.Join(names, "+"), ranks, opt)
}

package train

import "starling/core/comm/mesh"

// Axes is how the ranks are used, by what they exchange: between copies of the parameters gradients, once a step; among the ranks
// that share one copy parameters as well, several times.
func (m Mesh) Axes() mesh.Axes {
	if m.Zero == 3 && m.Shard > 0 && m.Shard < m.Data && m.Data%m.Shard == 0 {
		return mesh.Axes{{Name: "replica", Size: m.Data / m.Shard}, {Name: "shard", Size: m.Shard}}
	}
	return mesh.Axes{{Name: "data", Size: m.Data}}
}

package mesh

import (
	"fmt"
	"strings"
)

// Axis is one dimension of a device mesh, such as data, tensor or pipeline.
type Axis struct {
	Name string
	Size int
}

// Axes is a device mesh: the ranks of a transport in row-major order over its axes, the last one nearest.
type Axes []Axis

// Ranks returns how many ranks the mesh has.
func (a Axes) Ranks() int {
	n := 1
	for _, x := range a {
		n *= x.Size
	}
	return n
}

// Coordinate returns where a rank is on every axis.
func (a Axes) Coordinate(rank int) []int {
	out := make([]int, len(a))
	for i := len(a) - 1; i >= 0; i-- {
		out[i] = rank % a[i].Size
		rank /= a[i].Size
	}
	return out
}

// Peers returns the ranks that differ from rank on the named axes at most, itself included, ascending.
func (a Axes) Peers(rank int, names ...string) ([]int, error) {
	free := make([]bool, len(a))
	for _, name := range names {
		found := false
		for i, x := range a {
			if x.Name == name {
				free[i], found = true, true
			}
		}
		if !found {
			return nil, fmt.Errorf("the mesh %v has no axis %q", a, name)
		}
	}
	at := a.Coordinate(rank)
	var out []int
	for r := range a.Ranks() {
		same := true
		for i, c := range a.Coordinate(r) {
			same = same && (free[i] || c == at[i])
		}
		if same {
			out = append(out, r)
		}
	}
	return out, nil
}

// String prints the mesh as data=2×tensor=4.
func (a Axes) String() string {
	s := make([]string, len(a))
	for i, x := range a {
		s[i] = fmt.Sprintf("%s=%d", x.Name, x.Size)
	}
	return strings.Join(s, "×")
}

package comm

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
)

// Gathering is a gather that was started of values whose number differs between members.
type Gathering[T any] struct {
	*Handle
	g     *Group
	parts [][]byte
	read  func(from int, b []byte) ([]T, error)
}

// Values waits for the gather and returns every member's values, by position, freshly allocated; nil on a member that gets none.
// It aborts the group if ctx ends first.
func (x *Gathering[T]) Values(ctx context.Context) ([][]T, error) {
	if err := x.g.wait(ctx, x.Handle); err != nil || x.parts == nil {
		return nil, err
	}
	out := make([][]T, len(x.parts))
	for m, b := range x.parts {
		var err error
		if out[m], err = x.read(m, b); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func asBytes(_ int, b []byte) ([]byte, error) { return b, nil }

// StartAllGatherBytes starts the gather of every member's bytes on every member; lengths may differ. mine must stay as it is until
// the gather is over. It is for metrics and other small things.
func (g *Group) StartAllGatherBytes(label string, mine []byte) *Gathering[byte] {
	return startAllGather(g, label, mine, asBytes)
}

func startAllGather[T any](g *Group, label string, mine []byte, read func(int, []byte) ([]T, error)) *Gathering[T] {
	x := &Gathering[T]{g: g, read: read}
	x.start(Call{Op: OpAllGatherBytes, Label: label, Bytes: -1}, mine, -1, func(r *run) (err error) {
		x.parts, err = r.gatherBytes(mine, r.others, r.others)
		return err
	})
	return x
}

// StartGather starts the gather of every member's bytes on root; lengths may differ. mine must stay as it is until it is over.
func (g *Group) StartGather(label string, root int, mine []byte) *Gathering[byte] {
	x := &Gathering[byte]{g: g, read: asBytes}
	if err := g.checkRoot(root); err != nil {
		x.Handle = badCall(OpGather, label, "%v", err)
		return x
	}
	x.start(Call{Op: OpGather, Label: label, Bytes: -1, Detail: detail(root)}, mine, root, func(r *run) (err error) {
		if g.self == root {
			x.parts, err = r.gatherBytes(mine, nil, r.others)
		} else {
			_, err = r.gatherBytes(mine, []int{root}, nil)
		}
		return err
	})
	return x
}

// start starts the gather on root, or on every member if root is negative.
func (x *Gathering[T]) start(call Call, mine []byte, root int, body func(*run) error) {
	if len(mine) > maxGather {
		x.Handle = badCall(call.Op, call.Label, "%d bytes; at most %d can be gathered", len(mine), maxGather)
		return
	}
	c := x.g.prepare(call, body)
	c.local, c.brief = x.g.gatherShared(root, mine, &x.parts), true
	x.Handle = c.Start()
}

// StartAllGatherFloat64 starts the gather of every member's values on every member; counts may differ. mine is free at once.
func (g *Group) StartAllGatherFloat64(label string, mine []float64) *Gathering[float64] {
	return startAllGather64(g, label, mine, math.Float64bits, math.Float64frombits)
}

// StartAllGatherInt64 is StartAllGatherFloat64 for whole numbers.
func (g *Group) StartAllGatherInt64(label string, mine []int64) *Gathering[int64] {
	return startAllGather64(g, label, mine, func(v int64) uint64 { return uint64(v) }, func(v uint64) int64 { return int64(v) })
}

func startAllGather64[T any](g *Group, label string, mine []T, to func(T) uint64, from func(uint64) T) *Gathering[T] {
	b := make([]byte, 0, 8*len(mine))
	for _, v := range mine {
		b = binary.LittleEndian.AppendUint64(b, to(v))
	}
	return startAllGather(g, label, b, func(m int, b []byte) ([]T, error) {
		if len(b)%8 != 0 {
			return nil, fmt.Errorf("comm: all_gather_bytes %q: rank %d sent %d bytes where 8-byte values were expected", label, g.ranks[m], len(b))
		}
		out := make([]T, len(b)/8)
		for i := range out {
			out[i] = from(binary.LittleEndian.Uint64(b[8*i:]))
		}
		return out, nil
	})
}

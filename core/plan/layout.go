package plan

import (
	"cmp"
	"fmt"
	"slices"

	"starling/core/comm"
	"starling/core/device"
	"starling/core/graph"
	"starling/core/tensor"
)

// layOut gives every parameter, slot and accumulator its place.
func (p *Plan) layOut(st *State) error {
	for _, n := range st.Graph.Params() {
		p.Params = append(p.Params, Param{ParamAttrs: n.Attrs.(graph.ParamAttrs), Block: n.Block, Pos: n.Pos, Unit: -1,
			Whole: n.Out[0].Type, Owned: comm.Range{Hi: n.Out[0].Shape.Numel()}, Place: device.Operand{Space: device.Params}})
	}
	slices.SortFunc(p.Params, func(a, b Param) int { return cmp.Compare(a.Name, b.Name) })
	for i := range p.Params {
		q := &p.Params[i]
		p.params[q.Name] = i
		q.Place.Type = p.Settings.used(q.Whole, q.Buffer)
	}
	if len(p.Units) > 0 {
		p.placeUnits()
	} else {
		for i := range p.Params {
			q := &p.Params[i]
			q.Place.Offset = p.alloc(device.Params, q.Place.Bytes())
		}
	}
	for i := range p.Params {
		q := &p.Params[i]
		q.Exact = q.OwnedPlace()
		if p.Settings.half() && !q.Buffer {
			t := q.ownedType()
			q.Exact = device.Operand{Type: t, Space: device.State, Offset: p.alloc(device.State, t.Bytes())}
		}
	}
	p.placeGrads()
	return p.placeState()
}

// placeUnits lays the units out in Params, whole or this rank's chunk of them.
func (p *Plan) placeUnits() {
	for _, u := range p.Units {
		n := u.Elements
		if u.Sharded {
			n = u.Held.Len()
		}
		u.Place = device.Operand{Type: p.vector(u, n), Space: device.Params}
		u.Place.Offset = p.alloc(device.Params, u.Place.Bytes())
		for _, m := range u.Members {
			q := p.Param(m.Param)
			q.Unit, q.Sharded = u.Index, u.Sharded
			for r := range p.Settings.World {
				q.Shares = append(q.Shares, u.share(m, r))
			}
			q.Owned = q.Shares[p.Settings.Rank]
			if !u.Sharded {
				q.Place = p.memberPlace(u.Place, u, q)
				continue
			}
			q.Held = within(u.Held, m)
			q.Place = device.Operand{Type: p.Settings.used(q.partType(q.Held.Len()), u.Buffers), Space: device.Params, Offset: u.Place.Offset}
			if q.Held.Len() > 0 {
				q.Place.Offset += int64(m.At+q.Held.Lo-u.Held.Lo) * int64(q.Place.DType.Size())
			}
		}
	}
}

func inBlock(block string) string {
	if block == "" {
		return ""
	}
	return " (block " + block + ")"
}

// placeGrads lays the accumulators out in the order of the buckets, and finds this rank's part of each sum.
func (p *Plan) placeGrads() {
	for i := range p.Buckets {
		b := &p.Buckets[i]
		p.ArenaBytes[device.Grads] = max(p.ArenaBytes[device.Grads], b.Place.Offset+aligned(b.Place.Bytes()))
		if b.Unit >= 0 {
			p.placeSum(b)
		}
		at := b.Place.Offset
		for _, gr := range b.Grads {
			q := p.Param(gr.Param)
			for len(q.Uses) <= gr.Use {
				q.Uses = append(q.Uses, device.Operand{})
				q.Reduced = append(q.Reduced, device.Operand{})
			}
			use := device.Operand{Type: q.Whole, Space: device.Grads, Offset: at}
			part := use
			if b.Unit >= 0 {
				use, part = p.placesIn(b, q)
			}
			q.Uses[gr.Use], q.Reduced[gr.Use] = use, part
			p.grads[gr.Output()], p.reduced[gr.Output()], p.bucketOf[gr.Output()] = use, part, i
			at += aligned(use.Bytes())
		}
	}
}

// placeSum gives this rank's chunk of a bucket's sum its place: over the bucket itself, whose memory is free once it is
// summed, or where gradients are sharded in Sums.
func (p *Plan) placeSum(b *Bucket) {
	c := p.Units[b.Unit].Chunks[p.Settings.Rank]
	b.Sum = device.Operand{Type: p.gradVector(c.Len()), Space: device.Grads, Offset: b.Place.Offset + 4*int64(c.Lo)}
	if p.Rounds != nil {
		b.Sum.Space, b.Sum.Offset = device.Sums, p.alloc(device.Sums, b.Sum.Bytes())
	}
}

// placesIn are the places of a parameter's gradient in a bucket, whole, and of this rank's part in the bucket's sum.
func (p *Plan) placesIn(b *Bucket, q *Param) (use, part device.Operand) {
	u := p.Units[b.Unit]
	m := u.memberOf(q.Name)
	use = device.Operand{Type: q.Whole, Space: device.Grads, Offset: b.Place.Offset + 4*int64(m.At)}
	part = device.Operand{Type: q.ownedType(), Space: b.Sum.Space, Offset: b.Sum.Offset}
	if q.Owned.Len() > 0 {
		part.Offset += 4 * int64(m.At+q.Owned.Lo-u.Chunks[p.Settings.Rank].Lo)
	}
	return use, part
}

func (p *Plan) gradVector(n int) graph.Type {
	return graph.Type{DType: tensor.F32, Shape: tensor.Shape{n}}
}

// placeState asks the optimizer for every trained parameter's update and lays its slots out, all of one name together.
func (p *Plan) placeState() error {
	var names []string
	for i := range p.Params {
		q := &p.Params[i]
		if !q.Trained() {
			continue
		}
		if q.Buffer {
			q.update = p.Settings.averaged(q)
			continue
		}
		u, err := p.Settings.Update(q.ParamAttrs)
		if err != nil {
			return fmt.Errorf("optimizer for parameter %s%s: %w", q.Name, inBlock(q.Block), err)
		}
		if u.Op == nil && !u.External || u.Group < 0 {
			return fmt.Errorf("optimizer for parameter %s%s: the update has no operation or a negative group", q.Name, inBlock(q.Block))
		}
		q.update, q.Group = u, u.Group
		p.Groups = max(p.Groups, u.Group+1)
		for _, s := range u.Slots {
			q.Slots = append(q.Slots, SlotPlace{Slot: s, Key: q.Name + "/" + s.Name})
			if !slices.Contains(names, s.Name) {
				names = append(names, s.Name)
			}
		}
	}
	for _, name := range names {
		for i := range p.Params {
			q := &p.Params[i]
			for k := range q.Slots {
				if s := &q.Slots[k]; s.Name == name {
					t := s.of(q.ownedType())
					if s.Own && q.updated() {
						t.Shape = append(tensor.Shape{}, s.Shape...)
					}
					s.Place = device.Operand{Type: t, Space: device.State, Offset: p.alloc(device.State, t.Bytes())}
				}
			}
		}
	}
	return nil
}

// alloc appends bytes to an arena and returns their offset.
func (p *Plan) alloc(space device.Space, bytes int64) int64 {
	at := p.ArenaBytes[space]
	p.ArenaBytes[space] += aligned(bytes)
	return at
}

func (p *Plan) allocIO(t graph.Type) device.Operand {
	return device.Operand{Type: t, Space: device.IO, Offset: p.alloc(device.IO, t.Bytes())}
}

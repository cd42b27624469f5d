package plan

import (
	"cmp"
	"slices"
)

// block is a piece of the Work arena that holds one value, from the instruction that writes it to the last one that reads it,
// both included.
type block struct {
	bytes      int64 // a multiple of the alignment
	start, end int   // instruction indices
	offset     int64 // the result
}

func (b *block) overlaps(o *block) bool { return b.start <= o.end && o.start <= b.end }

// placeBlocks gives every block an offset such that blocks that live at the same time are disjoint, and returns the extent. It
// places greedily, each block into the smallest gap that holds it, in several orders, and keeps the best: large
// ones first, those that take the most memory for the longest time first, and in the order of time. Finding the
// least extent is hard; leastBytes bounds it from below.
func placeBlocks(blocks []*block) int64 {
	orders := []func(a, b *block) int{
		func(a, b *block) int { return cmp.Or(cmp.Compare(b.bytes, a.bytes), a.start-b.start) },
		func(a, b *block) int {
			return cmp.Or(cmp.Compare(b.bytes*int64(1+b.end-b.start), a.bytes*int64(1+a.end-a.start)), a.start-b.start)
		},
		func(a, b *block) int { return cmp.Or((b.end-b.start)-(a.end-a.start), cmp.Compare(b.bytes, a.bytes)) },
		func(a, b *block) int { return cmp.Or(a.start-b.start, cmp.Compare(b.bytes, a.bytes)) },
	}
	best := int64(-1)
	least, _ := leastBytes(blocks)
	offsets := make([]int64, len(blocks))
	for _, order := range orders {
		sorted := slices.Clone(blocks)
		slices.SortStableFunc(sorted, order)
		if total := placeInOrder(sorted); best < 0 || total < best {
			best = total
			for i, b := range blocks {
				offsets[i] = b.offset
			}
		}
		if best == least {
			break
		}
	}
	for i, b := range blocks {
		b.offset = offsets[i]
	}
	return best
}

// placeInOrder places blocks one after another, each into the smallest gap between those that it overlaps in time.
func placeInOrder(blocks []*block) (total int64) {
	var placed []*block // by offset
	for _, b := range blocks {
		gap, at := int64(-1), int64(0)
		end := int64(0) // first byte behind all blocks looked at
		for _, p := range placed {
			if !b.overlaps(p) {
				continue
			}
			if free := p.offset - end; free >= b.bytes && (gap < 0 || free < gap) {
				gap, at = free, end
			}
			end = max(end, p.offset+p.bytes)
		}
		if gap < 0 {
			at = end
		}
		b.offset = at
		total = max(total, at+b.bytes)
		i, _ := slices.BinarySearchFunc(placed, at, func(p *block, at int64) int { return cmp.Compare(p.offset, at) })
		placed = slices.Insert(placed, i, b)
	}
	return total
}

// leastBytes is the most memory that lives at any one time, and when that is first: no placement needs less.
func leastBytes(blocks []*block) (peak int64, when int) {
	type event struct {
		at    int
		bytes int64
	}
	var events []event
	for _, b := range blocks {
		events = append(events, event{b.start, b.bytes}, event{b.end + 1, -b.bytes})
	}
	slices.SortFunc(events, func(a, b event) int { return cmp.Or(a.at-b.at, cmp.Compare(a.bytes, b.bytes)) })
	live := int64(0)
	for _, e := range events {
		if live += e.bytes; live > peak {
			peak, when = live, e.at
		}
	}
	return peak, when
}

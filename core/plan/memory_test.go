package plan

import (
	"testing"

	"pgregory.net/rapid"

	"starling/core/device"
)

// Whatever lives when: blocks that live at the same time are disjoint and aligned, the extent is what they reach, and no
// less than must live at once.
func TestBlocksNeverShareMemory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		blocks := make([]*block, rapid.IntRange(0, 40).Draw(t, "blocks"))
		for i := range blocks {
			start := rapid.IntRange(0, 30).Draw(t, "start")
			blocks[i] = &block{
				bytes: aligned(rapid.Int64Range(0, 5000).Draw(t, "bytes")),
				start: start, end: start + rapid.IntRange(0, 12).Draw(t, "life"),
			}
		}
		total := max(placeBlocks(blocks), 0)
		var reach int64
		for i, a := range blocks {
			reach = max(reach, a.offset+a.bytes)
			if a.offset%64 != 0 || a.offset < 0 {
				t.Fatalf("block %d lies at %d", i, a.offset)
			}
			for j, b := range blocks[:i] {
				if a.start <= b.end && b.start <= a.end && a.offset < b.offset+b.bytes && b.offset < a.offset+a.bytes {
					t.Fatalf("blocks %d and %d share memory: %+v %+v", i, j, *a, *b)
				}
			}
		}
		if least, _ := leastBytes(blocks); reach != total || total < least {
			t.Fatalf("extent %d, blocks reach %d, at least %d live at once", total, reach, least)
		}
	})
}

// A chain of equal layers needs the memory of what lives at once and nothing on top.
func TestChainsAreTight(t *testing.T) {
	var blocks []*block
	for i := range 50 {
		blocks = append(blocks, &block{bytes: 640, start: i, end: i + 1}, &block{bytes: 64, start: i, end: 100 - i})
	}
	least, _ := leastBytes(blocks)
	if got := placeBlocks(blocks); got != least {
		t.Errorf("extent %d, %d live at once", got, least)
	}
}

// On a transformer the extent is within a few percent of what no plan can do without.
func TestWorkIsNearItsBound(t *testing.T) {
	p := mustBuild(t, gpt(t, gptSize{B: 8, T: 64, C: 96, V: 256, Layers: 3, Heads: 4}, true), settings(1, 0))
	s := p.Summary()
	if float64(s.Arenas[device.Work]) > 1.05*float64(s.LeastWorkBytes) {
		t.Errorf("work is %d bytes, the bound %d", s.Arenas[device.Work], s.LeastWorkBytes)
	}
}

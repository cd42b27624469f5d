package plan

import (
	"slices"
	"testing"

	"starling/core/device"
	"starling/core/device/ref"
	"starling/core/graph"
	"starling/core/tensor"
)

// wideGPT has activations that are worth a copy.
var wideGPT = gptSize{B: 4, T: 32, C: 64, V: 20, Layers: 6, Heads: 2}

func TestActivationsThatWaitOffTheDeviceSaveMemory(t *testing.T) {
	g := gpt(t, wideGPT, true)
	work := func(r Recompute, half tensor.DType, off bool, world, zero int) (int64, int64) {
		s := settings(world, 0)
		s.Recompute, s.Half, s.OffloadActivations, s.Zero = r, half, off, zero
		p := mustBuild(t, g, s)
		return p.ArenaBytes[device.Work], p.ArenaBytes[device.Offload]
	}
	for _, half := range []tensor.DType{tensor.F32, tensor.BF16} {
		for _, r := range []Recompute{{}, {All: true}, {Every: 2}} {
			for _, zero := range []int{0, 3} {
				kept, none := work(r, half, false, 2, zero)
				left, away := work(r, half, true, 2, zero)
				if none != 0 || away == 0 || left >= kept {
					t.Errorf("%v, %+v, zero %d: %d bytes of work with %d bytes off the device, %d without", half, r, zero, left, away, kept)
				}
			}
		}
		kept, _ := work(Recompute{}, half, false, 1, 0)
		left, away := work(Recompute{}, half, true, 1, 0)
		if float64(left) > 0.6*float64(kept) || left+away < kept/2 {
			t.Errorf("%v: %d bytes of work with %d bytes off the device, want at most 60%% of the %d without", half, left, away, kept)
		}
	}
}

// What comes back is what left: three steps give the same weights, bit for bit, and nothing else is read in Work that was not written.
func TestOffloadingActivationsChangesNoBit(t *testing.T) {
	size := gptSize{B: 4, T: 16, C: 64, V: 12, Layers: 3, Heads: 2}
	g := gpt(t, size, true)
	weights := func(off bool, r Recompute) (out []*graph.Array) {
		s := settings(1, 0)
		s.MicroBatches, s.Lanes, s.OffloadActivations, s.Recompute = 2, 2, off, r
		w := newWorld(t, g, s)
		if copies := countKind(w.ranks[0].plan.Segments[SegmentMicro], device.Copy); (copies > 0) != off {
			t.Fatalf("offload %v: %d copies", off, copies)
		}
		for range 2 {
			w.step(func(m int) ref.Feeds { return randomBatch(g, m, 12) }, testHyper, 1.0/64)
		}
		for _, q := range w.ranks[0].plan.Params {
			out = append(out, w.ranks[0].read(q.Place))
		}
		return out
	}
	want := weights(false, Recompute{})
	for _, r := range []Recompute{{}, {All: true}} {
		for i, got := range weights(true, r) {
			if !slices.Equal(got.Data, want[i].Data) {
				t.Errorf("%+v: parameter %d differs", r, i)
			}
		}
	}
}

// Every copy has as long as a block takes: between its beginning and the wait for it lie kernels, on the way out and on the way back.
func TestCopiesRunBesideKernels(t *testing.T) {
	s := settings(1, 0)
	s.OffloadActivations = true
	seg := mustBuild(t, gpt(t, wideGPT, true), s).Segments[SegmentMicro]
	var began = map[int]int64{}
	var flops int64
	for i := range seg.Instrs {
		switch in := &seg.Instrs[i]; in.Kind {
		case device.Kernel:
			flops += in.FLOPs
		case device.Copy:
			began[in.Bucket] = flops
		case device.Copied:
			if flops == began[in.Bucket] {
				t.Errorf("copy %d has nothing to run beside", in.Bucket)
			}
		}
	}
	if len(began) < 20 {
		t.Errorf("%d copies, want at least 20: ten values of a model of six blocks", len(began))
	}
}

func TestCheckFindsACopyTooLate(t *testing.T) {
	s := settings(1, 0)
	s.OffloadActivations = true
	for name, spoil := range map[string]func(seg *device.Segment, copied int){
		"a value used before it is back": func(seg *device.Segment, k int) {
			seg.Instrs = append(seg.Instrs[:k], append(seg.Instrs[k+1:], seg.Instrs[k])...)
		},
		"a copy that nobody waits for":      func(seg *device.Segment, k int) { seg.Instrs = append(seg.Instrs[:k], seg.Instrs[k+1:]...) },
		"a copy to memory that is used":     func(seg *device.Segment, k int) { seg.Instrs[k].Out[0].Offset += device.Align },
		"a copy that is waited for already": func(seg *device.Segment, k int) { seg.Instrs[k-1] = seg.Instrs[k] },
	} {
		p := mustBuild(t, gpt(t, wideGPT, true), s)
		seg := p.Segments[SegmentMicro]
		last := 0
		for i := range seg.Instrs {
			if seg.Instrs[i].Kind == device.Copied {
				last = i
			}
		}
		spoil(seg, last)
		if Check(p) == nil {
			t.Errorf("%s: the check finds nothing", name)
		}
	}
}

func countKind(seg *device.Segment, kind device.Kind) (n int) {
	for i := range seg.Instrs {
		if seg.Instrs[i].Kind == kind {
			n++
		}
	}
	return n
}

package plan

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"starling/core/device"
	"starling/core/graph"
	"starling/core/tensor"
)

// Plans whose buckets are updated as they arrive are sound at every stage, and all ranks start the same collectives of each group in the
// same order, whenever a rank comes to an update.
func TestBucketsAreUpdatedAsTheyArrive(t *testing.T) {
	size := gptSize{B: 1, T: 8, C: 64, V: 200, Layers: 4, Heads: 2}
	for _, c := range []struct{ stage, world, shard, lanes int }{{0, 2, 0, 12}, {0, 3, 0, 6}, {1, 2, 0, 12}, {1, 5, 0, 6}, {2, 3, 0, 12}, {2, 4, 0, 6}, {3, 2, 0, 12}, {3, 4, 0, 6}, {3, 4, 2, 12}} {
		want := ""
		for rank := range c.world {
			s := sharded(c.world, rank, c.stage, c.lanes)
			s.Early, s.Shard, s.BucketBytes, s.FirstBucketBytes = true, c.shard, 60<<10, 20<<10
			s.Half = []tensor.DType{tensor.F32, tensor.BF16}[c.lanes/6-1]
			s.Recompute.All = c.stage == 3
			p := mustBuild(t, gpt(t, size, true), s)
			if err := Check(p); err != nil {
				t.Fatalf("%+v, rank %d: %v", c, rank, err)
			}
			renewed, behind := 0, false // and whether a kernel follows
			groups := map[string]string{}
			starts := func(in device.Instr) {
				if in.Kind == device.Start {
					groups[in.Group] += fmt.Sprintf("%s %d\n", in.Collective, in.Bucket)
				}
			}
			for _, in := range p.Segments[SegmentMicro].Instrs {
				starts(in)
				if in.Kind == device.Renew {
					renewed++
				}
				behind = behind || renewed > 0 && in.Kind == device.Kernel
			}
			gathered := false
			for _, in := range p.Segments[SegmentUpdate].Instrs {
				starts(in)
				gathered = gathered || in.Kind == device.Start
			}
			got := fmt.Sprint(groups)
			// Where nothing is gathered afterwards, buckets are updated one by one behind it.
			if early := renewed >= len(p.Buckets)/2 && behind; early != gathered || renewed > 0 != early || gathered != (c.stage > 0 && c.stage < 3 || c.shard > 0) || len(p.Renewals) != len(p.Buckets)+1 {
				t.Errorf("%+v, rank %d: %d of %d buckets are updated beside the backward pass", c, rank, renewed, len(p.Buckets))
			}
			if want == "" {
				want = got
			}
			if got != want || got == "" {
				t.Errorf("%+v: rank %d starts\n%srank 0\n%s", c, rank, got, want)
			}
		}
	}
}

// What decides on the update from the whole gradient, or changes it outside the program, keeps the update behind the backward pass.
func TestWhatNeedsTheWholeGradientWaitsForIt(t *testing.T) {
	g := gpt(t, gptSize{B: 1, T: 8, C: 32, V: 50, Layers: 3, Heads: 2}, true)
	for name, change := range map[string]func(*Settings){
		"not asked for": func(s *Settings) { s.Early = false },
		"no overlap":    func(s *Settings) { s.NoOverlap = true },
		"clip_value":    func(s *Settings) { s.ClipValue = true },
		"one rank":      func(s *Settings) { s.World, s.Rank = 1, 0 },
		"a plugin's update": func(s *Settings) {
			own := s.Update
			s.Update = func(a graph.ParamAttrs) (Update, error) {
				u, err := own(a)
				if strings.HasPrefix(a.Name, "h.1") {
					u.Op, u.External = nil, true
				}
				return u, err
			}
		},
	} {
		s := sharded(2, 1, 1, 12)
		s.Early = true
		change(&s)
		p := mustBuild(t, g, s)
		if p.Renewals != nil || slices.ContainsFunc(p.Segments[SegmentMicro].Instrs, func(in device.Instr) bool { return in.Kind == device.Renew }) {
			t.Errorf("%s: buckets are updated as they arrive", name)
		}
	}
}

// The replay finds updates that come too soon.
func TestCheckFindsAnEarlyUpdateThatIsTooEarly(t *testing.T) {
	for _, stage := range []int{1, 3} {
		s := sharded(2, 0, stage, 12)
		if stage == 3 {
			s.World, s.Shard = 4, 2
		}
		s.Early, s.BucketBytes, s.FirstBucketBytes = true, 60<<10, 20<<10
		p := mustBuild(t, gpt(t, gptSize{B: 1, T: 8, C: 64, V: 200, Layers: 4, Heads: 2}, true), s)
		micro := p.Segments[SegmentMicro]
		at := slices.IndexFunc(micro.Instrs, func(in device.Instr) bool { return in.Kind == device.Renew })
		start := slices.IndexFunc(micro.Instrs, func(in device.Instr) bool { return in.Kind == device.Start && in.Collective != AllGather })
		in := micro.Instrs[at]
		micro.Instrs = slices.Insert(slices.Delete(slices.Clone(micro.Instrs), at, at+1), start, in)
		if err := Check(p); err == nil || !strings.Contains(err.Error(), "before the bucket has left") {
			t.Errorf("zero %d, before it has left: %v", stage, err)
		}
		// Behind its start, but before the last use of what it completes.
		micro.Instrs[start], micro.Instrs[start+1] = micro.Instrs[start+1], micro.Instrs[start]
		late := micro.Instrs[start+1]
		rest := slices.Delete(slices.Clone(micro.Instrs), start+1, start+2)
		last := p.lastReads(&device.Segment{Instrs: rest})[late.Bucket]
		if last <= start {
			continue // nothing reads it after its gradient is there
		}
		if err := Check(p); err == nil {
			t.Errorf("zero %d: an update before the last use is not found", stage)
		}
	}
}

// The replay finds figures that would travel before they are known.
func TestCheckFindsALateLoss(t *testing.T) {
	s := sharded(2, 0, 1, 12)
	s.Early, s.BucketBytes, s.FirstBucketBytes = true, 60<<10, 20<<10
	p := mustBuild(t, gpt(t, gptSize{B: 1, T: 8, C: 64, V: 200, Layers: 4, Heads: 2}, true), s)
	micro := p.Segments[SegmentMicro]
	for _, name := range []string{OutputLoss, OutputWeight} {
		// A kernel behind the first start writes where the figure lies.
		start := slices.IndexFunc(micro.Instrs, func(in device.Instr) bool { return in.Kind == device.Start && in.Collective != AllGather })
		kernel := start + slices.IndexFunc(micro.Instrs[start:], func(in device.Instr) bool { return in.Kind == device.Kernel })
		own := micro.Instrs[kernel].Out
		micro.Instrs[kernel].Out = append(slices.Clone(own), micro.Outputs[name])
		if err := checkFigures(micro, p.Announce); err == nil || !strings.Contains(err.Error(), "the "+name+" is computed after bucket 0") {
			t.Errorf("%s: %v", name, err)
		}
		micro.Instrs[kernel].Out = own
		if err := checkFigures(micro, p.Announce); err != nil {
			t.Error(err)
		}
	}
}

// The replay finds parameters that would be gathered among collectives that all ranks start at one point of the backward pass.
func TestCheckFindsAGatherInTheWrongGroup(t *testing.T) {
	s := sharded(2, 0, 1, 12)
	s.Early, s.BucketBytes, s.FirstBucketBytes = true, 60<<10, 20<<10
	p := mustBuild(t, gpt(t, gptSize{B: 1, T: 8, C: 64, V: 200, Layers: 4, Heads: 2}, true), s)
	update := p.Segments[SegmentUpdate].Instrs
	at := slices.IndexFunc(update, func(in device.Instr) bool { return in.Kind == device.Start })
	if update[at].Group != UpdatedGroup {
		t.Errorf("parameters are gathered in group %s", update[at].Group)
	}
	update[at].Group = dataGroup
	if err := Check(p); err == nil || !strings.Contains(err.Error(), "ranks would not start them in one order") {
		t.Error(err)
	}
}

package plan

import (
	"slices"
	"strings"
	"testing"

	"starling/core/device"
)

// Check finds each kind of damage that a mistake in the planner could do.
func TestCheckFindsDamage(t *testing.T) {
	find := func(p *Plan, segment string, match func(in *device.Instr) bool) int {
		t.Helper()
		i := slices.IndexFunc(p.Segments[segment].Instrs, func(in device.Instr) bool { return match(&in) })
		if i < 0 {
			t.Fatal("the plan has no such instruction")
		}
		return i
	}
	op := func(name string) func(in *device.Instr) bool {
		return func(in *device.Instr) bool { return in.Kind == device.Kernel && in.Op.Name == name }
	}
	kind := func(k device.Kind) func(in *device.Instr) bool {
		return func(in *device.Instr) bool { return in.Kind == k }
	}
	for _, c := range []struct {
		name   string
		damage func(p *Plan)
		want   string
	}{
		{"two values in one place", func(p *Plan) {
			s := p.Segments["micro"]
			i := find(p, "micro", op("gelu"))
			s.Instrs[i].Out[0].Offset = s.Instrs[i].In[0].Offset + device.Align
		}, "written over input 0"},
		{"a value overwritten before its last read", func(p *Plan) {
			s := p.Segments["micro"]
			i, j := find(p, "micro", op("attention_joint")), find(p, "micro", op("gelu"))
			s.Instrs[j].Out[0].Offset = s.Instrs[i].In[0].Offset
		}, "is expected"},
		{"instructions swapped", func(p *Plan) {
			s := p.Segments["micro"].Instrs
			i := find(p, "micro", op("gelu"))
			s[i], s[i+1] = s[i+1], s[i]
		}, "is expected"},
		{"instruction lost", func(p *Plan) {
			s := p.Segments["update"]
			s.Instrs = s.Instrs[1:]
		}, "never runs"},
		{"instruction repeated", func(p *Plan) {
			s := p.Segments["update"]
			s.Instrs = append(s.Instrs, s.Instrs[0])
		}, "runs twice"},
		{"outside the arena", func(p *Plan) {
			s := p.Segments["micro"]
			s.Instrs[find(p, "micro", op("gelu"))].Out[0].Offset = aligned(s.WorkBytes)
		}, "outside the arena"},
		{"not aligned", func(p *Plan) {
			s := p.Segments["micro"]
			s.Instrs[find(p, "micro", op("gelu"))].Out[0].Offset += 4
		}, "not aligned"},
		{"gradient that does not accumulate", func(p *Plan) {
			s := p.Segments["micro"]
			s.Instrs[find(p, "micro", op("linear_grad_w"))].Accum = false
		}, "does not add into its accumulator"},
		{"bucket that leaves too early", func(p *Plan) {
			s := p.Segments["micro"]
			i := find(p, "micro", kind(device.Fold))
			in := s.Instrs[i]
			s.Instrs = slices.Insert(slices.Delete(s.Instrs, i, i+1), 2, in)
		}, "leaves before grad"},
		{"bucket that never leaves", func(p *Plan) {
			s := p.Segments["micro"]
			i := find(p, "micro", kind(device.Start))
			s.Instrs = slices.Delete(s.Instrs, i, i+1)
		}, "started is false"},
		{"bucket used before it has come", func(p *Plan) {
			s := p.Segments["norm"]
			i := find(p, "norm", kind(device.Wait))
			s.Instrs = slices.Delete(s.Instrs, i, i+1)
		}, "before it was waited for"},
		{"parameters that overlap", func(p *Plan) { p.Params[1].Place.Offset = p.Params[0].Place.Offset }, "share memory"},
	} {
		p := mustBuild(t, gpt(t, tinyGPT, true), settings(2, 0))
		c.damage(p)
		if err := Check(p); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v\n   want %s", c.name, err, c.want)
		}
	}
}

// And each kind that sharding adds: parameters that are not there yet, memory that is still on its way.
func TestCheckFindsDamageToShardedPlans(t *testing.T) {
	size := gptSize{B: 1, T: 4, C: 64, V: 70, Layers: 3, Heads: 2}
	find := func(p *Plan, segment string, k device.Kind, collective string, from int) int {
		t.Helper()
		for i, in := range p.Segments[segment].Instrs {
			if i >= from && in.Kind == k && in.Collective == collective {
				return i
			}
		}
		t.Fatalf("the plan has no %s in %s", collective, segment)
		return 0
	}
	for _, c := range []struct {
		name   string
		stage  int
		damage func(p *Plan)
		want   string
	}{
		{"parameters used before they have come", 3, func(p *Plan) {
			s := p.Segments["micro"]
			i := find(p, "micro", device.Wait, AllGather, 0)
			s.Instrs[i], s.Instrs[i+1] = s.Instrs[i+1], s.Instrs[i]
		}, "is expected"},
		{"parameters given up before their last use", 3, func(p *Plan) {
			s := p.Segments["micro"]
			first := find(p, "micro", device.Start, AllGather, 0)
			second := find(p, "micro", device.Start, AllGather, first+1)
			for i := range s.Instrs {
				if in := &s.Instrs[i]; in.Collective == AllGather && in.Bucket == s.Instrs[second].Bucket && i >= second {
					in.Out = []device.Operand{in.Out[0]}
					in.Out[0].Offset = s.Instrs[first].Out[0].Offset
				}
			}
		}, "is expected"},
		{"a gathering that nobody waits for", 3, func(p *Plan) {
			s := p.Segments["micro"]
			i := find(p, "micro", device.Wait, AllGather, len(s.Instrs)/2)
			s.Instrs = slices.Delete(s.Instrs, i, i+1)
		}, "is expected"},
		{"a bucket overwritten on its way", 2, func(p *Plan) {
			s := p.Segments["micro"]
			i := find(p, "micro", device.Wait, ReduceScatter, 0)
			s.Instrs = slices.Delete(s.Instrs, i, i+1)
		}, "which has left"},
		{"a sum used before it has come", 2, func(p *Plan) {
			s := p.Segments["norm"]
			i := find(p, "norm", device.Wait, ReduceScatter, 0)
			s.Instrs = slices.Delete(s.Instrs, i, i+1)
		}, "before it was waited for"},
		{"parameters that travel before they are updated", 1, func(p *Plan) {
			s := p.Segments["update"]
			i := find(p, "update", device.Start, AllGather, 0)
			in := s.Instrs[i]
			s.Instrs = slices.Insert(slices.Delete(s.Instrs, i, i+1), 0, in)
		}, "travels before"},
		{"state that overlaps", 1, func(p *Plan) {
			for i := range p.Params {
				if q := &p.Params[i]; q.updated() {
					q.Slots[1].Place.Offset = q.Slots[0].Place.Offset
				}
			}
		}, "share memory"},
	} {
		p := mustBuild(t, gpt(t, size, true), sharded(2, 0, c.stage, 12))
		c.damage(p)
		if err := Check(p); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v\n   want %s", c.name, err, c.want)
		}
	}
}

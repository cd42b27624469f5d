package plan

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"starling/core/comm"
)

func TestSettingsThatDoNotFit(t *testing.T) {
	base := Settings{World: 1, Lanes: 4, MicroBatches: 4, GlobalBatch: 32, MicroBatch: 8, Update: adamw}
	for _, c := range []struct {
		name   string
		change func(s *Settings)
		want   string // "" for none
	}{
		{"as it should be", func(*Settings) {}, ""},
		{"one rank for each lane", func(s *Settings) { s.World = 4 }, ""},
		{"too many ranks", func(s *Settings) { s.World = 5 },
			"parallel.mesh(data = 5): global_batch 32 / micro_batch 8 = 4 micro-batches give 4 lanes, too few for 5 data ranks;\n    use data <= 4, or micro_batch = 4"},
		{"too few lanes for the micro-batches", func(s *Settings) { s.Lanes, s.World = 2, 3 },
			"parallel.mesh(data = 3): global_batch 32 / micro_batch 8 = 4 micro-batches give 2 lanes, too few for 3 data ranks;\n    use data <= 2, or lanes = 3"},
		{"no micro-batch would do", func(s *Settings) { s.World = 33 }, "use data <= 4"},
		{"sizes unknown", func(s *Settings) { s.World, s.GlobalBatch, s.MicroBatch = 5, 0, 0 },
			"parallel.mesh(data = 5): 4 micro-batches give 4 lanes, too few for 5 data ranks;\n    use data <= 4"},
		{"no ranks", func(s *Settings) { s.World = 0 }, "parallel.mesh(data = 0): there must be at least 1 data rank"},
		{"rank outside", func(s *Settings) { s.Rank = 1 }, "rank 1 does not exist in a world of 1"},
		{"more lanes than micro-batches", func(s *Settings) { s.Lanes = 5 }, "lanes = 5: must lie between 1 and the 4 micro-batches of a step"},
		{"negative bucket", func(s *Settings) { s.BucketBytes = -1 }, "must not be negative"},
		{"no optimizer", func(s *Settings) { s.Update = nil }, "no optimizer"},
	} {
		s := base
		c.change(&s)
		err := s.Validate()
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", c.name, err)
		case c.want != "" && (err == nil || !strings.HasSuffix(err.Error(), c.want) && !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v\n   want %s", c.name, err, c.want)
		}
	}
}

// Thirteen micro-batches in six lanes, and how ranks of a world of four run them. Rank 1 holds lanes 1 and 2, which meet in
// no subtree of its own.
func TestLaneSteps(t *testing.T) {
	g := gpt(t, gptSize{B: 1, T: 2, C: 4, V: 4, Layers: 0, Heads: 1}, true)
	for rank, want := range []string{
		"1 buffers: lane 0 [0,2) into 0, 0 merges",
		"2 buffers: lane 1 [2,4) into 0, 0 merges; lane 2 [4,6) into 1, 0 merges",
		"1 buffers: lane 3 [6,8) into 0, 0 merges",
		"2 buffers: lane 4 [8,10) into 0, 0 merges; lane 5 [10,13) into 1, 1 merges",
	} {
		p := mustBuild(t, g, settings(4, rank))
		var steps []string
		for _, l := range p.LaneSteps() {
			steps = append(steps, fmt.Sprintf("lane %d %v into %d, %d merges", l.Lane, l.MicroBatches, l.Buffer, l.Merges))
		}
		if got := fmt.Sprintf("%d buffers: %s", p.GradBuffers, strings.Join(steps, "; ")); got != want {
			t.Errorf("rank %d\n   got  %s\n   want %s", rank, got, want)
		}
	}
}

// The lanes of a step cover its micro-batches once each, whatever their numbers.
func TestLanesCoverTheMicroBatches(t *testing.T) {
	for m := 1; m <= 40; m++ {
		for l := 1; l <= m; l++ {
			at := 0
			for i := range l {
				r := Settings{Lanes: l, MicroBatches: m}.LaneMicroBatches(i)
				if r.Lo != at || r.Len() < 1 {
					t.Fatalf("lane %d of %d over %d micro-batches is %v, the next one is %d", i, l, m, r, at)
				}
				at = r.Hi
			}
			if at != m {
				t.Fatalf("%d lanes cover %d of %d micro-batches", l, at, m)
			}
		}
	}
}

func TestSummaryOfCommunication(t *testing.T) {
	g := gpt(t, tinyGPT, true)
	for _, c := range []struct{ world, lanes, micro int }{{1, 8, 8}, {2, 8, 8}, {4, 8, 16}, {8, 8, 8}, {3, 6, 6}, {2, 6, 6}, {5, 7, 7}} {
		for rank := range c.world {
			s := settings(c.world, rank)
			s.Lanes, s.MicroBatches = c.lanes, c.micro
			got := mustBuild(t, g, s).Summary()
			exact := 2 * int64(c.world-1) * got.GradientBytes / int64(c.world)
			if (got.Subtrees == 1 || c.world == 1) != (got.SentBytes == exact) || got.SentBytes < exact {
				t.Errorf("rank %d of %d, %d lanes in %d subtrees: sends %d bytes, 2(N-1)/N of the gradient are %d",
					rank, c.world, c.lanes, got.Subtrees, got.SentBytes, exact)
			}
			if c.micro%c.world == 0 && got.Imbalance != 0 {
				t.Errorf("rank %d of %d, %d micro-batches: imbalance %v", rank, c.world, c.micro, got.Imbalance)
			}
		}
	}
	s := settings(2, 0)
	sum := mustBuild(t, g, s).Summary()
	if want := 7/6.5 - 1; math.Abs(sum.Imbalance-want) > 1e-12 || sum.MicroBatches != 6 || sum.MostMicroBatches != 7 {
		t.Errorf("13 micro-batches over 2 ranks: %d here, %d on the busiest, imbalance %v; want 6, 7, %v", sum.MicroBatches, sum.MostMicroBatches, sum.Imbalance, want)
	}
	if a := comm.Assign(6, 2); a[0].Len() != 3 {
		t.Fatal("the lanes are spread in another way than this test supposes")
	}
}

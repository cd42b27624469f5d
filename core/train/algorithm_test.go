package train

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"starling/core/compress"
	"starling/core/plan"
)

// What a plan says is sent outside the canonical order is what is sent, also where buckets are small and the vectors are doubled.
func TestFastSumsSendWhatThePlanSays(t *testing.T) {
	for _, c := range []struct {
		ranks, zero int
		reduction   string
		bucketMB    float64
	}{{3, 0, ReductionFast, 0.001}, {4, 0, ReductionFast, 25}, {5, 0, "doubling", 25}, {4, 0, "ring", 25}, {3, 1, ReductionFast, 0.001}, {4, 1, "ring", 25}, {2, 0, ReductionFast, 25}} {
		var mu sync.Mutex
		planned, notes := map[int]plan.Summary{}, []string{}
		r, err := runOn(t, t.Context(), c.ranks, 1, func(rank int, s *Spec, env *Env) {
			wide(s, 12)
			s.Evaluate, s.Checkpoint = nil, nil
			s.Mesh.Zero, s.Mesh.Reduction, s.Mesh.BucketMB, s.Mesh.FirstBucket = c.zero, c.reduction, c.bucketMB, c.bucketMB
			p, err := Plan(s, c.ranks, rank)
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			planned[rank] = p.Summary()
			mu.Unlock()
			observe := env.Observe
			env.Observe = func(e Event) {
				mu.Lock()
				defer mu.Unlock()
				if strings.HasPrefix(e.Text, "reduction = ") {
					notes = append(notes, e.Text)
				}
				if observe != nil {
					observe(e)
				}
			}
		})
		if err != nil {
			t.Fatalf("%+v: %v", c, err)
		}
		for rank := range r {
			want := planned[rank].SentBytes
			if got := r[rank].SentBytes; got < want || got > want+2000 {
				t.Errorf("%+v: rank %d sent %d bytes in a step, want the planned %d and at most 2000 for figures", c, rank, got, want)
			}
		}
		if len(notes) != 1 || !strings.Contains(notes[0], fmt.Sprintf("%q", c.reduction)) || !strings.Contains(notes[0], "depend on the number of ranks") {
			t.Errorf("%+v: what was said of the choice: %q", c, notes)
		}
		if c.ranks > 2 && !strings.Contains(planned[0].String(), "over connections by ") {
			t.Errorf("%+v: the plan does not name algorithms:\n%s", c, planned[0])
		}
	}
}

// An algorithm that the ranks cannot carry out is refused before anything is allocated, with the reason.
func TestImpossibleAlgorithmsAreRefused(t *testing.T) {
	_, err := runOn(t, t.Context(), 2, 1, func(_ int, s *Spec, _ *Env) { s.Mesh.Reduction = "hierarchical" })
	if err == nil || !strings.Contains(err.Error(), `reduction = "hierarchical"`) || !strings.Contains(err.Error(), "on one host") {
		t.Errorf("one host, host by host: %v", err)
	}
	s := testSpec(t)
	s.Mesh.Reduction = "tree"
	if err := s.Validate(); err == nil || !strings.Contains(err.Error(), `"canonical", or to force one of its algorithms "direct" or "hierarchical"`) {
		t.Errorf("no such algorithm: %v", err)
	}
}

// The algorithms of the canonical order change no bits and are none of a run's identity.
func TestCanonicalAlgorithms(t *testing.T) {
	for reduction, want := range map[string]bool{"": true, "canonical": true, "direct": true, "hierarchical": true, "fast": false, "ring": false, "doubling": false, "tree": false} {
		if got := (Mesh{Reduction: reduction}).Canonical(); got != want {
			t.Errorf("%q is canonical: %v", reduction, got)
		}
		// What hosts compress between them, a direct sum compresses between ranks.
		counts := !want || reduction == "direct"
		if got := (Mesh{Reduction: reduction, Compress: compress.Config{Kind: compress.Int8, Block: 256}}).ReductionCounts(); got != counts {
			t.Errorf("%q changes bits where gradients are compressed: %v", reduction, got)
		}
		if got := (Mesh{Reduction: reduction}).ReductionCounts(); got == want {
			t.Errorf("%q changes bits: %v", reduction, got)
		}
	}
}

// What is said of the choice names what becomes of buckets that are compressed.
func TestTheChoiceNamesCompression(t *testing.T) {
	var mu sync.Mutex
	var notes []string
	_, err := runOn(t, t.Context(), 2, 1, func(_ int, s *Spec, env *Env) {
		s.Evaluate, s.Checkpoint = nil, nil
		s.Mesh.Compress = compress.Config{Kind: compress.Int8, Block: 256}
		env.Observe = func(e Event) {
			mu.Lock()
			defer mu.Unlock()
			if strings.HasPrefix(e.Text, "reduction = ") {
				notes = append(notes, e.Text)
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(notes) != 1 || !strings.Contains(notes[0], "int8(block 256) for ") || strings.Contains(notes[0], "direct") {
		t.Errorf("what was said: %q", notes)
	}
}

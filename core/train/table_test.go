package train

import (
	"fmt"
	"math/rand/v2"
	"os"
	"testing"

	"starling/core/optim"
	"starling/core/plan"
)

// tableRow is one placement of one recipe of the table.
type tableRow struct {
	precision     string
	micros, lanes int
	zero, data    int
	offload       string
	again         string
	overlap       bool
}

// values are a row's choices, one for each column: the recipe is two of them.
func (r tableRow) values() [7]any {
	return [7]any{r.precision, r.micros, r.zero, r.data, r.offload, r.again, r.overlap}
}

// tableRows is the whole product: three precisions, one lane for each micro-batch or two micro-batches a lane, and every placement.
func tableRows() []tableRow {
	var rows []tableRow
	for _, precision := range []string{"fp32", "bf16", "fp16"} {
		for _, m := range []struct{ micros, lanes int }{{6, 6}, {16, 8}} {
			for zero := range 4 {
				for data := 1; data <= 4; data++ {
					for _, offload := range []string{"", OffloadHost, OffloadDisk} {
						for _, again := range []string{"off", "all", "budget"} {
							for _, overlap := range []bool{true, false} {
								rows = append(rows, tableRow{precision, m.micros, m.lanes, zero, data, offload, again, overlap})
							}
						}
					}
				}
			}
		}
	}
	return rows
}

// covering picks rows such that every two values of different columns, which meet in the table, meet in one of them.
func covering(rows []tableRow) []tableRow {
	type pair struct {
		i, j int
		a, b any
	}
	met := map[pair]bool{}
	var picked []tableRow
	for _, at := range rand.New(rand.NewPCG(1, 2)).Perm(len(rows)) {
		fresh := 0
		v := rows[at].values()
		for i := range v {
			for j := range i {
				if p := (pair{i, j, v[i], v[j]}); !met[p] {
					met[p] = true
					fresh++
				}
			}
		}
		if fresh > 0 {
			picked = append(picked, rows[at])
		}
	}
	return picked
}

// The table of sharding: the weights and the loss of a recipe are the same at every stage, on every number of ranks, wherever the state
// is, whatever is recomputed and overlapped, each precision and each cut into lanes being a recipe of its own. Half of the recipes clip, the
// others update each bucket as it arrives. STARLING_LONG=1 runs all 1,728 rows, a test run those that bring every two columns' values together.
func TestShardingTable(t *testing.T) {
	rows := tableRows()
	if os.Getenv("STARLING_LONG") == "" {
		rows = covering(rows)
	}
	budget := map[string]int64{}
	apply := func(s *Spec, r tableRow) {
		s.Model, s.Precision, s.Steps = blockModel{layers: 4}, r.precision, 4
		s.Data.GlobalBatch, s.Data.MicroBatch, s.Data.Lanes = 8*r.micros, 8, r.lanes
		s.Evaluate, s.Checkpoint, s.Transient = nil, nil, true
		s.Mesh.BucketMB, s.Mesh.FirstBucket = 0.2, 0.05
		s.Mesh.Zero, s.Mesh.Offload, s.Mesh.NoOverlap = r.zero, r.offload, !r.overlap
		switch r.again {
		case "all":
			s.Mesh.Recompute.All = true
		case "budget":
			s.Mesh.Recompute.Budget = budget[r.precision]
		}
		s.ClipNorm = 0
		if (r.precision == "bf16") != (r.micros == r.lanes) {
			s.ClipNorm = 0.05
		}
		if r.precision == "fp16" {
			s.LossScale = optim.DefaultLossScale
			s.LossScale.Init = 1 << 21 // overflows at first
			if r.micros == 16 {
				s.LossScale.Init *= 4 // whose gradients are shared out among more
			}
		}
	}
	for _, precision := range []string{"fp32", "bf16", "fp16"} { // half way between nothing and everything recomputed
		for _, again := range []string{"off", "all"} {
			s := testSpec(t)
			apply(s, tableRow{precision: precision, micros: 6, lanes: 6, data: 1, again: again})
			p, err := Plan(s, 1, 0)
			if err != nil {
				t.Fatal(err)
			}
			budget[precision] += p.Segments[plan.SegmentMicro].WorkBytes / 2
		}
	}
	base := map[tableRow]*Result{}
	seen := map[string]tableRow{}
	for _, r := range rows {
		recipe := tableRow{precision: r.precision, micros: r.micros, lanes: r.lanes, data: 1, again: "off", overlap: true}
		of := func(r tableRow) *Result {
			got, err := runOn(t, t.Context(), r.data, 1, func(rank int, s *Spec, _ *Env) {
				apply(s, r)
				if rank > 0 || r.again != "budget" {
					return
				}
				if p, err := Plan(s, r.data, 0); err != nil {
					t.Error(err)
				} else if n := len(p.Settings.Recompute.Blocks); n == 0 || n == 4 {
					t.Errorf("%+v: the budget leaves %d of 4 blocks to recompute", r, n)
				}
			})
			if err != nil {
				t.Fatalf("%+v: %v", r, err)
			}
			return got[0]
		}
		if base[recipe] == nil {
			b := of(recipe)
			base[recipe] = b
			if other, twice := seen[b.WeightsSHA256]; twice {
				t.Errorf("%+v gives the weights of %+v", recipe, other)
			}
			seen[b.WeightsSHA256] = recipe
			if overflows := b.Skipped > 0; overflows != (r.precision == "fp16") || b.Skipped == b.Steps {
				t.Errorf("%+v: %d of %d steps overflow", recipe, b.Skipped, b.Steps)
			}
		}
		if got, want := of(r), base[recipe]; got.WeightsSHA256 != want.WeightsSHA256 || got.TrainLoss != want.TrainLoss || got.Skipped != want.Skipped {
			t.Errorf("%+v: weights %.16s, loss %v; want %.16s and %v as on one rank", r, got.WeightsSHA256, got.TrainLoss, want.WeightsSHA256, want.TrainLoss)
		}
	}
	t.Logf("%d rows, %d recipes", len(rows), len(base))
}

// Activations that wait off the device, at every stage and on every number of ranks, with and without recomputation: blocks
// large enough that some of them do leave.
func TestOffloadedActivationsTable(t *testing.T) {
	for _, precision := range []string{"fp32", "bf16"} {
		var base *Result
		row := 0
		for zero := range 4 {
			for data := 1; data <= 4; data++ {
				for _, offload := range []string{OffloadHost, OffloadDisk} {
					for _, again := range []bool{false, true} {
						if row++; os.Getenv("STARLING_LONG") == "" && row%7 != 1 {
							continue
						}
						name := fmt.Sprintf("%s, zero %d on %d ranks, offload %s, recomputed %v", precision, zero, data, offload, again)
						run := func(data int, offload string) *Result {
							r, err := runOn(t, t.Context(), data, 1, func(rank int, s *Spec, _ *Env) {
								s.Model, s.Precision, s.Steps = blockModel{layers: 6}, precision, 2
								s.Data.GlobalBatch, s.Data.MicroBatch, s.Data.Lanes = 256, 64, 4
								s.Evaluate, s.Checkpoint, s.Transient, s.ClipNorm = nil, nil, true, 0
								if offload == "" {
									return
								}
								s.Mesh.Zero, s.Mesh.Offload, s.Mesh.OffloadWork, s.Mesh.Recompute = zero, offload, true, plan.Recompute{All: again}
								if rank > 0 {
									return
								}
								if p, err := Plan(s, data, 0); err != nil {
									t.Error(err)
								} else if m := PlanMemory(s, p, 0); m.Off.Work == 0 {
									t.Errorf("%s: no activation leaves the device", name)
								}
							})
							if err != nil {
								t.Fatalf("%s: %v", name, err)
							}
							return r[0]
						}
						if base == nil {
							base = run(1, "")
						}
						if got := run(data, offload); got.WeightsSHA256 != base.WeightsSHA256 || got.TrainLoss != base.TrainLoss {
							t.Errorf("%s: weights %.16s, loss %v; want %.16s and %v", name, got.WeightsSHA256, got.TrainLoss, base.WeightsSHA256, base.TrainLoss)
						}
					}
				}
			}
		}
	}
}

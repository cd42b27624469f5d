package train_test

import (
	"encoding/json"
	"math"
	"os"
	"slices"
	"testing"

	"starling/core/optim"
	"starling/core/train"
)

// Fifty steps in half precision against PyTorch's autocast and GradScaler. Every loss lies within 2e-2 of PyTorch's; where the scale starts at
// 2^30, so that the first steps overflow, it takes the same values.
func TestGoldenMixedPrecision(t *testing.T) {
	type side struct{ Losses, Scales []float64 }
	var record struct {
		BF16 side `json:"bf16"`
		FP16 side `json:"fp16"`
		Over side `json:"fp16_overflowing"`
	}
	text, err := os.ReadFile(goldenFolder + "mixed.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &record); err != nil {
		t.Fatal(err)
	}
	scale := func(start float64, window int) optim.LossScale {
		l := optim.DefaultLossScale
		l.Init, l.Window = start, window
		return l
	}
	for _, c := range []struct {
		name, precision string
		scale           optim.LossScale
		want            side
	}{
		{"bf16", "bf16", optim.LossScale{}, record.BF16},
		{"fp16", "fp16", scale(1<<15, 10), record.FP16},
		{"fp16 from 2^30", "fp16", scale(1<<30, 2000), record.Over},
	} {
		t.Run(c.name, func(t *testing.T) {
			run, _, _ := goldenCase(t, "gpt", 4, 1)
			run.change = func(s *train.Spec) { s.Precision, s.LossScale, s.Steps = c.precision, c.scale, 50 }
			r := run.run(t)
			worst := 0.0
			for i, want := range c.want.Losses {
				d := math.Abs(r.losses[i]/want - 1)
				worst = max(worst, d)
				if !(d <= 2e-2) {
					t.Errorf("step %d: loss %v, want %v", i, r.losses[i], want)
				}
			}
			t.Logf("losses at most %.1e from PyTorch's", worst)
			if c.name == "fp16 from 2^30" && !slices.Equal(r.scales[1:], c.want.Scales[:len(c.want.Scales)-1]) {
				t.Errorf("scales after each step\n%v, want\n%v", r.scales[1:], c.want.Scales)
			}
		})
	}
}

package train

import (
	"slices"
	"strings"
	"testing"

	"starling/core/comm"
	"starling/core/compress"
	"starling/core/device"
	"starling/core/optim"
	"starling/core/plan"
	"starling/core/tensor"
)

// What earlier uses of the memory have left between gradients and behind them is not sent, whichever subtree of lanes it is in.
func TestGapsBetweenGradientsAreCleared(t *testing.T) {
	k := lossyBucket{
		own:   [][]float32{{1, 2, 9, 9, 3, 4, 5, 9}, {6, 7, 9, 9, 8, 1, 2, 9}},
		grads: []plan.GradientPlace{{At: 0, Size: 2}, {At: 4, Size: 3}},
	}
	k.empty = k.gaps(comm.Range{Hi: 8})
	k.clearGaps()
	for i, want := range [][]float32{{1, 2, 0, 0, 3, 4, 5, 0}, {6, 7, 0, 0, 8, 1, 2, 0}} {
		if !slices.Equal(k.own[i], want) {
			t.Errorf("sums over subtree %d are %v, want %v", i, k.own[i], want)
		}
	}
}

// used is a device whose memory for gradients and activations held something before.
type used struct{ device.Device }

func (d used) Alloc(name string, bytes int64) (device.Arena, error) {
	a, err := d.Device.Alloc(name, bytes)
	if err == nil && (strings.HasPrefix(name, "grads") || strings.HasPrefix(name, "sums") || name == "work") {
		v := tensor.View[float32](a.Bytes()[:bytes/4*4])
		for i := range v {
			v[i] = 1000
		}
	}
	return a, err
}

// What memory held before a run changes nothing, however gradients travel.
func TestUsedMemoryChangesNothing(t *testing.T) {
	for _, c := range []compress.Config{{}, {Kind: compress.Int8, Block: 256}, {Kind: compress.BF16}, {Kind: compress.TopK, Ratio: 0.05}, {Kind: compress.DGC, Ratio: 0.05}, {Kind: compress.PowerSGD, Rank: 2}} {
		for stage := range 4 {
			if stage >= 2 && c.Active() && c.Kind != compress.Int8 && c.Kind != compress.BF16 {
				continue
			}
			var hash [2]string
			for i := range hash {
				r, err := runOn(t, t.Context(), 3, 1, func(_ int, s *Spec, e *Env) {
					s.Model, s.Mesh.BucketMB, s.Mesh.Zero, s.Steps = oddModel{}, 0.02, stage, 6
					compressed(s, c)
					if c.Kind == compress.DGC {
						s.Optimizer, s.Mesh.Compress.Clip = optim.SGD{Schedule: optim.Constant{Rate: 0.02}, Momentum: 0.9}, 0
					}
					if i == 1 {
						e.Device = used{e.Device}
					}
				})
				if err != nil {
					t.Fatalf("%v, zero %d: %v", c, stage, err)
				}
				hash[i] = r[0].WeightsSHA256
			}
			if hash[0] != hash[1] {
				t.Errorf("%v, zero %d: weights %.16s in used memory, %.16s in fresh", c, stage, hash[1], hash[0])
			}
		}
	}
}

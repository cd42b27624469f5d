package train

import (
	"context"
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"starling/core/checkpoint"
	"starling/core/cluster"
	"starling/core/optim"
	"starling/core/tensor"
)

// onHosts names the hosts of ranks: so many hosts with so many ranks each.
func onHosts(hosts, each int) []string {
	var out []string
	for h := range hosts {
		for range each {
			out = append(out, fmt.Sprint("host", h))
		}
	}
	return out
}

// Over several hosts every method repeats itself at every stage, on all ranks; what the plan says is sent is sent; and what crosses is
// what hosts have compressed.
func TestCompressionBetweenHosts(t *testing.T) {
	for name, cfg := range methods {
		cfg.Warmup = 0
		for stage := range 4 {
			if stage >= 2 && !anyStage(name) {
				continue
			}
			for _, hosts := range [][2]int{{2, 2}, {2, 3}, {3, 2}} {
				what := fmt.Sprintf("%s, zero %d, %d hosts of %d", name, stage, hosts[0], hosts[1])
				ranks := hosts[0] * hosts[1]
				hash := ""
				for range 2 {
					r, err := runOnHosts(t, t.Context(), onHosts(hosts[0], hosts[1]), ranks, 1, func(rank int, s *Spec, e *Env) {
						wide(s, 8) // of which three hosts have no subtree
						s.Data.GlobalBatch, s.Steps, s.Evaluate, s.Transient, s.Mesh.Zero = 48, 4, nil, true, stage
						compressed(s, cfg)
						s.Mesh.Hosts = onHosts(hosts[0], hosts[1])
						p, err := Plan(s, ranks, rank)
						if err != nil {
							t.Error(err)
							return
						}
						planned, crossing := p.Summary().SentBytes, p.Summary().CrossingBytes
						var last [2]int64
						s.OnStep = func(m Metrics) (Action, error) {
							now := [2]int64{e.SentBytes(), e.sentByKind().Network}
							sent, crossed := now[0]-last[0], now[1]-last[1]
							last = now
							if m["step"] > 2 && (sent < planned || sent > planned+1500 || crossed < crossing || crossed > crossing+1500) { // losses and norms come on top
								t.Errorf("%s, rank %d: %d bytes sent, %d between hosts in step %v, planned %d and %d", what, rank, sent, crossed, m["step"], planned, crossing)
							}
							return Action{}, nil
						}
					})
					if err != nil {
						t.Fatalf("%s: %v", what, err)
					}
					for i, x := range r {
						if hash == "" {
							hash = x.WeightsSHA256
						}
						if x.WeightsSHA256 != hash {
							t.Errorf("%s, rank %d: weights %.16s, want %.16s", what, i, x.WeightsSHA256, hash)
						}
					}
				}
			}
		}
	}
}

// What bfloat16 rounds away between hosts is next to nothing, at every stage, whether lanes have one micro-batch or more.
func TestCompressionBetweenHostsIsNearlyExact(t *testing.T) {
	for _, lanes := range []int{6, 12} {
		train := func(stage int, hosts []string) float64 {
			r, err := runOnHosts(t, t.Context(), hosts, max(len(hosts), 1), 1, func(_ int, s *Spec, _ *Env) {
				s.Data.Lanes, s.Mesh.Zero, s.Transient = lanes, stage, true
				compressed(s, methods["bf16"])
			})
			if err != nil {
				t.Fatal(err)
			}
			return float64(*r[0].EvalLoss)
		}
		want := train(0, nil)
		for stage := range 4 {
			for _, hosts := range [][]string{onHosts(2, 2), onHosts(2, 3)} {
				if got := train(stage, hosts); math.Abs(got-want) > 2e-3*want {
					t.Errorf("%d lanes, zero %d, hosts %q: loss %v, %v on one rank", lanes, stage, hosts, got, want)
				}
			}
		}
	}
}

// Stopped and resumed, a run on several hosts has the bits of one that went straight through, steps that are skipped included.
func TestCompressionBetweenHostsResumes(t *testing.T) {
	for name, cfg := range methods {
		for _, c := range []struct {
			stage     int
			precision string
		}{{0, "fp32"}, {1, "fp16"}, {2, "fp32"}, {3, "fp16"}} {
			if c.stage >= 2 && !anyStage(name) {
				continue
			}
			dir := t.TempDir()
			run := func(steps int, resume bool, dir string) []*Result {
				r, err := runOnHosts(t, t.Context(), onHosts(2, 2), 4, 1, func(_ int, s *Spec, e *Env) {
					compressed(s, cfg)
					s.Mesh.Zero, s.Precision, s.Steps, s.Evaluate = c.stage, c.precision, steps, nil
					if c.precision == "fp16" {
						s.LossScale = optim.DefaultLossScale
						s.LossScale.Init = 1 << 21 // overflows at first
					}
					e.RunDir, e.Resume = dir, resume
				})
				if err != nil {
					t.Fatalf("%s, %+v: %v", name, c, err)
				}
				return r
			}
			want := run(12, false, t.TempDir())
			run(7, false, dir)
			got := run(12, true, dir)
			for i := range got {
				if got[i].WeightsSHA256 != want[0].WeightsSHA256 {
					t.Errorf("%s, %+v, rank %d: resumed weights %.16s, want %.16s", name, c, i, got[i].WeightsSHA256, want[0].WeightsSHA256)
				}
			}
			if c.precision == "fp16" && (want[0].Skipped == 0 || want[0].Skipped > 8) {
				t.Errorf("%s: %d steps were skipped, want some and not all", name, want[0].Skipped)
			}
		}
	}
}

// Whatever hosts take a run over, at whatever stage, what was not sent yet is there in all.
func TestChangingHostsKeepsWhatIsNotSent(t *testing.T) {
	for name, cfg := range methods {
		for _, stage := range []int{0, 1, 3} {
			if stage >= 2 && !anyStage(name) {
				continue
			}
			dir := t.TempDir()
			if _, err := runOnHosts(t, t.Context(), onHosts(2, 3), 6, 1, func(_ int, s *Spec, e *Env) {
				compressed(s, cfg)
				s.Steps, s.Evaluate, s.Mesh.Zero, e.RunDir = 5, nil, stage, dir
			}); err != nil {
				t.Fatal(err)
			}
			path, _ := filepath.Glob(filepath.Join(dir, CheckpointFolder, "step-*5"))
			c, err := checkpoint.Open(path[0])
			if err != nil {
				t.Fatal(err)
			}
			want := map[string]float64{}
			for _, x := range c.Tensors() {
				_, state, _ := strings.Cut(x.Name, "/")
				kind, of, lossy := strings.Cut(state, ".")
				if !lossy || kind == "powersgd" {
					continue
				}
				if !strings.HasPrefix(of, "0") && !strings.HasPrefix(of, "1") && !strings.HasPrefix(of, "sum") {
					t.Errorf("%s, zero %d: %s is of a third contributor, and there are two hosts", name, stage, x.Name)
				}
				v := make([]float32, tensor.Shape(x.Shape).Numel())
				if err := c.ReadRange(x.Name, 0, tensor.Bytes(v)); err != nil {
					t.Fatal(err)
				}
				for i, x := range v {
					want[kind] += float64(x) * float64(i%17+1)
				}
			}
			if want[keptResidual] == 0 {
				t.Fatalf("%s: the checkpoint has nothing that is not sent: %v", name, want)
			}
			for _, hosts := range [][]string{nil, onHosts(2, 1), onHosts(2, 2), onHosts(3, 2), onHosts(2, 3), onHosts(1, 3)} {
				ranks := max(len(hosts), 1)
				for _, to := range []int{0, 1} {
					parts := make([]map[string]float64, ranks)
					if _, err := cluster.InProcess(t.Context(), cluster.Config{Ranks: ranks, Hosts: hosts}, func(ctx context.Context, w *cluster.Worker) (err error) {
						parts[w.Rank()], err = unsent(t, w, c, cfg, ranks, to)
						return err
					}); err != nil {
						t.Fatal(err)
					}
					for kind, v := range want {
						got := 0.0
						for _, p := range parts {
							got += p[kind]
						}
						if math.Abs(got-v) > 1e-4*(1e-3+math.Abs(v)) {
							t.Errorf("%s, zero %d, to hosts %q, zero %d: %s %v in all, want %v", name, stage, hosts, to, kind, got, v)
						}
					}
				}
			}
			c.Close()
		}
	}
}

// A step whose batch counts for nothing delivers gradients that nobody uses: they are back with what is not sent.
func TestWhatNobodyUsesIsTakenBack(t *testing.T) {
	for name, cfg := range methods {
		for stage := range 4 {
			if stage >= 2 && !anyStage(name) {
				continue
			}
			for _, hosts := range [][]string{onHosts(1, 3), onHosts(2, 2), onHosts(3, 2)} {
				var mu sync.Mutex
				want, got := 0.0, 0.0
				if _, err := cluster.InProcess(t.Context(), cluster.Config{Ranks: len(hosts), Hosts: hosts}, func(ctx context.Context, w *cluster.Worker) error {
					return withEngine(t, w, len(hosts), func(s *Spec) {
						compressed(s, cfg)
						s.Mesh.Zero, s.Mesh.Compress.Warmup, s.Mesh.Compress.Clip = stage, 0, 0
					}, func(e *engine) error {
						e.trace.begin(0)
						e.collect.begin(ctx, &e.trace)
						e.lossy.begin(0, 1, 1)
						gave := 0.0
						for round := range max(len(e.plan.Rounds), 1) {
							gives := e.plan.Rounds == nil || e.plan.Rounds[round].Lanes.Lo+w.Rank() < e.plan.Rounds[round].Lanes.Hi
							for i := range e.lossy.buckets {
								k := &e.lossy.buckets[i]
								for _, own := range k.own {
									for at := range own {
										own[at] = float32((at*7+w.Rank()*13)%29-10) / 16
									}
									for _, g := range k.grads {
										for j := range g.Size {
											if gives {
												gave += float64(own[g.At+j]) * float64(j%17+1)
											}
										}
									}
								}
								x := e.collect.buckets[k.bucket.Index]
								e.lossy.start(k.bucket.Index, x, round)
								if err := x.wait(ctx, &e.trace); err != nil {
									return err
								}
							}
						}
						e.lossy.takeBack()
						mu.Lock()
						defer mu.Unlock()
						want += gave
						got += e.lossy.kept()[keptResidual]
						return nil
					})
				}); err != nil {
					t.Fatal(err)
				}
				if math.Abs(got-want) > 1e-4*(1+math.Abs(want)) {
					t.Errorf("%s, zero %d, %d ranks: %v is kept of %v", name, stage, len(hosts), got, want)
				}
			}
		}
	}
}

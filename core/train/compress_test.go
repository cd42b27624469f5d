package train

import (
	"context"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"starling/core/checkpoint"
	"starling/core/cluster"
	"starling/core/comm"
	"starling/core/compress"
	"starling/core/device/cpu"
	"starling/core/optim"
	"starling/core/tensor"
)

var methods = map[string]compress.Config{
	"int8": {Kind: compress.Int8, Block: 64}, "bf16": {Kind: compress.BF16}, "topk": {Kind: compress.TopK, Ratio: 0.05, Warmup: 4},
	"dgc": {Kind: compress.DGC, Ratio: 0.05, Warmup: 4}, "powersgd": {Kind: compress.PowerSGD, Rank: 2, Warmup: 9},
}

// compressed makes a spec compress; DGC brings the optimizer that it needs.
func compressed(s *Spec, c compress.Config) {
	s.Mesh.Compress = c
	if c.Kind == compress.DGC {
		s.Mesh.Compress.Clip, s.ClipNorm = s.ClipNorm, 0
		s.Optimizer = optim.SGD{Schedule: optim.Constant{Rate: 0.02}, Momentum: 0.9, WeightDecay: 1e-3}
	}
}

// anyStage reports whether a method can send a gradient lane by lane.
func anyStage(method string) bool { return method == "int8" || method == "bf16" }

// Every method works at every ZeRO stage, the same twice and on all ranks, or is refused.
func TestCompressionAtEveryStage(t *testing.T) {
	for name, cfg := range methods {
		for stage := range 4 {
			for _, ranks := range []int{1, 2, 3} {
				var hash string
				for range 2 {
					r, err := runOn(t, t.Context(), ranks, 1, func(_ int, s *Spec, _ *Env) {
						wide(s, 6)
						s.Mesh.Zero = stage
						compressed(s, cfg)
					})
					if stage >= 2 && !anyStage(name) {
						if err == nil || !strings.Contains(err.Error(), "compress."+name) || !strings.Contains(err.Error(), "zero") {
							t.Fatalf("%s, zero %d: %v, want a refusal that says why", name, stage, err)
						}
						for other := range methods {
							if strings.Contains(err.Error(), "or compress."+other) && !anyStage(other) {
								t.Errorf("%s, zero %d: %v: advises what is refused as well", name, stage, err)
							}
						}
						break
					}
					if err != nil {
						t.Fatalf("%s, zero %d, %d ranks: %v", name, stage, ranks, err)
					}
					for i, x := range r {
						if hash == "" {
							hash = x.WeightsSHA256
						}
						if x.WeightsSHA256 != hash {
							t.Errorf("%s, zero %d, rank %d of %d: weights %.16s, want %.16s", name, stage, i, ranks, x.WeightsSHA256, hash)
						}
					}
				}
			}
		}
	}
}

// One rank compresses nothing, and DGC on one rank is momentum SGD, clipping included; only roundings differ.
func TestOneRankIsDense(t *testing.T) {
	for name, cfg := range methods {
		var losses []float64
		for _, c := range []compress.Config{{}, cfg} {
			r, err := runOn(t, t.Context(), 1, 1, func(_ int, s *Spec, _ *Env) {
				compressed(s, cfg)
				s.Evaluate.Every = 0
				if !c.Active() {
					s.ClipNorm = testSpec(t).ClipNorm
				}
				if o, ok := s.Optimizer.(optim.SGD); ok {
					o.WeightDecay = 0
					s.Optimizer = o
				}
				if !c.Active() {
					s.Mesh.Compress = c
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			losses = append(losses, float64(*r[0].EvalLoss))
		}
		if math.Abs(losses[0]-losses[1]) > 1e-5 {
			t.Errorf("%s: loss %v on one rank, %v without compression", name, losses[1], losses[0])
		}
	}
}

// Stopped after any step and resumed, a run has the bits of one that went straight through.
func TestCompressionResumes(t *testing.T) {
	for name, cfg := range methods {
		for _, c := range []struct {
			ranks, stage int
			precision    string
		}{{2, 0, "fp32"}, {3, 1, "fp32"}, {2, 2, "fp32"}, {3, 3, "fp32"}, {2, 0, "fp16"}} {
			if c.stage >= 2 && !anyStage(name) {
				continue
			}
			dir := t.TempDir()
			run := func(steps int, resume bool, dir string) []*Result {
				r, err := runOn(t, t.Context(), c.ranks, 1, func(_ int, s *Spec, e *Env) {
					compressed(s, cfg)
					s.Mesh.Zero, s.Precision, s.Steps = c.stage, c.precision, steps
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

// However many ranks take a run over, what was not sent yet is there in all.
func TestResizingKeepsWhatIsNotSent(t *testing.T) {
	for name, cfg := range methods {
		dir := t.TempDir()
		_, err := runOn(t, t.Context(), 3, 1, func(_ int, s *Spec, e *Env) {
			compressed(s, cfg)
			s.Steps, e.RunDir = 5, dir
		})
		if err != nil {
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
			kind, _, lossy := strings.Cut(state, ".")
			if !lossy || kind == "powersgd" {
				continue
			}
			v := make([]float32, tensor.Shape(x.Shape).Numel())
			if err := c.ReadRange(x.Name, 0, tensor.Bytes(v)); err != nil {
				t.Fatal(err)
			}
			for i, x := range v {
				want[kind] += float64(x) * float64(i%17+1)
			}
		}
		if len(want) == 0 || want[keptResidual] == 0 {
			t.Fatalf("%s: the checkpoint has nothing that is not sent: %v", name, want)
		}
		for _, ranks := range []int{1, 2, 4} {
			for stage := range 2 {
				parts := make([]map[string]float64, ranks)
				if _, err := cluster.InProcess(t.Context(), cluster.Config{Ranks: ranks}, func(ctx context.Context, w *cluster.Worker) (err error) {
					parts[w.Rank()], err = unsent(t, w, c, cfg, ranks, stage)
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
						t.Errorf("%s on %d ranks, zero %d: %s %v in all, want %v", name, ranks, stage, kind, got, v)
					}
				}
			}
		}
		c.Close()
	}
}

// unsent loads a rank's state from a checkpoint and adds it up as the test does.
func unsent(t *testing.T, w *cluster.Worker, c *checkpoint.Checkpoint, cfg compress.Config, ranks, stage int) (out map[string]float64, err error) {
	err = withEngine(t, w, ranks, func(s *Spec) {
		compressed(s, cfg)
		s.Mesh.Zero, s.Mesh.BucketMB = stage, 0.01 // other buckets, too
	}, func(e *engine) error {
		if err := e.lossy.load(c); err != nil {
			return err
		}
		out = e.lossy.kept()
		return nil
	})
	return out, err
}

// kept adds up what this rank keeps, by kind, each element with a weight of its own.
func (z *compression) kept() map[string]float64 {
	out := map[string]float64{}
	for i := range z.buckets {
		k := &z.buckets[i]
		add := func(kind string, pieces []piece) {
			for _, p := range pieces {
				for i, x := range p.data {
					out[kind] += float64(x) * float64((p.from+i)%17+1)
				}
			}
		}
		add(keptResidual, k.kept())
		if k.stream != nil {
			add(keptResidual, k.owned())
			add(keptMomentum, k.momentum())
		}
	}
	return out
}

// withEngine makes the engine of a rank of a cluster in this process.
func withEngine(t *testing.T, w *cluster.Worker, ranks int, change func(s *Spec), f func(e *engine) error) error {
	dev, err := cpu.Open(cpu.Config{Threads: 1, Ranks: ranks})
	if err != nil {
		return err
	}
	defer dev.Close()
	s := testSpec(t)
	s.Mesh.Data = ranks
	change(s)
	env := Env{Rank: w.Rank(), World: ranks, Device: dev, Threads: 1, Observe: func(Event) {}}
	if ranks > 1 {
		all := make([]int, ranks)
		for i := range all {
			all[i] = i
		}
		if env.Group, err = comm.NewGroup(w.Transport(), "data", all, comm.Options{}); err != nil {
			return err
		}
		defer env.Group.Close()
	}
	e, err := newEngine(s, &env)
	if err != nil {
		return err
	}
	defer e.close()
	return f(e)
}

// What the plan says is sent is sent.
func TestCompressedBytesAreThosePlanned(t *testing.T) {
	for name, cfg := range methods {
		for stage := range 2 {
			cfg.Warmup = 0
			_, err := runOn(t, t.Context(), 3, 1, func(rank int, s *Spec, e *Env) {
				wide(s, 6)
				s.Steps, s.Evaluate, s.Transient, s.Mesh.Zero = 4, nil, true, stage
				compressed(s, cfg)
				p, err := Plan(s, 3, rank)
				if err != nil {
					t.Error(err)
					return
				}
				planned := p.Summary().SentBytes
				last := int64(0)
				s.OnStep = func(m Metrics) (Action, error) {
					now := e.SentBytes()
					sent := now - last
					last = now
					if m["step"] > 2 && (sent < planned || sent > planned+2000) { // losses and norms come on top
						t.Errorf("%s, zero %d, rank %d: %d bytes sent in step %v, planned %d", name, stage, rank, sent, m["step"], planned)
					}
					return Action{}, nil
				}
			})
			if err != nil {
				t.Fatalf("%s, zero %d: %v", name, stage, err)
			}
		}
	}
}

func TestCompressionThatCannotWorkIsRefused(t *testing.T) {
	for want, change := range map[string]func(*Spec){
		"momentum SGD alone": func(s *Spec) { s.Mesh.Compress = methods["dgc"]; s.ClipNorm = 0 },
		"momentum = 0.9": func(s *Spec) {
			compressed(s, methods["dgc"])
			s.Optimizer = optim.SGD{Schedule: optim.Constant{Rate: 1}}
		},
		"dampening": func(s *Spec) {
			compressed(s, methods["dgc"])
			s.Optimizer = optim.SGD{Schedule: optim.Constant{Rate: 1}, Momentum: 0.9, Dampening: 0.5}
		},
		"clip_norm": func(s *Spec) { compressed(s, methods["dgc"]); s.ClipNorm = 1 },
		"block = 1": func(s *Spec) { s.Mesh.Compress = compress.Config{Kind: compress.Int8, Block: 1} },
	} {
		s := testSpec(t)
		change(s)
		if err := s.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want a refusal that mentions %q", err, want)
		}
	}
}

// Compression leaves learning alone: the loss of few steps stays near that of the same without it.
func TestCompressedRunsLearn(t *testing.T) {
	loss := func(cfg compress.Config, sgd bool) float64 {
		r, err := runOn(t, t.Context(), 2, 1, func(_ int, s *Spec, _ *Env) {
			s.Steps, s.ClipNorm, s.Evaluate.Source = 150, 1, s.Data.Source
			s.Optimizer = optim.AdamW{Schedule: optim.Constant{Rate: 3e-3}, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8}
			compressed(s, cfg)
			if sgd {
				rate := 0.05
				if cfg.Active() { // masking takes away most of the momentum of elements that are sent often
					rate = 0.3
				}
				s.Optimizer = optim.SGD{Schedule: optim.Constant{Rate: rate}, Momentum: 0.9}
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		return float64(*r[0].EvalLoss)
	}
	dense := map[bool]float64{false: loss(compress.Config{}, false), true: loss(compress.Config{}, true)}
	for name, allowed := range map[string]float64{"int8": 1.02, "bf16": 1.01, "dgc": 1.15, "powersgd": 1.15, "topk": 1.5} {
		cfg := methods[name]
		if cfg.Ratio > 0 {
			cfg.Ratio, cfg.Warmup = 0.1, 20
		}
		got, want := loss(cfg, name == "dgc"), dense[name == "dgc"]
		t.Logf("%s: loss %.4f, dense %.4f", name, got, want)
		if got > allowed*want {
			t.Errorf("%s: loss %.4f, %.4f without compression; at most %v times as much is expected", name, got, want, allowed)
		}
	}
}

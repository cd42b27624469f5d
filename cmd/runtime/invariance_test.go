package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"starling/core/train"
	"starling/sdk/vec"
)

// TestInvariance is the table that defines Starling: the hash of all parameters after a run is the same for every placement of
// it. The recipe has dropout, tied weights, clipping that is active, several micro-batches a lane, six lanes, and shapes
// large enough to be split over threads. The table grows with every feature.
func TestInvariance(t *testing.T) {
	if _, err := os.Stat(invarianceRecipe()); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "base")
	base := runtimeResult(t, dir, "exec", invarianceRecipe(), "--set", ranksArg(1), "--threads", "1")
	for _, m := range stepMetrics(t, dir) {
		if m.GradNorm <= 0.5 {
			t.Errorf("step %d: a gradient of norm %v is not clipped at 0.5: the recipe must keep clipping active", m.Step, m.GradNorm)
		}
	}
	t.Logf("%d steps, kernels %s, weights %s", base.Steps, base.Kernels, base.WeightsSHA256)
	if base.Steps != 20 {
		t.Errorf("the recipe takes %d steps, want 20", base.Steps)
	}
	same := func(t *testing.T, what string, r *train.Result) {
		t.Helper()
		if r.WeightsSHA256 != base.WeightsSHA256 {
			t.Errorf("%s: weights %s, want %s", what, r.WeightsSHA256, base.WeightsSHA256)
		}
		if r.TrainLoss != base.TrainLoss || r.EvalLoss == nil || *r.EvalLoss != *base.EvalLoss {
			t.Errorf("%s: losses %v and %v, want %v and %v", what, r.TrainLoss, r.EvalLoss, base.TrainLoss, *base.EvalLoss)
		}
	}
	for _, c := range []struct {
		name string
		args []string
		env  string
	}{
		{"2 processes", []string{"--set", "ranks=2"}, ""},
		{"3 processes", []string{"--set", "ranks=3"}, ""},
		{"4 processes", []string{"--set", "ranks=4"}, ""},
		{"4 processes over TCP", []string{"--set", "ranks=4", "--listen", "tcp:127.0.0.1:0"}, ""},
		{"3 processes over Unix sockets", []string{"--set", "ranks=3", "--transport", "unix"}, ""},
		{"4 processes in shared memory beside TCP", []string{"--set", "ranks=4", "--listen", "tcp:127.0.0.1:0", "--transport", "shm"}, ""},
		{"4 processes on 2 hosts", []string{"--set", "ranks=4", "--hosts", "a,a,b,b", "--listen", "tcp:127.0.0.1:0"}, ""},
		{"6 processes on 3 hosts", []string{"--set", "ranks=6", "--hosts", "a,a,b,b,c,c"}, ""},
		{"4 ranks in process on 2 hosts", []string{"--set", "ranks=4", "--in-process", "--hosts", "a,a,b,b"}, ""},
		{"6 ranks in process on 2 hosts of the recipe, by turns", []string{"--set", "ranks=6", "--in-process", "--set", "hosts=a,b,a,b,a,b", "--set", "zero=2"}, ""},
		{"1 rank of 2 threads", []string{"--set", "ranks=1", "--threads", "2"}, ""},
		{"1 rank of 4 threads", []string{"--set", "ranks=1", "--threads", "4"}, ""},
		{"2 ranks in process", []string{"--set", "ranks=2", "--in-process"}, ""},
		{"3 ranks in process", []string{"--set", "ranks=3", "--in-process", "--threads", "2"}, ""},
		{"6 ranks in process", []string{"--set", "ranks=6", "--in-process"}, ""},
		{"small buckets", []string{"--set", "ranks=2", "--set", "bucket_mb=0.02"}, ""},
		{"zero 1 on 2 ranks", []string{"--set", "ranks=2", "--set", "zero=1"}, ""},
		{"zero 2 on 3 ranks", []string{"--set", "ranks=3", "--set", "zero=2"}, ""},
		{"zero 3 on 2 ranks", []string{"--set", "ranks=2", "--set", "zero=3", "--in-process"}, ""},
		{"zero 3 on 4 ranks", []string{"--set", "ranks=4", "--set", "zero=3"}, ""},
		{"zero 3 on 4 ranks over TCP without overlap", []string{"--set", "ranks=4", "--set", "zero=3", "--set", "overlap=False", "--listen", "tcp:127.0.0.1:0"}, ""},
		{"zero 3 on 3 ranks, every block recomputed", []string{"--set", "ranks=3", "--set", "zero=3", "--set", "recompute=all"}, ""},
		{"zero 3 on 2 ranks, state and parameters off the device", []string{"--set", "ranks=2", "--set", "zero=3", "--set", "offload=host", "--set", "offload_activations=True"}, ""},
		{"zero 3 on 2 ranks, state and parameters on disk", []string{"--set", "ranks=2", "--set", "zero=3", "--set", "offload=disk"}, ""},
		{"zero 3 on 4 ranks, one copy on each of 2 hosts", []string{"--set", "ranks=4", "--set", "zero=3", "--set", "shard=2", "--hosts", "a,a,b,b", "--listen", "tcp:127.0.0.1:0"}, ""},
		{"zero 1 on 2 hosts", []string{"--set", "ranks=4", "--set", "zero=1", "--hosts", "a,a,b,b"}, ""},
		{"zero 2 on 2 hosts", []string{"--set", "ranks=6", "--set", "zero=2", "--hosts", "a,a,a,b,b,b", "--listen", "tcp:127.0.0.1:0"}, ""},
		{"zero 3 on 3 hosts", []string{"--set", "ranks=6", "--set", "zero=3", "--hosts", "a,a,b,b,c,c"}, ""},
		{"zero 3 on 6 ranks, 2 copies", []string{"--set", "ranks=6", "--set", "zero=3", "--set", "shard=3", "--in-process"}, ""},
		{"recomputed within a budget", []string{"--set", "ranks=2", "--set", "recompute=budget"}, ""},
		{"AVX2 kernels", []string{"--set", "ranks=2"}, "avx2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.env != "" {
				if !available(t, c.env) {
					t.Skipf("this processor does not run the %s kernels", c.env)
				}
				t.Setenv("STARLING_KERNELS", c.env)
			}
			r := runtimeResult(t, filepath.Join(t.TempDir(), "run"), append([]string{"exec", invarianceRecipe()}, c.args...)...)
			if c.env != "" && r.Kernels != c.env {
				t.Errorf("kernels %s ran, want %s", r.Kernels, c.env)
			}
			same(t, c.name, r)
		})
	}
	for _, precision := range []string{"bf16", "fp16"} { // each has weights of its own, alike wherever the run is placed
		t.Run(precision, func(t *testing.T) {
			var first *train.Result
			for _, args := range [][]string{
				{"--set", ranksArg(1)}, {"--set", ranksArg(2), "--threads", "2"}, {"--set", ranksArg(3), "--set", "zero=2"},
				{"--set", ranksArg(4), "--set", "zero=3"}, {"--set", ranksArg(4), "--set", "zero=1", "--set", "overlap=False"},
				{"--set", ranksArg(4), "--set", "zero=3", "--set", "shard=2"},
			} {
				r := runtimeResult(t, filepath.Join(t.TempDir(), "run"), append([]string{"exec", invarianceRecipe(), "--set", "precision=" + precision}, args...)...)
				if first == nil {
					first = r
				}
				if r.WeightsSHA256 != first.WeightsSHA256 || r.WeightsSHA256 == base.WeightsSHA256 {
					t.Errorf("%v: weights %s, want %s, other than those of fp32", args, r.WeightsSHA256, first.WeightsSHA256)
				}
				if overflows := r.Skipped > 0; overflows != (precision == "fp16") || r.Skipped != first.Skipped || r.LossScale != first.LossScale {
					t.Errorf("%v: %d steps skipped and a scale of %v, want %d and %v, above 0 in fp16 alone", args, r.Skipped, r.LossScale, first.Skipped, first.LossScale)
				}
			}
		})
	}
	t.Run("batch norm, updated bucket by bucket", func(t *testing.T) { // what a micro-batch has seen leaves before its loss is known
		recipe := []string{"exec", filepath.Join("testdata", "batch_norm.star"), "--threads", "1", "--in-process", "--set", "clip_norm=0"}
		var first *train.Result
		for _, args := range [][]string{{"--set", ranksArg(1)}, {"--set", ranksArg(2)}, {"--set", ranksArg(3)}, {"--set", ranksArg(3), "--set", "zero=1"},
			{"--set", ranksArg(2), "--set", "zero=2"}, {"--set", ranksArg(3), "--set", "zero=3"}} {
			r := runtimeResult(t, filepath.Join(t.TempDir(), "run"), append(recipe, args...)...)
			if first == nil {
				first = r
			}
			if r.WeightsSHA256 != first.WeightsSHA256 || r.TrainLoss != first.TrainLoss {
				t.Errorf("%v: weights %s and a loss of %v, want %s and %v", args, r.WeightsSHA256, r.TrainLoss, first.WeightsSHA256, first.TrainLoss)
			}
		}
	})
	t.Run("batch norm", func(t *testing.T) { // whose running averages are hashed too
		recipe := []string{"exec", filepath.Join("testdata", "batch_norm.star"), "--threads", "1"}
		for _, precision := range []string{"fp32", "bf16", "fp16"} {
			var first *train.Result
			placements := [][]string{{"--set", ranksArg(1)}, {"--set", ranksArg(3), "--set", "zero=3", "--set", "recompute=True"}, {"--set", ranksArg(2)},
				{"--set", ranksArg(3), "--set", "zero=1"}, {"--set", ranksArg(2), "--set", "zero=2"}}
			if precision != "fp32" {
				placements = placements[:2]
			}
			for _, args := range placements {
				r := runtimeResult(t, filepath.Join(t.TempDir(), "run"), append(append(recipe, "--set", "precision="+precision), args...)...)
				if first == nil {
					first = r
				}
				if r.WeightsSHA256 != first.WeightsSHA256 || *r.EvalLoss != *first.EvalLoss {
					t.Errorf("%s, %v: weights %s and a held-out loss of %v, want %s and %v", precision, args, r.WeightsSHA256, *r.EvalLoss, first.WeightsSHA256, *first.EvalLoss)
				}
				if (r.Skipped > 0) != (precision == "fp16") {
					t.Errorf("%s, %v: %d steps skipped", precision, args, r.Skipped)
				}
			}
			if precision != "fp32" {
				continue
			}
			dir := filepath.Join(t.TempDir(), "stopped") // after its checkpoint of step 5, and resumed elsewhere
			p := start(t, append(recipe, "--run-dir", dir, "--set", ranksArg(3), "--set", "zero=1")...)
			eventually(t, time.Minute, "there is no checkpoint", func() bool {
				found, _ := filepath.Glob(filepath.Join(dir, train.CheckpointFolder, "*5"))
				return len(found) > 0 || len(p.exited) > 0
			})
			_ = p.cmd.Process.Signal(syscall.SIGKILL)
			<-p.exited
			eventually(t, 10*time.Second, "ranks outlive their launcher", func() bool { return len(children(t, dir)) == 0 })
			if r := runtimeResult(t, dir, append(recipe, "--resume", "--set", ranksArg(2))...); r.WeightsSHA256 != first.WeightsSHA256 {
				t.Errorf("resumed: weights %s, want %s", r.WeightsSHA256, first.WeightsSHA256)
			}
		}
	})
	t.Run("fast reduction", func(t *testing.T) { // gives the tree up, repeats itself, and says so
		hashes := map[string]string{}
		for _, args := range [][]string{{"--set", "reduction=ring"}, {"--set", "reduction=ring"}, {"--set", "reduction=fast", "--set", "zero=1"}} {
			dir := filepath.Join(t.TempDir(), "run")
			r := runtimeResult(t, dir, append([]string{"exec", invarianceRecipe(), "--set", ranksArg(4), "--transport", "unix"}, args...)...)
			if before := hashes[args[1]]; r.WeightsSHA256 == base.WeightsSHA256 || before != "" && r.WeightsSHA256 != before {
				t.Errorf("%v: weights %s; those of the tree are %s, of the run before %s", args, r.WeightsSHA256, base.WeightsSHA256, before)
			}
			hashes[args[1]] = r.WeightsSHA256
			if d := float64(r.TrainLoss - base.TrainLoss); d > 1e-2 || d < -1e-2 {
				t.Errorf("%v: a loss of %v, in the canonical order %v", args, r.TrainLoss, base.TrainLoss)
			}
			if b, err := os.ReadFile(filepath.Join(dir, recordFile)); err != nil || !strings.Contains(string(b), `"reduction": "`) {
				t.Errorf("%v: the run's record does not tell: %s %v", args, b, err)
			}
		}
	})
	for _, set := range []string{"reduce=bf16", "state=int8"} { // each has weights of its own
		t.Run(set, func(t *testing.T) {
			var first *train.Result
			for _, args := range [][]string{
				{"--set", "ranks=1"}, {"--set", "ranks=3", "--set", "zero=2"}, {"--set", "ranks=4", "--hosts", "a,a,b,b", "--listen", "tcp:127.0.0.1:0"},
				{"--set", "ranks=4", "--set", "zero=3", "--transport", "unix"},
			} {
				r := runtimeResult(t, filepath.Join(t.TempDir(), "run"), append([]string{"exec", invarianceRecipe(), "--set", set, "--set", "steps=8"}, args...)...)
				if first == nil {
					first = r
				}
				if r.WeightsSHA256 != first.WeightsSHA256 {
					t.Errorf("%v: weights %s, want %s", args, r.WeightsSHA256, first.WeightsSHA256)
				}
			}
		})
	}
	t.Run("plain Go kernels", func(t *testing.T) { // slow, so fewer steps, against the same few on the fastest kernels
		args := []string{"exec", invarianceRecipe(), "--set", "ranks=2", "--set", "steps=4"}
		fast := runtimeResult(t, filepath.Join(t.TempDir(), "fast"), args...)
		t.Setenv("STARLING_KERNELS", "generic")
		slow := runtimeResult(t, filepath.Join(t.TempDir(), "slow"), args...)
		if slow.Kernels != "generic" || slow.WeightsSHA256 != fast.WeightsSHA256 {
			t.Errorf("%s kernels: weights %s, want %s as with %s", slow.Kernels, slow.WeightsSHA256, fast.WeightsSHA256, fast.Kernels)
		}
	})
	t.Run("killed and resumed", func(t *testing.T) {
		seed := uint64(time.Now().UnixNano())
		t.Logf("seed %d", seed)
		random := rand.New(rand.NewPCG(seed, 0))
		for i := range 3 {
			dir := filepath.Join(t.TempDir(), strconv.Itoa(i))
			args := []string{"exec", invarianceRecipe(), "--run-dir", dir, "--set", "checkpoint=3"}
			kills := 0
			for done := false; !done; {
				now := append(args, "--set", ranksArg(1+random.IntN(4)), "--set", "zero="+strconv.Itoa(random.IntN(4)))
				if _, err := os.Stat(filepath.Join(dir, "run.json")); err == nil {
					now = append(now, "--resume")
				} else if err := os.RemoveAll(dir); err != nil { // killed before the run was recorded
					t.Fatal(err)
				}
				p := start(t, now...)
				limit := time.Duration(float64(time.Second) * (0.1 + 0.5*random.Float64()))
				if kills >= 4 {
					limit = 2 * time.Minute // let it finish
				}
				select {
				case <-p.exited:
				case <-time.After(limit):
					_ = p.cmd.Process.Signal(syscall.SIGKILL)
					<-p.exited
					kills++
				}
				code := p.cmd.ProcessState.ExitCode()
				if code > 0 {
					t.Fatalf("%v: exit status %d after %d kills:\n%s", now, code, kills, p.stderr.String())
				}
				done = code == 0
				eventually(t, 10*time.Second, "ranks outlive their launcher", func() bool { return len(children(t, dir)) == 0 })
			}
			same(t, fmt.Sprintf("after %d kills", kills), readResult(t, dir))
		}
	})
}

// A resume on a processor that multiplies bfloat16 otherwise says so, where that decides bits.
func TestAResumeWithOtherArithmeticIsTold(t *testing.T) {
	if vec.BF16Class() == vec.BF16FMA {
		t.Skip("this processor has no instructions for bfloat16, without which all processors compute alike")
	}
	for precision, want := range map[string]bool{"bf16": true, "fp32": false} {
		dir := filepath.Join(t.TempDir(), "run")
		args := []string{"exec", invarianceRecipe(), "--run-dir", dir, "--set", "precision=" + precision, "--set", "steps=2"}
		if code := start(t, args...).wait(t, time.Minute); code != 0 {
			t.Fatalf("exit status %d", code)
		}
		p := startThrough(t, nil, []string{"STARLING_KERNELS=avx2"}, append(args, "--resume")...)
		if code := p.wait(t, time.Minute); code != 0 {
			t.Errorf("%s: exit status %d\n%s", precision, code, p.stderr.String())
		}
		if told := strings.Contains(p.stderr.String(), `arithmetic "bf16 `+vec.BF16Class()+`" and goes on with "bf16 fma"`); told != want {
			t.Errorf("%s: told is %v, want %v\n%s", precision, told, want, p.stderr.String())
		}
	}
}

// available reports whether a kernel set runs here.
func available(t *testing.T, kernels string) bool {
	t.Helper()
	t.Setenv("STARLING_KERNELS", kernels)
	p := start(t, "version")
	return p.wait(t, 10*time.Second) == 0 && strings.Contains(p.stdout.String(), "kernels "+kernels)
}

// stepLine is a line of a run's metrics.
type stepLine struct {
	Kind     string  `json:"kind"`
	Step     int     `json:"step"`
	GradNorm float64 `json:"grad_norm"`
}

// stepMetrics reads the steps of a run.
func stepMetrics(t *testing.T, dir string) (out []stepLine) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, train.MetricsFile))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		var m stepLine
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if m.Kind == "step" {
			out = append(out, m)
		}
	}
	return out
}

package main

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"starling/core/train"
)

// slowRecipe is a run on two ranks that goes on until it is stopped.
const slowRecipe = `
load("@std//models/mlp.star", "mlp")
ranks = param("ranks", 2, "data-parallel ranks")
rate = param("rate", 0.01, "learning rate")
digits = data.digits(samples = 400, seed = 1)
model = mlp(classes = 10, widths = [64])
def loss(batch):
    return nn.cross_entropy(model(batch.features), batch.labels)
train(
    loss       = loss,
    data       = loader(digits.train, global_batch = 32, micro_batch = 8),
    optimizer  = optim.sgd(lr = rate),
    parallel   = parallel.mesh(data = ranks),
    checkpoint = checkpoint(every = 0),
    steps      = 100000000,
)
`

// running waits until a run has taken steps.
func running(t *testing.T, p *process, dir string) {
	t.Helper()
	eventually(t, 20*time.Second, "the run takes no step; stderr:\n"+p.stderr.String(), func() bool {
		info, err := os.Stat(filepath.Join(dir, train.MetricsFile))
		return err == nil && info.Size() > 0
	})
}

func TestSIGTERMLeavesACheckpointAndNoProcess(t *testing.T) {
	recipe := recipeFile(t, slowRecipe)
	dir := filepath.Join(t.TempDir(), "run")
	p := start(t, "exec", recipe, "--run-dir", dir)
	running(t, p, dir)
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := p.wait(t, 20*time.Second); code != 130 {
		t.Errorf("exit status %d, want 130\n%s", code, p.stderr.String())
	}
	contains(t, p.stderr.String(), "interrupted", "--resume")
	committed, err := filepath.Glob(filepath.Join(dir, train.CheckpointFolder, "step-*", "COMMIT"))
	if err != nil || len(committed) != 1 {
		t.Errorf("%d committed checkpoints (%v), want 1", len(committed), err)
	}
	if left := children(t, dir); len(left) != 0 {
		t.Errorf("processes %v are still there", left)
	}
}

func TestAWorkerThatDiesEndsTheRun(t *testing.T) {
	recipe := recipeFile(t, slowRecipe)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for i := range 6 {
		dir := filepath.Join(t.TempDir(), strconv.Itoa(i))
		p := start(t, "exec", recipe, "--run-dir", dir)
		var workers []string
		eventually(t, 20*time.Second, "no workers; stderr:\n"+p.stderr.String(), func() bool { workers = children(t, dir); return len(workers) == 2 })
		// From before the rendezvous to some way into the run.
		time.Sleep(time.Duration(random.IntN(1+i*60)) * time.Millisecond)
		pid, err := strconv.Atoi(workers[random.IntN(2)])
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if code := p.wait(t, 15*time.Second); code != 1 {
			t.Errorf("exit status %d, want 1\n%s", code, p.stderr.String())
		}
		contains(t, p.stderr.String(), fmt.Sprintf("(pid %d) was killed by signal 9", pid))
		if left := children(t, dir); len(left) != 0 {
			t.Errorf("processes %v are still there", left)
		}
	}
}

func TestAKilledLauncherLeavesNoOrphans(t *testing.T) {
	recipe := recipeFile(t, slowRecipe)
	dir := filepath.Join(t.TempDir(), "run")
	p := start(t, "exec", recipe, "--run-dir", dir)
	running(t, p, dir)
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-p.exited
	eventually(t, 10*time.Second, "workers outlive the launcher", func() bool { return len(children(t, dir)) == 0 })
}

func TestATakenPortIsNamed(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	p := start(t, "exec", recipeFile(t, slowRecipe), "--run-dir", filepath.Join(t.TempDir(), "run"), "--listen", fmt.Sprintf("tcp:127.0.0.1:%d", port))
	if code := p.wait(t, 15*time.Second); code == 0 {
		t.Error("the run succeeded on a taken port")
	}
	contains(t, p.stderr.String(), strconv.Itoa(port), "in use")
}

func TestDamagedCheckpointsArePassedOver(t *testing.T) {
	recipe := recipeFile(t, strings.Replace(strings.Replace(slowRecipe, "every = 0", "every = 5", 1), "100000000", `param("steps", 20, "")`, 1))
	dir := filepath.Join(t.TempDir(), "run")
	whole := runtimeResult(t, dir, "exec", recipe)
	for _, damage := range []struct {
		name string
		do   func(t *testing.T, shard string)
	}{
		{"truncated", func(t *testing.T, f string) {
			if err := os.Truncate(f, 1000); err != nil {
				t.Fatal(err)
			}
		}},
		{"a flipped bit", func(t *testing.T, f string) {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			b[len(b)-100] ^= 4
			if err := os.WriteFile(f, b, 0o644); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(damage.name, func(t *testing.T) {
			newest := filepath.Join(dir, train.CheckpointFolder, "step-00000020")
			damage.do(t, filepath.Join(newest, "shard-00000.safetensors"))
			p := start(t, "exec", recipe, "--run-dir", dir, "--resume")
			if code := p.wait(t, time.Minute); code != 0 {
				t.Fatalf("exit status %d\n%s", code, p.stderr.String())
			}
			contains(t, p.stderr.String(), "passed over", newest, "step-00000015")
			if r := readResult(t, dir); r.WeightsSHA256 != whole.WeightsSHA256 {
				t.Errorf("weights %s after the resume, want %s", r.WeightsSHA256, whole.WeightsSHA256)
			}
		})
	}
}

func TestAResumeWithOtherParametersIsRefused(t *testing.T) {
	recipe := recipeFile(t, strings.Replace(strings.Replace(slowRecipe, "every = 0", "every = 5", 1), "100000000", "6", 1))
	dir := filepath.Join(t.TempDir(), "run")
	runtimeResult(t, dir, "exec", recipe)
	text, err := os.ReadFile(recipe)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(recipe, []byte(strings.Replace(string(text), "lr = rate", "lr = 2 * rate", 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	p := start(t, "exec", recipe, "--run-dir", dir, "--resume")
	if code := p.wait(t, time.Minute); code != 1 {
		t.Errorf("exit status %d, want 1", code)
	}
	contains(t, p.stderr.String(), "cannot be gone on with", recipe+" was changed")
	if err := os.WriteFile(recipe, text, 0o644); err != nil {
		t.Fatal(err)
	}
	p = start(t, "exec", recipe, "--run-dir", dir, "--resume", "--set", "rate=0.5", "--set", ranksArg(3))
	p.wait(t, time.Minute)
	contains(t, p.stderr.String(), "rate was 0.01 and is now 0.5")
	if strings.Contains(p.stderr.String(), "ranks was") {
		t.Errorf("a change of ranks, which is allowed, is among the reasons:\n%s", p.stderr.String())
	}
	p = start(t, "exec", recipe, "--run-dir", dir, "--resume")
	if code := p.wait(t, time.Minute); code != 0 {
		t.Errorf("exit status %d of a finished run's resume", code)
	}
	contains(t, p.stderr.String(), "had taken all its steps")
}

// TestAStalledRankIsNamed stops a rank of four for longer than the deadline of collectives: the run ends, naming that rank and no other, the
// operation, the parameter and the recipe's line. The other ranks make one report, whatever connects them, and leave their stacks.
func TestAStalledRankIsNamed(t *testing.T) {
	for name, args := range map[string][]string{"shared memory": nil, "TCP": {"--transport", "tcp"}, "two hosts": {"--hosts", "a,a,b,b"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text := strings.Replace(slowRecipe, "mesh(data = ranks", "mesh(data = ranks, timeout = 2", 1)
			if name == "TCP" { // parameters and the gradient's norm travel as well
				text = strings.Replace(text, "timeout = 2", "timeout = 2, zero = 3", 1)
				text = strings.Replace(text, "    steps ", "    clip_norm  = 1.0,\n    steps ", 1)
			}
			recipe := recipeFile(t, text)
			dir := filepath.Join(t.TempDir(), "run")
			p := start(t, append([]string{"exec", recipe, "--run-dir", dir, "--set", "ranks=4"}, args...)...)
			running(t, p, dir)
			pid, err := strconv.Atoi(children(t, dir)[2])
			if err != nil {
				t.Fatal(err)
			}
			if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			if code := p.wait(t, 30*time.Second); code != 1 {
				t.Errorf("exit status %d, want 1\n%s", code, p.stderr.String())
			}
			contains(t, p.stderr.String(), fmt.Sprintf("(pid %d)", pid), "number ", " of group data")
			stacks, err := filepath.Glob(filepath.Join(dir, "stacks-rank*.txt"))
			if err != nil || len(stacks) != 3 {
				t.Errorf("stacks %v in the run folder (%v), want those of the three other ranks", stacks, err)
			}
			logged, err := os.ReadFile(filepath.Join(dir, "ranks.log"))
			if err != nil {
				t.Fatal(err)
			}
			operations, err := filepath.Glob(filepath.Join(dir, "operations-rank*.txt"))
			if err != nil || len(operations) != 3 {
				t.Errorf("operations %v in the run folder (%v), want those of the three other ranks", operations, err)
			}
			kinds := map[string]bool{}
			for _, path := range operations {
				text, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				for line := range strings.Lines(string(text)) {
					if _, label, ok := strings.Cut(line, `"`); ok {
						kinds[strings.Fields(label)[0]] = true
						if !strings.Contains(label, " at recipe.star:") {
							t.Errorf("an operation without the recipe's line: %s", line)
						}
					}
				}
			}
			if want := []string{"gradient", "losses"}; name == "TCP" {
				for _, k := range append(want, "parameters", "partial") {
					if !kinds[k] {
						t.Errorf("no operation %s among %v", k, kinds)
					}
				}
			}
			reports := map[string]int{}
			for line := range strings.Lines(string(logged)) {
				if _, text, ok := strings.Cut(line, "] comm: "); ok {
					reports[text]++
				}
			}
			if len(reports) != 1 {
				t.Errorf("the ranks report:\n%s", logged)
			}
			for text, n := range reports {
				if n != 3 || !strings.HasPrefix(text, "rank ") {
					t.Errorf("%d ranks report %s", n, text)
				}
			}
			if left := children(t, dir); len(left) != 0 {
				t.Errorf("processes %v are still there", left)
			}
		})
	}
}

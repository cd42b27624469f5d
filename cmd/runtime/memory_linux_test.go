package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// pss is the memory of a process as the system shares it out, in bytes: a page that n processes map counts 1/n for each. Files
// is the part of it that is pages of files, which the system takes away when it needs them. 0 where the process has ended.
func pss(pid string) (all, files int64) {
	b, err := os.ReadFile("/proc/" + pid + "/smaps_rollup")
	if err != nil {
		return 0, 0
	}
	for line := range bytes.Lines(b) {
		f := strings.Fields(string(line))
		if len(f) < 3 {
			continue
		}
		kb, _ := strconv.ParseInt(f[1], 10, 64)
		switch f[0] {
		case "Pss:":
			all = kb << 10
		case "Pss_File:":
			files = kb << 10
		}
	}
	return all, files
}

// diskRecipe keeps parameters and optimizer state of 8 million parameters in files.
const diskRecipe = `
load("@std//models/mlp.star", "mlp")
ranks = param("ranks", 2, "data-parallel ranks")
width = param("width", 1024, "width of the hidden layers")
depth = param("depth", 8, "hidden layers")
steps = param("steps", 8, "optimizer steps")
offload = param("offload", "disk", "where optimizer state and parameters are")
every = param("every", 4, "steps between evaluations and checkpoints")
digits = data.digits(samples = 400, seed = 1, holdout = 0.2)
model = mlp(classes = 10, widths = [width] * depth)
def loss(batch):
    return nn.cross_entropy(model(batch.features), batch.labels)
train(
    loss       = loss,
    data       = loader(digits.train, global_batch = 32, micro_batch = 8),
    optimizer  = optim.adamw(lr = 1e-4),
    clip_norm  = 1.0,
    parallel   = parallel.mesh(data = ranks, zero = 3, offload = offload or None, timeout = 60),
    evaluate   = evaluate(digits.holdout, every = every, best = "loss"),
    checkpoint = checkpoint(every = every),
    steps      = steps,
)
`

// TestPredictedProcessMemory: what the plan says before a run is what its processes take, within a tenth and 64 MB, for models of
// different shapes; and what the arenas and buffers really use is what was planned for them.
func TestPredictedProcessMemory(t *testing.T) {
	if all, _ := pss("self"); all == 0 {
		t.Skip("the system does not tell a process's share of memory (/proc/self/smaps_rollup)")
	}
	recipes := filepath.Join("..", "..", "recipes")
	for _, c := range []struct {
		name, recipe string
		ranks        int
		set          []string
	}{
		{"quickstart", filepath.Join(recipes, "quickstart.star"), 2, []string{"steps=30"}},
		{"gpt_zero3", filepath.Join(recipes, "gpt_zero3.star"), 2, []string{"steps=2"}},
		{"gpt_fp16", filepath.Join(recipes, "gpt_fp16.star"), 3, []string{"steps=20", "ranks=3"}},
		{"convnet_digits", filepath.Join(recipes, "convnet_digits.star"), 1, []string{"epochs=1"}},
		{"offload to disk", recipeFile(t, diskRecipe), 2, []string{"steps=4"}},
		{"offload to host", recipeFile(t, diskRecipe), 2, []string{"steps=4", "offload=host"}},
		{"long: cifar_resnet18", filepath.Join(recipes, "cifar_resnet18.star"), 1, []string{"epochs=1", "width=8"}},
		{"long: small_gpt", filepath.Join(recipes, "small_gpt.star"), 1, []string{"steps=2", "files=$GOROOT/src/net/http/*.go"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if strings.HasPrefix(c.name, "long") && os.Getenv("STARLING_LONG") == "" {
				t.Skip("ten seconds each: set STARLING_LONG=1")
			}
			dir := filepath.Join(t.TempDir(), "run")
			args := []string{"exec", c.recipe, "--run-dir", dir, "--threads", "1"}
			for _, s := range c.set {
				args = append(args, "--set", s)
			}
			p := start(t, args...)
			var most, mostFiles int64 // of one rank at one time
			for end, running := time.Now().Add(3*time.Minute), true; running; {
				select {
				case <-p.exited:
					running = false
					continue
				case <-time.After(25 * time.Millisecond):
				}
				if time.Now().After(end) {
					t.Fatalf("the run takes too long\n%s", p.stderr.String())
				}
				pids := []string{strconv.Itoa(p.cmd.Process.Pid)}
				if c.ranks > 1 {
					pids = children(t, envRunDir+"="+dir)
				}
				for _, pid := range pids {
					if all, files := pss(pid); all > most {
						most, mostFiles = all, files
					}
				}
			}
			if code := p.wait(t, time.Second); code != 0 {
				t.Fatalf("exit status %d\n%s", code, p.stderr.String())
			}
			r := readResult(t, dir)
			slack := r.PlannedPeak/10 + 64<<20
			t.Logf("planned %s, used %s, measured %s, %s of it pages of files", bytesText(r.PlannedPeak), bytesText(r.Peak), bytesText(most), bytesText(mostFiles))
			if off := most - r.PlannedPeak; off > slack || off < -slack {
				t.Errorf("%s measured, %s planned: more than a tenth and 64 MB away", bytesText(most), bytesText(r.PlannedPeak))
			}
			if r.Peak > r.PlannedPeak {
				t.Errorf("%s used of %s planned", bytesText(r.Peak), bytesText(r.PlannedPeak))
			}
		})
	}
}

// memoryGroup makes a control group whose processes have so many bytes of memory, pages of files included, and returns its
// folder. It skips the test where that is not allowed.
func memoryGroup(t *testing.T, name string, limit int64) string {
	t.Helper()
	dir, file := filepath.Join("/sys/fs/cgroup/memory", name), "memory.limit_in_bytes"
	if _, err := os.Stat("/sys/fs/cgroup/memory/memory.limit_in_bytes"); errors.Is(err, fs.ErrNotExist) {
		dir, file = filepath.Join("/sys/fs/cgroup", name), "memory.max"
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Skipf("no memory limit can be set here: %v", err)
	}
	t.Cleanup(func() {
		for range 50 { // until its processes are gone
			if os.Remove(dir) == nil {
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
	})
	if err := os.WriteFile(filepath.Join(dir, file), []byte(fmt.Sprint(limit)), 0o644); err != nil {
		t.Skipf("no memory limit can be set here: %v", err)
	}
	return dir
}

// TestStateLargerThanMemory: a model whose parameters, gradients and optimizer state are more than four times what each of its four ranks
// may take, pages of files included, is initialised, trained, evaluated, saved and resumed under that limit, to the weights
// that it has without one. Checkpoints are the export: safetensors files.
func TestStateLargerThanMemory(t *testing.T) {
	const ranks, limit = 4, 88 << 20
	var disk unix.Statfs_t
	if err := unix.Statfs(t.TempDir(), &disk); err != nil || disk.Type == unix.TMPFS_MAGIC {
		t.Skipf("the folder of temporary files is no disk (%v): files in it would take the memory that they are to save; set TMPDIR", err)
	}
	recipe := recipeFile(t, diskRecipe)
	set := []string{"--set", "depth=23", "--set", ranksArg(ranks), "--threads", "1"}
	var groups []string
	for r := range ranks {
		groups = append(groups, memoryGroup(t, fmt.Sprintf("starling-%d-%d", os.Getpid(), r), limit))
	}
	limited := func(dir string, more ...string) {
		t.Helper()
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		meet := l.Addr().String()
		l.Close()
		var ps []*process
		for r, group := range groups {
			args := append(append([]string{"exec", recipe, "--run-dir", dir, "--rendezvous", meet}, set...), more...)
			enter := []string{"sh", "-c", `echo $$ > "$0/cgroup.procs" && exec "$@"`, group}
			ps = append(ps, startThrough(t, enter, []string{fmt.Sprint("RANK=", r), fmt.Sprint("WORLD_SIZE=", ranks), "STARLING_SECRET=the secret of this test", "STARLING_HOST=here"}, args...))
		}
		for r, p := range ps {
			if code := p.wait(t, 2*time.Minute); code != 0 {
				t.Fatalf("rank %d under %s: exit status %d\n%s", r, bytesText(limit), code, p.stderr.String())
			}
		}
	}
	dir := filepath.Join(t.TempDir(), "run")
	limited(dir, "--set", "steps=2", "--set", "every=1")
	first := readResult(t, dir)
	if state := 16 * first.Parameters; state < 4*limit {
		t.Errorf("parameters, gradients and optimizer state are %s, less than four times the limit of %s", bytesText(state), bytesText(limit))
	}
	if first.EvalLoss == nil {
		t.Error("the run was not evaluated")
	}
	saved, err := filepath.Glob(filepath.Join(dir, "checkpoints", "step-*"))
	if err != nil || len(saved) < 2 {
		t.Fatalf("checkpoints %v, want those of steps 1 and 2", saved)
	}
	// The last checkpoint goes, and the run goes on from the one before, under the limit.
	if err := os.RemoveAll(saved[len(saved)-1]); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "result.json")); err != nil {
		t.Fatal(err)
	}
	limited(dir, "--resume")
	if got := readResult(t, dir).WeightsSHA256; got != first.WeightsSHA256 {
		t.Errorf("resumed, weights %.16s, without a stop %.16s", got, first.WeightsSHA256)
	}
	free := runtimeResult(t, filepath.Join(t.TempDir(), "run"), append([]string{"exec", recipe, "--set", "steps=2", "--set", "every=1", "--set", "offload="}, set...)...)
	if free.WeightsSHA256 != first.WeightsSHA256 {
		t.Errorf("weights %.16s under the limit, %.16s without one and without offload", first.WeightsSHA256, free.WeightsSHA256)
	}
	t.Logf("%s of state, %s a rank; planned %s a rank with offload, %s without", bytesText(16*first.Parameters), bytesText(limit), bytesText(first.PlannedPeak), bytesText(free.PlannedPeak))
}

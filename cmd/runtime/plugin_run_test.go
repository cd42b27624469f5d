package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"starling/core/plugin"
)

// serveAs makes this test binary a plugin of that name in a folder. It serves the optimizers of plugin_reference.go.
func serveAs(t *testing.T, dir, name string) {
	t.Helper()
	self, err := os.Executable()
	if err == nil {
		err = os.MkdirAll(dir, 0o755)
	}
	if err == nil {
		if err = os.Link(self, filepath.Join(dir, name)); err != nil {
			err = copyFile(filepath.Join(dir, name), self, 0o755)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

// pluginRecipe is the recipe of the invariance table, with the optimizer that param "optimizer" names and with any placement.
func pluginRecipe(t *testing.T) string {
	t.Helper()
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	b, err := os.ReadFile(invarianceRecipe())
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	const settings = `        betas = (0.9, 0.95),
        weight_decay = 0.1,
        state = state,
    )`
	from := strings.Index(text, "optim.adamw(")
	to := strings.Index(text, settings)
	if from < 0 || to < 0 {
		t.Fatal("the recipe of the invariance table has changed")
	}
	schedule := text[from+len("optim.adamw(") : to]
	text = text[:from] + "make(" + schedule + settings + text[to+len(settings):]
	text = strings.Replace(text, "def loss(batch):", `which = param("optimizer", "built-in", "who makes the update")

def make(**args):
    if which == "built-in":
        return optim.adamw(**args)
    args.pop("state")
    if which == "mixed":
        return optim.mix([("*.weight", plugin.optimizer("reference-adamw", **args))], rest = optim.adamw(**args))
    return plugin.optimizer(which, **args)

def loss(batch):`, 1)
	path := recipeFile(t, text)
	for _, name := range []string{"reference-adamw", "reference-adamw-whole"} {
		serveAs(t, filepath.Join(filepath.Dir(path), "plugins"), name)
	}
	return path
}

// A plugin gives the same bits as the same algorithm in the program, wherever the run is placed.
func TestPluginHash(t *testing.T) {
	recipe := pluginRecipe(t)
	base := runtimeResult(t, filepath.Join(t.TempDir(), "base"), "exec", recipe, "--threads", "1")
	cases := []string{"reference-adamw 3 2", "reference-adamw-whole 3 3", "mixed 1 0", "mixed 2 3"}
	for _, ranks := range []int{1, 2, 4} {
		for zero := range 4 {
			cases = append(cases, fmt.Sprintf("reference-adamw %d %d", ranks, zero), fmt.Sprintf("reference-adamw-whole %d %d", ranks, zero))
		}
	}
	for _, c := range cases {
		t.Run(c, func(t *testing.T) {
			f := strings.Fields(c)
			dir := filepath.Join(t.TempDir(), "run")
			r := runtimeResult(t, dir, append([]string{"exec", recipe}, pluginSets("optimizer="+f[0], "ranks="+f[1], "zero="+f[2])...)...)
			if r.WeightsSHA256 != base.WeightsSHA256 || r.TrainLoss != base.TrainLoss {
				t.Errorf("weights %s, want %s", r.WeightsSHA256, base.WeightsSHA256)
			}
			if left := children(t, dir); len(left) != 0 {
				t.Errorf("processes %v are still there", left)
			}
		})
	}
}

// A plugin works on the exact form of parameters under half precision, and on files under offload to disk.
func TestPluginHalfPrecisionAndDisk(t *testing.T) {
	recipe := pluginRecipe(t)
	for _, c := range []struct{ sets, placements string }{
		{"precision=bf16", "reference-adamw 2 3, mixed 3 2"},
		{"precision=fp16", "reference-adamw 1 0"},
		{"precision=bf16 offload=disk", "reference-adamw 2 3, reference-adamw-whole 2 1"},
	} {
		t.Run(c.sets, func(t *testing.T) {
			sets := strings.Fields(c.sets)
			base := runtimeResult(t, filepath.Join(t.TempDir(), "base"), append([]string{"exec", recipe}, pluginSets(sets...)...)...)
			for _, p := range strings.Split(c.placements, ", ") {
				f := strings.Fields(p)
				r := runtimeResult(t, filepath.Join(t.TempDir(), "run"), append([]string{"exec", recipe}, pluginSets(append(sets[:len(sets):len(sets)], "optimizer="+f[0], "ranks="+f[1], "zero="+f[2])...)...)...)
				if r.WeightsSHA256 != base.WeightsSHA256 || r.TrainLoss != base.TrainLoss || r.Skipped != base.Skipped {
					t.Errorf("%s: weights %s, want %s", p, r.WeightsSHA256, base.WeightsSHA256)
				}
			}
		})
	}
}

// pluginProcesses lists the live plugins that were started from a folder.
func pluginProcesses(t *testing.T, dir string) (pids []int) {
	t.Helper()
	links, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		if b, err := os.ReadFile(l); err == nil && strings.HasPrefix(string(b), dir) {
			if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(l))); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// Plugins that are killed at random moments of a run change nothing; so does killing the whole run and going on.
func TestPluginKills(t *testing.T) {
	recipe := pluginRecipe(t)
	base := runtimeResult(t, filepath.Join(t.TempDir(), "base"), "exec", recipe)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	plugins := filepath.Join(filepath.Dir(recipe), "plugins")
	kills := 0
	for i := 0; kills < 20; i++ {
		dir := filepath.Join(t.TempDir(), strconv.Itoa(i))
		p := start(t, append([]string{"exec", recipe, "--run-dir", dir}, pluginSets("optimizer=reference-adamw", "ranks=2", fmt.Sprintf("zero=%d", i%4))...)...)
		for done, start := false, time.Now(); !done; {
			select {
			case <-p.exited:
				done = true
			case <-time.After(time.Duration(20+random.IntN(150)) * time.Millisecond):
				if time.Since(start) > time.Minute {
					t.Fatal("the run does not end")
				}
				if pids := pluginProcesses(t, plugins); len(pids) > 0 && kills < 20 {
					if syscall.Kill(pids[random.IntN(len(pids))], syscall.SIGKILL) == nil {
						kills++
					}
				}
			}
		}
		if code := p.cmd.ProcessState.ExitCode(); code != 0 {
			t.Fatalf("exit status %d\n%s", code, p.stderr.String())
		}
		if r := readResult(t, dir); r.WeightsSHA256 != base.WeightsSHA256 {
			t.Errorf("after %d kills: weights %s, want %s\n%s", kills, r.WeightsSHA256, base.WeightsSHA256, p.stderr.String())
		}
	}
	dir := filepath.Join(t.TempDir(), "resumed")
	args := append([]string{"exec", recipe, "--run-dir", dir}, pluginSets("optimizer=reference-adamw", "ranks=2", "zero=1", "checkpoint=3")...)
	p := start(t, args...)
	eventually(t, 20*time.Second, "no checkpoint", func() bool {
		c, _ := filepath.Glob(filepath.Join(dir, "checkpoints", "step-*", "COMMIT"))
		return len(c) > 0
	})
	_ = p.cmd.Process.Kill()
	<-p.exited
	eventually(t, 10*time.Second, "plugins outlive their ranks", func() bool { return len(pluginProcesses(t, plugins)) == 0 })
	if r := runtimeResult(t, dir, append(append([]string{"exec", recipe}, args[4:]...), "--resume")...); r.WeightsSHA256 != base.WeightsSHA256 {
		t.Errorf("after a resume: weights %s, want %s", r.WeightsSHA256, base.WeightsSHA256)
	}
}

func TestPluginMistakesInRecipes(t *testing.T) {
	recipe := pluginRecipe(t)
	text, err := os.ReadFile(recipe)
	if err != nil {
		t.Fatal(err)
	}
	for call, want := range map[string]string{
		`plugin.optimizer("lion", lr = 1e-3)`:                                                          `there is no plugin "lion"`,
		`plugin.optimizer("../lion", lr = 1e-3)`:                                                       `"../lion" is no plugin's name`,
		`plugin.optimizer("reference-adamw", lr = 1e-3, beta = 1)`:                                     `plugin.optimizer: plugin reference-adamw has no hyper-parameter "beta"; did you mean "betas"?`,
		`plugin.optimizer("reference-adamw", lr = 1e-3, betas = 1)`:                                    `betas must be a list of numbers, not the int 1`,
		`plugin.optimizer("reference-adamw", lr = 1e-3, betas = (0.9, 1.0))`:                           `betas = 1: must be at least 0 and be below 1`,
		`plugin.optimizer("reference-adamw", lr = 1e-3, betas = (0.9, 0.9, 0))`:                        `betas has 3 numbers: must have 2`,
		`plugin.optimizer("reference-adamw", lr = 1e-3, eps = "small")`:                                `eps must be a number, not the string "small"`,
		`plugin.optimizer("reference-adamw", lr = -1)`:                                                 `lr = -1: must be a finite number`,
		`optim.mix([("*", "adamw")], rest = optim.sgd(lr = 1))`:                                        `"*" must be given an optimizer`,
		`optim.mix([("[", optim.sgd(lr = 1))], rest = optim.sgd(lr = 1))`:                              `pattern "["`,
		`plugin.optimizer("reference-adamw", lr = 1, groups = [optim.group("*", weight_decay = 1.0)])`: `scale the learning rate only`,
	} {
		path := filepath.Join(filepath.Dir(recipe), "mistake.star")
		if err := os.WriteFile(path, []byte(strings.Replace(string(text), "plugin.optimizer(which, **args)", call, 1)), 0o644); err != nil {
			t.Fatal(err)
		}
		p := start(t, "check", path, "--set", "optimizer=wrong")
		if code := p.wait(t, 20*time.Second); code != 1 {
			t.Errorf("%s: exit status %d", call, code)
		}
		contains(t, p.stderr.String(), "mistake.star:", want)
	}
}

// Once a plugin is pinned, a check does not start it and stays quick.
func TestCheckDoesNotStartAPinnedPlugin(t *testing.T) {
	recipe := pluginRecipe(t)
	check := func() {
		t.Helper()
		p := start(t, append([]string{"check", recipe}, pluginSets("optimizer=reference-adamw")...)...)
		if code := p.wait(t, 20*time.Second); code != 0 {
			t.Fatalf("exit status %d\n%s", code, p.stderr.String())
		}
	}
	check()
	lock := filepath.Join(filepath.Dir(recipe), plugin.LockFile)
	b, err := os.ReadFile(lock)
	if err != nil {
		t.Fatal(err)
	}
	// A manifest that only the lock file has: if the plugin were asked, its own would count.
	if err := os.WriteFile(lock, []byte(strings.Replace(string(b), `"version": "1.0.0"`, `"version": "9.9.9"`, 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	check()
	if after, _ := os.ReadFile(lock); !strings.Contains(string(after), "9.9.9") {
		t.Error("the plugin was asked for its manifest")
	}
}

// pluginSets are --set flags.
func pluginSets(kv ...string) (out []string) {
	for _, s := range kv {
		out = append(out, "--set", s)
	}
	return out
}

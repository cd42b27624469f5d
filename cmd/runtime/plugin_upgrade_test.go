package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A run goes on with another version of its plugin, wherever it is placed, if the plugin can upgrade the state that is there. The
// versions here keep it in other forms and compute the same bits.
func TestPluginUpgrade(t *testing.T) {
	recipe := pluginRecipe(t)
	text, err := os.ReadFile(recipe)
	if err != nil {
		t.Fatal(err)
	}
	text = []byte(strings.Replace(string(text), "args.pop(\"state\")\n", `args.pop("state")
    if which == "moving":
        return plugin.optimizer("moving", lr = args["lr"], momentum = 0.75)
    if which == "moving and adamw":
        return optim.mix([("*.weight", plugin.optimizer("moving", lr = args["lr"], momentum = 0.75))], rest = optim.adamw(**args))
`, 1))
	if err := os.WriteFile(recipe, text, 0o644); err != nil {
		t.Fatal(err)
	}
	built := t.TempDir()
	for _, v := range []string{"1.0.0", "2.0.0", "3.0.0", "4.0.0", "5.0.0"} {
		cmd := exec.Command("go", "build", "-ldflags", "-X main.version="+v, "-o", filepath.Join(built, v), "./testdata/upgrade")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	path := filepath.Join(filepath.Dir(recipe), "plugins", "moving")
	lock := filepath.Join(filepath.Dir(recipe), "plugins.lock")
	install := func(version string) {
		t.Helper()
		_ = os.Remove(path)
		_ = os.Remove(lock)
		if err := copyFile(path, filepath.Join(built, version), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	run := func(dir, optimizer, placement string, more ...string) *process {
		p := start(t, append(append([]string{"exec", recipe, "--run-dir", dir}, more...), pluginSets(append(strings.Fields(placement), "optimizer="+optimizer)...)...)...)
		return p
	}
	// cut leaves of a run the checkpoints up to step 10.
	cut := func(dir string) string {
		t.Helper()
		to := filepath.Join(t.TempDir(), "run")
		if err := os.CopyFS(to, os.DirFS(dir)); err != nil {
			t.Fatal(err)
		}
		for _, step := range []string{"15", "20"} {
			found, err := filepath.Glob(filepath.Join(to, "checkpoints", "*000"+step))
			if err != nil || len(found) == 0 {
				t.Fatalf("no checkpoint of step %s: %v", step, err)
			}
			for _, f := range found {
				if err := os.RemoveAll(f); err != nil {
					t.Fatal(err)
				}
			}
		}
		return to
	}
	ok := func(p *process) {
		t.Helper()
		if code := p.wait(t, time.Minute); code != 0 {
			t.Fatalf("exit status %d\n%s", code, p.stderr.String())
		}
	}
	for _, optimizer := range []string{"moving", "moving and adamw"} {
		install("1.0.0")
		base := filepath.Join(t.TempDir(), "base")
		ok(run(base, optimizer, "ranks=2 zero=1"))
		want := readResult(t, base).WeightsSHA256
		for _, c := range []struct{ version, placement string }{{"2.0.0", "ranks=1"}, {"2.0.0", "ranks=3 zero=3"}, {"4.0.0", "ranks=2 zero=2"}} {
			t.Run(optimizer+" to "+c.version+" "+c.placement, func(t *testing.T) {
				install(c.version)
				dir := cut(base)
				p := run(dir, optimizer, c.placement, "--resume")
				ok(p)
				contains(t, p.stderr.String(), "the optimizer's state is upgraded: moving 1.0.0 to "+c.version)
				if r := readResult(t, dir); r.WeightsSHA256 != want {
					t.Errorf("weights %s, want %s", r.WeightsSHA256, want)
				}
				if c.version == "4.0.0" || c.placement != "ranks=1" {
					return
				}
				// From there once more: what the new version has written is its own, and can be upgraded again.
				again := cut(dir)
				if err := os.RemoveAll(filepath.Join(dir, "checkpoints", "step-00000020")); err != nil {
					t.Fatal(err)
				}
				install("4.0.0")
				p = run(dir, optimizer, "ranks=1", "--resume")
				ok(p)
				contains(t, p.stderr.String(), "the optimizer's state is upgraded: moving 2.0.0 to 4.0.0")
				if r := readResult(t, dir); r.WeightsSHA256 != want {
					t.Errorf("weights %s after two upgrades, want %s", r.WeightsSHA256, want)
				}
				ok(run(again, optimizer, "ranks=1", "--resume")) // whose checkpoint is of version 1.0.0 still
			})
		}
		for _, c := range []struct{ version, want string }{
			{"3.0.0", "plugin moving is version 3.0.0, and the state is of version 1.0.0: it says that it upgrades the state of no other version"},
			{"5.0.0", "upgrading the state of"},
		} {
			install(c.version)
			dir := cut(base)
			p := run(dir, optimizer, "ranks=2", "--resume")
			if code := p.wait(t, time.Minute); code != 1 {
				t.Fatalf("exit status %d\n%s", code, p.stderr.String())
			}
			contains(t, p.stderr.String(), c.want)
			if strings.Contains(p.stderr.String(), "go on from the last checkpoint with") {
				t.Errorf("what was refused is advised again: %s", p.stderr.String())
			}
			install("1.0.0")
			ok(run(dir, optimizer, "ranks=1", "--resume")) // the checkpoint is whole
			if r := readResult(t, dir); r.WeightsSHA256 != want {
				t.Errorf("weights %s, want %s", r.WeightsSHA256, want)
			}
		}
	}
}

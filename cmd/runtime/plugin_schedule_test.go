package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A plugin's schedule gives the bits of the same schedule in the program, on any number of ranks; mistakes
// in it are found by check.
func TestPluginSchedule(t *testing.T) {
	recipe := pluginRecipe(t)
	plugins := filepath.Join(filepath.Dir(recipe), "plugins")
	cmd := exec.Command("go", "build", "-o", filepath.Join(plugins, "wsd"), ".")
	cmd.Dir = filepath.Join("..", "..", "plugins", "wsd")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	b, err := os.ReadFile(recipe)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Replace(string(b), "return optim.adamw(**args)", "return optim.adamw(lr = RATE)", 1)
	with := func(rate string) string {
		path := filepath.Join(filepath.Dir(recipe), "schedule.star")
		if err := os.WriteFile(path, []byte(strings.Replace(text, "RATE", rate, 1)), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	constant := runtimeResult(t, filepath.Join(t.TempDir(), "constant"), "exec", with(`schedule.constant(0.004)`))
	path := with(`plugin.schedule("wsd", total = 20, peak = 0.004, decay = 0.5)`)
	if r := runtimeResult(t, filepath.Join(t.TempDir(), "decays"), "exec", path); r.WeightsSHA256 == constant.WeightsSHA256 {
		t.Error("a schedule that decays gives the weights of one that does not")
	}
	path = with(`plugin.schedule("wsd", total = 20, peak = 0.004, decay = 0.0)`)
	for _, ranks := range []string{"1", "2"} {
		r := runtimeResult(t, filepath.Join(t.TempDir(), ranks), append([]string{"exec", path}, pluginSets("ranks="+ranks)...)...)
		if r.WeightsSHA256 != constant.WeightsSHA256 {
			t.Errorf("%s ranks: weights %s, want %s", ranks, r.WeightsSHA256, constant.WeightsSHA256)
		}
	}
	for rate, want := range map[string]string{
		`plugin.schedule("wsd", total = 20)`:                             `plugin wsd needs peak`,
		`plugin.schedule("wsd", total = 20, peak = -1.0)`:                `peak = -1: must be at least 0`,
		`plugin.schedule("wsd", total = 20, peak = 1.0, shape = "bent")`: `must be one of`,
		`plugin.schedule("wsd", total = 20, peak = 1.0, warmup = 17)`:    `the decay of the last 4 of 20 steps begins before the rise ends`,
		`plugin.schedule("wsd", total = 0, peak = 1.0)`:                  `total = 0`,
		`plugin.schedule("reference-adamw", total = 20)`:                 `no schedule: a recipe names it with plugin.optimizer("reference-adamw", …)`,
		`plugin.schedule("missing", total = 20)`:                         `there is no plugin "missing"`,
	} {
		p := start(t, "check", with(rate))
		if code := p.wait(t, 20*time.Second); code != 1 {
			t.Errorf("%s: exit status %d", rate, code)
		}
		contains(t, p.stderr.String(), "schedule.star:", want)
	}
}

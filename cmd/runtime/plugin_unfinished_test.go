package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"starling/sdk"
)

const brittlePrefix = "brittle-"

func isBrittle() bool {
	return os.Getenv(sdk.CookieKey) == sdk.CookieValue && strings.HasPrefix(filepath.Base(os.Args[0]), brittlePrefix)
}

// brittle is AdamW, but fails in the middle of step 7 until a file mended lies beside it.
type brittle struct{ *referenceAdamW }

func serveBrittle() {
	sdk.Serve(brittle{&referenceAdamW{name: filepath.Base(os.Args[0])}})
}

func (o brittle) Step(t *sdk.Tensor) error {
	if t.Step == 7 && (t.From >= 4096 || strings.HasPrefix(t.Name, "h.1.")) {
		if _, err := os.Stat(filepath.Join(filepath.Dir(os.Args[0]), "mended")); err != nil {
			os.Stderr.WriteString("the brittle part broke\n")
			return errors.New("I am broken")
		}
	}
	return o.referenceAdamW.Step(t)
}

// Past the limit of restarts training stops after a checkpoint, in the middle of a step; with a mended plugin it goes on from
// there, placed otherwise, to the bits of a run that nothing happened to.
func TestPluginGivenUp(t *testing.T) {
	recipe := pluginRecipe(t)
	plain := runtimeResult(t, filepath.Join(t.TempDir(), "base"), "exec", recipe)
	plugins := filepath.Join(filepath.Dir(recipe), "plugins")
	serveAs(t, plugins, "brittle-adamw")
	serveAs(t, plugins, "brittle-adamw-whole")
	mended := filepath.Join(plugins, "mended")
	// Where old is set, the recipe has new in its place, and weights of its own.
	for _, c := range []struct{ name, optimizer, first, then, old, new string }{
		{"alone", "brittle-adamw", "ranks=1", "ranks=2 zero=3", "", ""},
		{"replicated", "brittle-adamw", "ranks=2", "ranks=1", "", ""},
		{"sharded", "brittle-adamw", "ranks=2 zero=3", "ranks=3 zero=1", "", ""},
		{"whole tensors", "brittle-adamw-whole", "ranks=2 zero=2", "ranks=1", "", ""},
		{"mixed", "mixed", "ranks=2 zero=1", "ranks=2 zero=0", "", ""},
		{"a growing loss scale, which a hook reads", "brittle-adamw", "ranks=2 precision=fp16", "ranks=2 precision=fp16", "    clip_norm = 0.5,",
			"    clip_norm = 0.5,\n    on_step = lambda m: action.stop() if m.loss_scale < 0 or m.skipped < 0 else None,"},
		{"compressed", "brittle-adamw", "ranks=2", "ranks=2", "parallel = parallel.mesh(", "parallel = parallel.mesh(compress = compress.int8(), "},
	} {
		t.Run(c.name, func(t *testing.T) {
			_ = os.Remove(mended)
			text, err := os.ReadFile(recipe)
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(filepath.Dir(recipe), "brittle.star")
			changed := strings.Replace(string(text), `plugin.optimizer("reference-adamw"`, `plugin.optimizer("brittle-adamw"`, 1)
			if !strings.Contains(changed, c.old) {
				t.Fatalf("the recipe of the invariance table has no %q", c.old)
			}
			if err := os.WriteFile(path, []byte(strings.Replace(changed, c.old, c.new, 1)), 0o644); err != nil {
				t.Fatal(err)
			}
			base := plain
			if c.old != "" {
				base = runtimeResult(t, filepath.Join(t.TempDir(), "base"), append([]string{"exec", path}, pluginSets(strings.Fields(c.first)...)...)...)
			}
			dir := filepath.Join(t.TempDir(), "run")
			args := func(placement string) []string {
				return append([]string{"exec", path, "--run-dir", dir}, pluginSets(append(strings.Fields(placement), "optimizer="+c.optimizer)...)...)
			}
			pinned := c.optimizer
			if pinned == "mixed" {
				pinned = "brittle-adamw"
			}
			p := start(t, args(c.first)...)
			if code := p.wait(t, time.Minute); code != 1 {
				t.Fatalf("exit status %d\n%s", code, p.stderr.String())
			}
			contains(t, p.stderr.String(), "brittle.star:", "failed in step 7", "I am broken", "it was tried 4 times", "the brittle part broke", "a checkpoint of step ",
				"runtime plugin pin "+pinned+" --recipe "+path+"\n", "go on from the last checkpoint with")
			if c.name == "alone" { // still broken: the checkpoint stays
				p := start(t, append(args(c.first), "--resume")...)
				if code := p.wait(t, time.Minute); code != 1 {
					t.Fatalf("exit status %d\n%s", code, p.stderr.String())
				}
				contains(t, p.stderr.String(), "I am broken")
			}
			if err := os.WriteFile(mended, nil, 0o644); err != nil {
				t.Fatal(err)
			}
			p = start(t, append(args(c.then), "--resume")...)
			if code := p.wait(t, time.Minute); code != 0 {
				t.Fatalf("exit status %d\n%s", code, p.stderr.String())
			}
			contains(t, p.stderr.String(), ", in which a plugin had failed, is finished")
			if r := readResult(t, dir); r.WeightsSHA256 != base.WeightsSHA256 || r.TrainLoss != base.TrainLoss {
				t.Errorf("weights %s, want %s", r.WeightsSHA256, base.WeightsSHA256)
			}
			seconds, err := stepTimes(filepath.Join(dir, "metrics.jsonl"))
			if err != nil || len(seconds) != 19 { // of the step that was finished late nobody knows the time
				t.Errorf("%d steps have a time, %v", len(seconds), err)
			}
		})
	}
}

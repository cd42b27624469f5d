package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"starling/core/plugin"
)

// fakeRun makes the folder of a run by hand, with a committed checkpoint or without.
func fakeRun(t *testing.T, name string, checkpoint bool) {
	t.Helper()
	dir := filepath.Join(runsFolder, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, recordFile), []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	if checkpoint {
		if err := os.MkdirAll(filepath.Join(dir, "checkpoints", "step-00000005"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTheNewestRunIsOfTheRecipe(t *testing.T) {
	t.Chdir(t.TempDir())
	if _, err := newestRun("gpt.star"); err == nil || !strings.Contains(err.Error(), "no run of gpt") {
		t.Errorf("without runs: %v", err)
	}
	fakeRun(t, "gpt-20260101-000000", true)
	fakeRun(t, "gpt-20260102-000000", true)
	fakeRun(t, "gpt-20260103-000000", false)  // never saved anything
	fakeRun(t, "gpt-2-20270101-000000", true) // of gpt-2.star
	fakeRun(t, "gptx-20270101-000000", true)
	for path, want := range map[string]string{"x/gpt.star": "gpt-20260102-000000", "gpt-2.star": "gpt-2-20270101-000000"} {
		if got, err := newestRun(path); err != nil || got != filepath.Join(runsFolder, want) {
			t.Errorf("newest run of %s: %s, %v, want %s", path, got, err, want)
		}
	}
	fakeRun(t, "gpt-20260104-000000-2", true)
	if got, err := newestRun("gpt.star"); err != nil || got != filepath.Join(runsFolder, "gpt-20260104-000000-2") {
		t.Errorf("a second run in a second: %s, %v", got, err)
	}
	fakeRun(t, "a[1]-20260104-000000", false)
	if _, err := newestRun("a[1].star"); err != nil {
		t.Errorf("a name with brackets: %v", err)
	}
}

func TestMergeSets(t *testing.T) {
	got := mergeSets([]string{"steps=3", "ranks=1", "text=a=b"}, []string{"ranks=4"})
	if want := []string{"steps=3", "text=a=b", "ranks=4"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestWordsAreQuotedForTheShell(t *testing.T) {
	for in, want := range map[string]string{"a=1.5": "a=1.5", "a=x y": "'a=x y'", "it's": `'it'\''s'`, "": "''", "$HOME": "'$HOME'"} {
		if got := plugin.Quoted(in); got != want {
			t.Errorf("Quoted(%q) = %s, want %s", in, got, want)
		}
	}
}

func TestARefusedResumeChangesNothing(t *testing.T) {
	recipe := recipeFile(t, strings.Replace(slowRecipe, "100000000", `param("steps", 6, "")`, 1))
	dir := filepath.Join(t.TempDir(), "run")
	runtimeResult(t, dir, "exec", recipe)
	before := map[string]string{}
	for _, name := range []string{recordFile, "recipe.star", "metrics.jsonl", "result.json"} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		before[name] = string(b)
	}
	p := start(t, "exec", recipe, "--run-dir", dir, "--resume", "--set", "steps=9")
	if code := p.wait(t, 20*time.Second); code != 1 {
		t.Errorf("exit status %d, want 1", code)
	}
	for name, want := range before {
		if b, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(b) != want {
			t.Errorf("%s has changed (%v)", name, err)
		}
	}
}

func TestARunFolderHasOneRun(t *testing.T) {
	recipe := recipeFile(t, slowRecipe)
	dir := filepath.Join(t.TempDir(), "run")
	p := start(t, "exec", recipe, "--run-dir", dir)
	running(t, p, dir)
	second := start(t, "exec", recipe, "--run-dir", dir, "--resume")
	if code := second.wait(t, 20*time.Second); code != 1 {
		t.Errorf("a second run in the folder ended with %d, want 1", code)
	}
	contains(t, second.stderr.String(), "going on already")
}

func TestASignalBeforeTheRanksAreThereLeavesNothing(t *testing.T) {
	recipe := recipeFile(t, slowRecipe)
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	for i := range 8 {
		p := start(t, "exec", recipe, "--run-dir", filepath.Join(t.TempDir(), "run"))
		time.Sleep(time.Duration(5+4*i) * time.Millisecond)
		_ = p.cmd.Process.Signal(os.Interrupt)
		if code := p.wait(t, 20*time.Second); code != 130 && code != -1 { // -1: the signal came before main
			t.Errorf("exit status %d, want 130\n%s", code, p.stderr.String())
		}
	}
	if left, err := filepath.Glob(filepath.Join(temp, "starling-*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

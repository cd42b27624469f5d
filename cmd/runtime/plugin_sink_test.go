package main

import (
	"encoding/csv"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// A sink gets every step once, also where a run is killed and goes on.
func TestSinkAcrossAResume(t *testing.T) {
	recipe := pluginRecipe(t)
	plugins := filepath.Join(filepath.Dir(recipe), "plugins")
	cmd := exec.Command("go", "build", "-o", filepath.Join(plugins, "csv"), ".")
	cmd.Dir = filepath.Join("..", "..", "plugins", "csv")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	b, err := os.ReadFile(recipe)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Replace(string(b), "\ntrain(\n", "\nplugin.sink(\"csv\", separator = \";\")\n\ntrain(\n", 1)
	if err := os.WriteFile(recipe, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "run")
	args := append([]string{"exec", recipe}, pluginSets("ranks=2", "checkpoint=3")...)
	p := start(t, append(args, "--run-dir", dir)...)
	eventually(t, 20*time.Second, "no checkpoint; stderr:\n"+p.stderr.String(), func() bool {
		c, _ := filepath.Glob(filepath.Join(dir, "checkpoints", "step-*", "COMMIT"))
		return len(c) > 0
	})
	_ = p.cmd.Process.Kill()
	<-p.exited
	eventually(t, 10*time.Second, "the sink outlives its rank", func() bool { return len(pluginProcesses(t, plugins)) == 0 })
	runtimeResult(t, dir, append(args, "--resume")...)
	f, err := os.Open(filepath.Join(dir, "csv", "step.csv"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r := csv.NewReader(f)
	r.Comma = ';'
	rows, err := r.ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	if len(rows) != 21 || strings.Join(rows[0][:2], " ") != "step time" {
		t.Fatalf("%d rows, the first %v; want 21", len(rows), rows[0])
	}
	for i, row := range rows[1:] {
		if row[0] != strconv.Itoa(i+1) {
			t.Errorf("row %d is of step %s", i+1, row[0])
		}
	}
}

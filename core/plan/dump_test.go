package plan

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the golden dumps in testdata")

func dump(t testing.TB, p *Plan, kind string) string {
	t.Helper()
	s, err := p.Dump(kind)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Golden dumps show a reviewer what a change does to a plan. Rewrite them with -update.
func TestGoldenDumps(t *testing.T) {
	s := settings(2, 0)
	size := tinyGPT
	size.Layers = 1
	p := mustBuild(t, gpt(t, size, true), s)
	if err := p.AddForward("evaluate", gpt(t, size, false)); err != nil {
		t.Fatal(err)
	}
	golden := func(name, got string) {
		file := filepath.Join("testdata", "gpt."+name+".txt")
		if *update {
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if got != strings.ReplaceAll(string(want), "\r\n", "\n") {
			t.Errorf("%s differs; run the test with -update and look at the difference:\n%s", file, firstDifference(got, string(want)))
		}
	}
	for _, kind := range DumpKinds {
		golden(kind, dump(t, p, kind))
	}
	golden("summary", p.Summary().String())
	if _, err := p.Dump("programm"); err == nil || !strings.Contains(err.Error(), "graph, passes, program") {
		t.Errorf("unknown kind: %v", err)
	}
}

func firstDifference(got, want string) string {
	a, b := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return "got  " + a[i] + "\nwant " + b[i]
		}
	}
	return "one ends early"
}

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// What the README says of its recipe is what comes out, to the bit.
func TestReadmesRecipe(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, recipe, _ := strings.Cut(string(text), "```python\n")
	recipe, rest, ok := strings.Cut(recipe, "```\n")
	if !ok {
		t.Fatal("README.md has no recipe")
	}
	p := start(t, "exec", recipeFile(t, recipe), "--run-dir", filepath.Join(t.TempDir(), "run"), "--in-process")
	if code := p.wait(t, 2*time.Minute); code != 0 {
		t.Fatalf("it ended with %d\n%s", code, p.stderr.String())
	}
	out := p.stdout.String()
	for _, row := range []string{"train loss", "eval loss", "accuracy", "weights sha256"} {
		line := regexp.MustCompile(`(?m)^ +` + row + ` +(\S+)$`)
		said, got := line.FindStringSubmatch(rest), line.FindStringSubmatch(out)
		if said == nil || got == nil || said[1] != got[1] {
			t.Errorf("%s: README.md says %q, the run %q\n%s", row, said, got, out)
		}
	}
}

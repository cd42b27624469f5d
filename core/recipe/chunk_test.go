package recipe

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"starling/core/graph"
	"starling/core/tensor"
	"starling/core/train"
)

// TestMistakes runs the chunks of testdata: each is a recipe, and a line that raises an error has a comment ### with a
// quoted regular expression that the error matches. A chunk without one must run to its end.
func TestMistakes(t *testing.T) {
	for _, name := range []string{"frame.star", "model.star"} {
		text, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		line := 0
		for _, chunk := range strings.Split(string(text), "\n---\n") {
			t.Run(name+":"+strconv.Itoa(line+1), func(t *testing.T) {
				want := expectations(t, chunk, line)
				// Lines keep their numbers, so that a failure can be found.
				dir := recipeFolder(t, name, strings.Repeat("\n", line)+chunk)
				for _, e := range mistakes(everything(filepath.Join(dir, name))) {
					rx := want[e.line]
					if rx == nil {
						t.Errorf("unexpected error at line %d: %s", e.line, e.text)
					} else if !rx.MatchString(e.text) {
						t.Errorf("the error at line %d does not match %q:\n%s", e.line, rx, e.text)
					}
					delete(want, e.line)
				}
				for l, rx := range want {
					t.Errorf("no error at line %d, expected one that matches %q", l, rx)
				}
			})
			line += strings.Count(chunk, "\n") + 2
		}
	}
}

func expectations(t *testing.T, chunk string, line int) map[int]*regexp.Regexp {
	t.Helper()
	want := map[int]*regexp.Regexp{}
	for i, l := range strings.Split(chunk, "\n") {
		if _, quoted, ok := strings.Cut(l, "###"); ok {
			pattern, err := strconv.Unquote(strings.TrimSpace(quoted))
			if err != nil {
				t.Fatalf("line %d: no quoted expression after ###: %v", line+i+1, err)
			}
			want[line+i+1] = regexp.MustCompile(pattern)
		}
	}
	return want
}

// recipeFolder makes a folder with a recipe, the prelude, and a few traps around it.
func recipeFolder(t *testing.T, name, text string) string {
	t.Helper()
	above := t.TempDir()
	dir := filepath.Join(above, "recipe")
	prelude, err := os.ReadFile("testdata/prelude.star")
	if err != nil {
		t.Fatal(err)
	}
	for file, text := range map[string]string{
		"outside.star":               "secret = 1\n",
		"recipe/" + name:             text,
		"recipe/prelude.star":        string(prelude),
		"recipe/cycle.star":          `load("cycle2.star", "x")` + "\n",
		"recipe/cycle2.star":         `load("cycle.star", "x")` + "\n",
		"recipe/folder/nothing.star": "",
	} {
		path := filepath.Join(above, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(filepath.Join(above, "outside.star"), filepath.Join(dir, "link.star")); err != nil {
		t.Fatal(err)
	}
	return dir
}

// everything does with a recipe all that a run would: it loads it, traces training, evaluation and samples, and calls the hooks.
func everything(path string) error {
	spec, err := Load(path, Options{MaxSteps: 200_000})
	if err != nil {
		return err
	}
	for _, training := range []bool{true, false} {
		g, err := spec.Model.Loss(train.BatchInputs(spec.Data.Source.Fields(), spec.Data.MicroBatch), training)
		if err != nil {
			return err
		}
		if err := graph.Verify(g); err != nil {
			return err
		}
	}
	for _, s := range spec.Samples {
		if _, err := s.Forward(train.Input{Name: "tokens", Type: graph.Type{DType: tensor.I32, Shape: tensor.Shape{1, s.Context}}}); err != nil {
			return err
		}
	}
	for _, h := range []train.Hook{spec.OnStep, spec.OnEval} {
		if h != nil {
			if _, err := h(train.Metrics{"step": 3, "loss": 0.5, "lr": 0.1}); err != nil {
				return err
			}
		}
	}
	return nil
}

type mistake struct {
	line int
	text string
}

// mistakes takes an error apart into lines of the recipe and messages.
func mistakes(err error) []mistake {
	if err == nil {
		return nil
	}
	if many, ok := err.(interface{ Unwrap() []error }); ok {
		var out []mistake
		for _, e := range many.Unwrap() {
			out = append(out, mistakes(e)...)
		}
		return out
	}
	var ours *Error
	var specs *train.Error
	switch {
	case errors.As(err, &ours):
		return []mistake{{userLine(ours.Pos), err.Error()}}
	case errors.As(err, &specs):
		return []mistake{{userLine(specs.Pos), err.Error()}}
	}
	return []mistake{{0, err.Error()}}
}

// userLine is the line in the chunk: where the place is in a file that the chunk loads, that of the call.
func userLine(p graph.Position) int {
	for _, at := range append([]graph.Position{p}, p.Callers...) {
		if at.File != "prelude.star" && !strings.HasPrefix(at.File, "cycle") {
			return at.Line
		}
	}
	return p.Line
}

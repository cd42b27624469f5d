//go:build unix

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// author is somebody who follows docs/plugins.md in an empty folder of their own, with the runtime on the PATH.
type author struct {
	t    *testing.T
	home string
	env  []string
	doc  string
}

func newAuthor(t *testing.T) *author {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "..", "docs", "plugins.md"))
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	a := &author{t: t, home: t.TempDir(), doc: string(b)}
	bin := t.TempDir()
	a.write(filepath.Join(bin, "runtime"), fmt.Sprintf("#!/bin/sh\n%s=1 exec '%s' \"$@\"\n", envRuntime, self), 0o755)
	a.env = append(os.Environ(), "PATH="+bin+string(filepath.ListSeparator)+os.Getenv("PATH"), "XDG_CONFIG_HOME="+t.TempDir(), "XDG_CACHE_HOME="+t.TempDir(),
		"GOCACHE="+goEnv(t, "GOCACHE"), "GOWORK=off", "GOFLAGS=-mod=readonly", "CGO_ENABLED=0")
	return a
}

func goEnv(t *testing.T, name string) string {
	t.Helper()
	b, err := exec.Command("go", "env", name).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

func (a *author) write(path, text string, mode os.FileMode) {
	a.t.Helper()
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		a.t.Fatal(err)
	}
}

// section is the part of the page from a heading to the next of its kind.
func (a *author) section(from, to string) string {
	a.t.Helper()
	_, text, ok := strings.Cut(a.doc, from)
	if !ok {
		a.t.Fatalf("docs/plugins.md has no %q", from)
	}
	text, _, _ = strings.Cut(text, to)
	return text
}

// block is the n-th fenced block of a language.
func block(t *testing.T, text, language string, n int) string {
	t.Helper()
	all := regexp.MustCompile("(?s)```"+language+"\n(.*?)```").FindAllStringSubmatch(text, -1)
	if n >= len(all) {
		t.Fatalf("%d blocks of %s, want more than %d", len(all), language, n)
	}
	return all[n][1]
}

// commands are the indented lines of a text.
func commands(text string) (out []string) {
	fenced := false
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "```") {
			fenced = !fenced
		}
		if c, ok := strings.CutPrefix(line, "    "); ok && !fenced {
			out = append(out, strings.TrimSpace(c))
		}
	}
	return out
}

// run runs commands in a shell, one after the other, and returns what they print.
func (a *author) run(lines ...string) string {
	a.t.Helper()
	cmd := exec.CommandContext(a.t.Context(), "sh", "-e", "-c", strings.Join(lines, "\n"))
	cmd.Dir, cmd.Env = a.home, a.env
	out, err := cmd.CombinedOutput()
	if err != nil {
		a.t.Fatalf("%s\n%v\n%s", strings.Join(lines, "\n"), err, out)
	}
	return string(out)
}

// without leaves out the lines that make a virtual environment: the one of STARLING_PYTHON is there.
func without(lines []string) (out []string) {
	for _, l := range lines {
		if !strings.Contains(l, "venv") {
			out = append(out, l)
		}
	}
	return out
}

// weights is what a run printed of its result.
func weights(t *testing.T, printed string) string {
	t.Helper()
	m := regexp.MustCompile(`weights sha256 +([0-9a-f]{64})`).FindStringSubmatch(printed)
	if m == nil {
		t.Fatalf("no weights in\n%s", printed)
	}
	return m[1]
}

// The walk of docs/plugins.md, step by step: every command as it stands there, in a folder outside this repository. In Python it ends with the weights
// that it ends with in Go.
func TestWalkThroughTheDocs(t *testing.T) {
	a := newAuthor(t)
	begin := commands(a.section("**1. Begin.**", "**2. Write.**"))
	write := a.section("**2. Write.**", "**3. Test.**")
	check := commands(a.section("**3. Test.**", "**4. Install"))
	train := a.section("**4. Install", "**5. Ship.**")
	steps := commands(train)

	a.run(begin[:2]...) // the others are those in Python
	a.write(filepath.Join(a.home, "my-sgd", "main.go"), block(t, write, "go", 0), 0o644)
	a.run("go -C my-sgd vet ./...", begin[1])
	contains(t, a.run(check[0]), "ok   is element-wise", "ok   has no hidden state", "ok   speed")
	if err := os.Mkdir(filepath.Join(a.home, "job"), 0o755); err != nil {
		t.Fatal(err)
	}
	recipe := block(t, train, "python", 0)
	a.write(filepath.Join(a.home, "job", "digits.star"), recipe, 0o644)
	printed := a.run(steps...) // the last two install and pin once more
	contains(t, printed, "my-sgd 0.1.0 is installed in plugins/my-sgd", "my-sgd  0.1.0  element-wise optimizer", "momentum = 0.9 (a number, at least 0 and below 1)", "digits.star is fine", "is pinned in plugins.lock")
	here := weights(t, printed)
	if _, err := os.Stat(filepath.Join(a.home, "job", "plugins.lock")); err != nil {
		t.Error(err)
	}
	// One rank ends with the same weights; a changed program is refused until it is pinned.
	a.write(filepath.Join(a.home, "job", "one.star"), strings.Replace(recipe, "data = 2, zero = 3", "data = 1", 1), 0o644)
	if got := weights(t, a.run("cd job", "runtime exec one.star")); got != here {
		t.Errorf("weights %s on one rank, %s on two", got, here)
	}
	refused := exec.Command("sh", "-c", "cd job && printf x >> plugins/my-sgd && runtime check digits.star")
	refused.Dir, refused.Env = a.home, a.env
	if out, err := refused.CombinedOutput(); err == nil {
		t.Errorf("a changed plugin is accepted: %s", out)
	} else {
		contains(t, string(out), "another checksum", "runtime plugin pin my-sgd --recipe digits.star")
	}
	contains(t, a.run("cd job", "runtime plugin remove my-sgd --from plugins", "runtime plugin list"), "removed ", "none")

	t.Run("Python", func(t *testing.T) {
		a.t = t
		a.env = append(a.env, "STARLING_PYTHON="+python(t))
		a.run(without(begin[2:])...)
		a.write(filepath.Join(a.home, "my-sgd-py", "plugin.py"), block(t, write, "python", 0), 0o644)
		a.run(begin[len(begin)-1])
		contains(t, a.run(check[1]), "ok   is element-wise", "ok   has no hidden state", "ok   speed")
		a.write(filepath.Join(a.home, "job", "digits.star"), strings.Replace(recipe, `"my-sgd"`, `"my-sgd-py"`, 1), 0o644)
		var same []string
		for _, s := range steps {
			same = append(same, strings.ReplaceAll(s, "my-sgd", "my-sgd-py"))
		}
		printed := a.run(same...)
		contains(t, printed, "my-sgd-py 0.1.0 is installed", "is pinned in plugins.lock")
		if got := weights(t, printed); got != here {
			t.Errorf("weights %s in Python, %s in Go", got, here)
		}
	})
}

// Every kind of plugin trains the recipe of the page with the lines that the page shows; in Python it ends with the weights of Go.
func TestRecipesForEachKind(t *testing.T) {
	a := newAuthor(t)
	base := block(t, a.section("**4. Install", "**5. Ship.**"), "python", 0)
	base = regexp.MustCompile(`(?m)^    optimizer = .*`).ReplaceAllString(base, "    optimizer = optim.adamw(lr = 0.01),")
	base = regexp.MustCompile(`(?m)^    steps = .*`).ReplaceAllString(base, "    steps = 30,")
	sdk, err := filepath.Abs(filepath.Join("..", "..", "sdk")) // one copy for all, so that it is built once
	if err != nil {
		t.Fatal(err)
	}
	page := strings.Split(a.section("## A recipe for each kind", "\n## "), "\n### ")[1:]
	if len(page) != len(pluginKinds) {
		t.Fatalf("the page has recipes for %d kinds, there are %d", len(page), len(pluginKinds))
	}
	adamw := a.train(t, base)
	results := map[string]string{}
	walk := func(t *testing.T, suffix, flags string) {
		for _, text := range page {
			heading, _, _ := strings.Cut(text, "\n")
			t.Run(heading, func(t *testing.T) {
				a.t = t
				begin := commands(text)[0]
				line := strings.TrimSpace(block(t, text, "python", 0))
				name := strings.Fields(begin)[3]
				begin = strings.Replace(begin, name, name+suffix, 1)
				line = strings.Replace(line, `"`+name+`"`, `"`+name+suffix+`"`, 1)
				a.run(begin+" "+flags, "runtime plugin install "+name+suffix+" --to job/plugins")
				recipe := strings.Replace(base, "train(\n", line+"\n\ntrain(\n", 1)
				if key, _, ok := strings.Cut(line, " = "); ok && !strings.HasPrefix(line, "plugin.sink") {
					recipe = regexp.MustCompile(`(?m)^    `+key+` = .*`).ReplaceAllLiteralString(base, "    "+line)
				}
				got := a.train(t, recipe)
				if sink := strings.HasPrefix(line, "plugin.sink"); sink != (got == adamw) {
					t.Errorf("weights %s, and %s without the plugin", got, adamw)
				} else if sink {
					files, _ := filepath.Glob(filepath.Join(a.home, "job", "run", "figures.tsv"))
					if b, err := os.ReadFile(strings.Join(files, "")); err != nil || !strings.Contains(string(b), "30\tstep\tloss\t") {
						t.Errorf("the sink wrote %q, %v", b, err)
					}
				}
				if was, ok := results[heading]; ok && was != got {
					t.Errorf("weights %s in Python, %s in Go", got, was)
				}
				results[heading] = got
				if strings.Contains(line, "warmup = 10") { // what the plugin refuses is told with its place, and no more
					a.write(filepath.Join(a.home, "job", "digits.star"), strings.Replace(recipe, "warmup = 10", "warmup = 101", 1), 0o644)
					cmd := exec.Command("sh", "-c", "cd job && runtime check digits.star")
					cmd.Dir, cmd.Env = a.home, a.env
					out, err := cmd.CombinedOutput()
					if contains(t, string(out), "digits.star:9:", "warmup = 101: there are 100 steps"); err == nil || strings.Contains(string(out), "Traceback") {
						t.Errorf("%v: %s", err, out)
					}
				}
			})
		}
	}
	t.Run("Go", func(t *testing.T) { walk(t, "", "--sdk "+sdk) })
	t.Run("Python", func(t *testing.T) {
		a.env = append(a.env, "STARLING_PYTHON="+python(t))
		walk(t, "-py", "--lang python")
	})
}

// train runs a recipe in the folder job and returns the weights' checksum.
func (a *author) train(t *testing.T, recipe string) string {
	t.Helper()
	a.t = t
	a.run("mkdir -p job", "rm -rf job/run")
	a.write(filepath.Join(a.home, "job", "digits.star"), recipe, 0o644)
	return weights(t, a.run("cd job", "runtime exec digits.star --run-dir run"))
}

// The page's table has every command and every flag.
func TestCommandsAreDocumented(t *testing.T) {
	a := newAuthor(t)
	table := a.section("## The commands", "\n## ")
	for _, c := range newPlugin().Commands() {
		row := ""
		for line := range strings.Lines(table) {
			if strings.HasPrefix(line, "| `runtime plugin "+c.Name()+" ") || strings.HasPrefix(line, "| `runtime plugin "+c.Name()+"`") {
				row = line
			}
		}
		if row == "" {
			t.Errorf("runtime plugin %s is not in the table", c.Name())
		}
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if !strings.Contains(row, "--"+f.Name) {
				t.Errorf("runtime plugin %s --%s is not in its row", c.Name(), f.Name)
			}
		})
	}
	root := &cobra.Command{}
	addPluginFlags(root)
	root.PersistentFlags().VisitAll(func(f *pflag.Flag) {
		if !strings.Contains(table, "`--"+f.Name) {
			t.Errorf("--%s is not below the table", f.Name)
		}
	})
}

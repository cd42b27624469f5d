package plugin

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func fails(t *testing.T, err error, wants ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want one with %q", wants)
	}
	for _, w := range wants {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q is missing from: %v", w, err)
		}
	}
}

// recipeDir is a folder for recipes, away from the user's own plugins.
func recipeDir(t *testing.T) (dir, plugins string) {
	t.Helper()
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	dir = t.TempDir()
	return dir, filepath.Join(dir, "plugins")
}

func TestMissingPluginListsWhatThereIs(t *testing.T) {
	dir, plugins := recipeDir(t)
	install(t, plugins, "adamw")
	_, err := Resolve(t.Context(), "lion", filepath.Join(dir, "run.star"))
	fails(t, err, `no plugin "lion"`, plugins+": it holds adamw", UserDir()+": it does not exist", "runtime plugin install")
}

func TestRecipesCannotNamePaths(t *testing.T) {
	dir, _ := recipeDir(t)
	for _, name := range []string{"../adamw", "/bin/true", "a/b", "", ".", "..", "Lion", "a b"} {
		_, err := Resolve(t.Context(), name, filepath.Join(dir, "run.star"))
		fails(t, err, "no plugin's name")
	}
}

func TestLinksThatLeadOut(t *testing.T) {
	dir, plugins := recipeDir(t)
	elsewhere := install(t, t.TempDir(), "adamw")
	if err := os.MkdirAll(plugins, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(elsewhere, filepath.Join(plugins, "adamw")); err != nil {
		t.Fatal(err)
	}
	_, err := Resolve(t.Context(), "adamw", filepath.Join(dir, "run.star"))
	fails(t, err, "a link that leads out of its folder", elsewhere)
}

// The first use pins a plugin; from then on its manifest is known without starting it, and another file is refused.
func TestPinning(t *testing.T) {
	dir, plugins := recipeDir(t)
	install(t, plugins, "adamw")
	first, err := Resolve(t.Context(), "adamw", filepath.Join(dir, "run.star"))
	if err != nil {
		t.Fatal(err)
	}
	again, err := Resolve(t.Context(), "adamw", filepath.Join(dir, "run.star"))
	if err != nil {
		t.Fatal(err)
	}
	if again.SHA256 != first.SHA256 || again.Manifest.Version != "1.2.3" {
		t.Errorf("%+v", again)
	}
	if got, want := again.Manifest.Hypers[3].Default, any(int64(3)); got != want {
		t.Errorf("default of an int from the lock file: %T %v", got, got)
	}
	if got, ok := again.Manifest.Hypers[0].Default.([]float64); !ok || len(got) != 2 {
		t.Errorf("default of a list from the lock file: %v", again.Manifest.Hypers[0].Default)
	}
	path := filepath.Join(plugins, "adamw")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	_, err = Resolve(t.Context(), "adamw", filepath.Join(dir, "run.star"))
	fails(t, err, "another checksum", first.SHA256, path, "runtime plugin pin adamw --recipe "+filepath.Join(dir, "run.star"))
}

func TestTwoOfOneName(t *testing.T) {
	dir, plugins := recipeDir(t)
	install(t, plugins, "adamw")
	other := t.TempDir()
	t.Setenv(EnvPath, other)
	if err := os.WriteFile(filepath.Join(other, "adamw"), []byte("#!/bin/sh\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	_, err := Resolve(t.Context(), "adamw", filepath.Join(dir, "run.star"))
	fails(t, err, "several plugins", plugins, other, "runtime plugin pin adamw --recipe "+filepath.Join(dir, "run.star")+" --from ")
	if err := os.Remove(filepath.Join(other, "adamw")); err != nil {
		t.Fatal(err)
	}
	install(t, other, "adamw") // the same program twice is no ambiguity
	if _, err := Resolve(t.Context(), "adamw", filepath.Join(dir, "run.star")); err != nil {
		t.Error(err)
	}
}

func TestDamagedLockFile(t *testing.T) {
	dir, plugins := recipeDir(t)
	install(t, plugins, "adamw")
	for text, want := range map[string]string{
		"{": "unexpected end", `{"plugins": {"adamw": null}}`: "another plugin's manifest",
		`{"plugins": {"adamw": {"manifest": {"name": "adamw", "version": "1"}}}}`: "must be that of an optimizer",
	} {
		if err := os.WriteFile(filepath.Join(dir, LockFile), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		_, err := Resolve(t.Context(), "adamw", filepath.Join(dir, "run.star"))
		fails(t, err, "lock file", want)
	}
}

// What is not a plugin says so, with what it printed.
func TestHandshakes(t *testing.T) {
	script := func(text string) func(t *testing.T, dir string) string {
		return func(t *testing.T, dir string) string {
			path := filepath.Join(dir, "script")
			if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
				t.Fatal(err)
			}
			return path
		}
	}
	own := func(name string) func(t *testing.T, dir string) string {
		return func(t *testing.T, dir string) string { return install(t, dir, name) }
	}
	for name, c := range map[string]struct {
		make  func(t *testing.T, dir string) string
		wants []string
	}{
		"prints first":       {own("chatty"), []string{`it printed "hello, world" before its handshake`, "standard error is free"}},
		"no answer":          {own("deaf"), []string{"it did not answer within 500ms"}},
		"another version":    {own("future"), []string{"another version of the protocol", "speaks version 1", "Plugin version: 7"}},
		"fails":              {own("mute"), []string{"it ended without a handshake (exit status 3)", "something is missing"}},
		"another name":       {own("misnamed"), []string{`calls itself "other"`}},
		"not a plugin":       {script("#!/bin/sh\necho usage: script FILE >&2\nexit 2\n"), []string{"no plugin of Starling", "exit status 2", "usage: script FILE"}},
		"bars in its output": {script("#!/bin/sh\necho 'a|b|c|d'\n"), []string{"no plugin's handshake"}},
		"not a program":      {script("\x00\x01\x02"), []string{"exec format error"}},
	} {
		t.Run(name, func(t *testing.T) {
			f, err := Open(c.make(t, t.TempDir()))
			if err != nil {
				t.Fatal(err)
			}
			limit := 20 * time.Second
			if name == "no answer" {
				limit = 500 * time.Millisecond
			}
			p, err := Start(t.Context(), f, StartOptions{Timeout: limit})
			if err == nil {
				_, err = p.Manifest()
				p.Kill()
			}
			fails(t, err, c.wants...)
		})
	}
}

func TestRunBit(t *testing.T) {
	dir, plugins := recipeDir(t)
	if err := os.MkdirAll(plugins, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(plugins, "script"), []byte("#!/bin/sh\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err := Resolve(t.Context(), "script", filepath.Join(dir, "run.star"))
	fails(t, err, "run bit is missing", "chmod +x")
}

func TestPathsWithSpacesAndLongPaths(t *testing.T) {
	for _, dir := range []string{"a folder with spaces", strings.Repeat("long", 40)} {
		tmp := filepath.Join(t.TempDir(), dir)
		if err := os.MkdirAll(tmp, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Setenv("TMPDIR", tmp)
		f, err := Open(install(t, tmp, "adamw"))
		if err != nil {
			t.Fatal(err)
		}
		m, err := Describe(t.Context(), f)
		if err != nil || m.Name != "adamw" {
			t.Errorf("%v, %v", m, err)
		}
	}
}

// A folder is a plugin where plugin.json says how it is run; all of its files count.
func TestFolders(t *testing.T) {
	dir, plugins := recipeDir(t)
	home := filepath.Join(plugins, "adamw")
	program := install(t, filepath.Join(home, "bin"), "adamw")
	if _, err := Resolve(t.Context(), "adamw", filepath.Join(dir, "run.star")); err == nil || !strings.Contains(err.Error(), "the folder is no plugin") {
		t.Errorf("%v", err)
	}
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(home, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(FolderFile, `{"command": []}`)
	_, err := Resolve(t.Context(), "adamw", filepath.Join(dir, "run.star"))
	fails(t, err, "gives no command")
	write(FolderFile, `{"command": ["bin/adamw"]}`)
	write("data.txt", "1")
	x, err := Resolve(t.Context(), "adamw", filepath.Join(dir, "run.star"))
	if err != nil {
		t.Fatal(err)
	}
	if x.Dir != home || program == "" {
		t.Errorf("%+v", x.Found)
	}
	if x.compiled() {
		t.Error("compiled Python is seen where there is none")
	}
	if err := os.MkdirAll(filepath.Join(home, "__pycache__"), 0o755); err != nil {
		t.Fatal(err)
	}
	write("__pycache__/x.pyc", "left behind by running it")
	if _, err := Resolve(t.Context(), "adamw", filepath.Join(dir, "run.star")); err != nil || !x.compiled() {
		t.Errorf("%v; compiled Python is seen: %v", err, x.compiled())
	}
	write("data.txt", "2")
	_, err = Resolve(t.Context(), "adamw", filepath.Join(dir, "run.star"))
	fails(t, err, "another checksum")
	for _, command := range []string{`"../other/adamw"`, `"bin/../../adamw"`, `"sh", "../adamw.sh"`} {
		write(FolderFile, `{"command": [`+command+`]}`)
		_, err = Resolve(t.Context(), "adamw", filepath.Join(dir, "run.star"))
		fails(t, err, "leads out of the folder", "checksum does not cover")
	}
	write(FolderFile, `{"command": [".venv/bin/python", "main.py"]}`)
	_, err = Resolve(t.Context(), "adamw", filepath.Join(dir, "run.star"))
	fails(t, err, ".venv", "checksum does not cover")
}

// A folder with the source of a plugin is none: it is passed over, and named where there is nothing else.
func TestSourceFolders(t *testing.T) {
	dir, plugins := recipeDir(t)
	home := filepath.Join(plugins, "adamw")
	if err := os.MkdirAll(home, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(home, "go.mod"), []byte("module adamw\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err := Resolve(t.Context(), "adamw", filepath.Join(dir, "run.star"))
	fails(t, err, "a plugin's source", "runtime plugin install "+home)
	program := install(t, UserDir(), "adamw")
	x, err := Resolve(t.Context(), "adamw", filepath.Join(dir, "run.star"))
	if err != nil {
		t.Fatal(err)
	}
	if x.Path != program {
		t.Errorf("found %s, want %s", x.Path, program)
	}
}

// However a plugin in Python fails to start, the error says what ran it and how that is changed.
func TestInterpreters(t *testing.T) {
	home := filepath.Join(t.TempDir(), "snake")
	if err := os.MkdirAll(home, 0o755); err != nil {
		t.Fatal(err)
	}
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write(filepath.Join(home, FolderFile), `{"command": ["${python}", "plugin.py"]}`)
	bin := t.TempDir()
	bare := filepath.Join(bin, "python")
	write(bare, "#!/bin/sh\necho \"ModuleNotFoundError: No module named 'numpy'\" >&2\nexit 1\n")
	for path, want := range map[string]string{filepath.Join(bin, "missing"): "no such file", bin: "directory", bare: "No module named 'numpy'"} {
		t.Setenv(EnvPython, path)
		f, err := Open(home)
		if err != nil {
			t.Fatal(err)
		}
		_, err = Describe(t.Context(), f)
		fails(t, err, want, "its Python is "+path+";", EnvPython+" names another interpreter")
	}
	write(filepath.Join(home, FolderFile), `{"command": ["`+bare+`", "plugin.py"]}`)
	f, err := Open(home)
	if err != nil {
		t.Fatal(err)
	}
	if _, err = Describe(t.Context(), f); err == nil || strings.Contains(err.Error(), EnvPython) {
		t.Errorf("%v", err)
	}
}

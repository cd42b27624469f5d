package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"starling/core/plugin"
)

// newAt makes a plugin in a folder.
func newAt(t *testing.T, home string, more ...string) (printed string) {
	t.Helper()
	p := start(t, append([]string{"plugin", "new", home}, more...)...)
	if code := p.wait(t, 20*time.Second); code != 0 {
		t.Fatalf("exit status %d\n%s", code, p.stderr.String())
	}
	return p.stdout.String()
}

// One source gives one checksum, in whatever folder it is built; no program takes the place of a source.
func TestPluginInstallSameChecksum(t *testing.T) {
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	var hashes, homes []string
	for _, folder := range []string{"here", "some where/else"} {
		root := filepath.Join(t.TempDir(), folder)
		if err := os.MkdirAll(root, 0o755); err != nil {
			t.Fatal(err)
		}
		home, to := filepath.Join(root, "my-plugin"), filepath.Join(root, "plugins")
		newAt(t, home)
		p := start(t, "plugin", "install", home, "--to", to)
		if code := p.wait(t, time.Minute); code != 0 {
			t.Fatalf("exit status %d\n%s", code, p.stderr.String())
		}
		f, err := plugin.Open(filepath.Join(to, "my-plugin"))
		if err != nil {
			t.Fatal(err)
		}
		sha, err := f.Hash()
		if err != nil {
			t.Fatal(err)
		}
		hashes, homes = append(hashes, sha), append(homes, home)
	}
	if hashes[0] != hashes[1] {
		t.Errorf("one source, two checksums: %s, %s", hashes[0], hashes[1])
	}
	p := start(t, "plugin", "install", homes[0], "--to", filepath.Dir(homes[0]))
	if code := p.wait(t, time.Minute); code != 1 {
		t.Errorf("exit status %d", code)
	}
	contains(t, p.stderr.String(), "holds the source of a plugin", "--to")
	if _, err := os.Stat(filepath.Join(homes[0], "main.go")); err != nil {
		t.Error(err)
	}
}

// A recipe that is not there is refused, and nothing is pinned beside it.
func TestPluginPinNeedsTheRecipe(t *testing.T) {
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	dir := t.TempDir()
	serveAs(t, filepath.Join(dir, "plugins"), "reference-adamw")
	for path, want := range map[string]string{filepath.Join(dir, "typo.star"): "no such file", dir: "it is a folder"} {
		p := start(t, "plugin", "pin", "reference-adamw", "--recipe", path)
		if code := p.wait(t, 20*time.Second); code != 2 {
			t.Errorf("exit status %d", code)
		}
		contains(t, p.stderr.String(), "--recipe", path, want)
	}
	if _, err := os.Stat(filepath.Join(dir, plugin.LockFile)); !os.IsNotExist(err) {
		t.Errorf("a lock file was written: %v", err)
	}
}

// A new Python plugin names what it needs: the versions that its generated stubs refuse to do without.
func TestNewPythonPluginRequirements(t *testing.T) {
	home := filepath.Join(t.TempDir(), "my-plugin")
	contains(t, newAt(t, home, "--lang", "python"), pipInstall)
	read := func(path ...string) string {
		t.Helper()
		b, err := os.ReadFile(filepath.Join(append([]string{home}, path...)...))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	version := func(text, pattern string) string {
		t.Helper()
		m := regexp.MustCompile(pattern).FindStringSubmatch(text)
		if m == nil {
			t.Fatalf("the stubs do not say %s", pattern)
		}
		return m[1]
	}
	protobuf := "protobuf>=" + version(read("starling_sdk", "starling_plugin_pb2.py"), `Protobuf Python Version: (\S+)`)
	grpc := "grpcio>=" + version(read("starling_sdk", "starling_plugin_pb2_grpc.py"), `GRPC_GENERATED_VERSION = '(\S+)'`)
	contains(t, read("requirements.txt"), "numpy\n", protobuf+"\n", grpc+"\n")
	contains(t, read("README.md"), pipInstall)
	if !strings.Contains(pipInstall, protobuf) {
		t.Errorf("%s does not ask for %s", pipInstall, protobuf)
	}
}

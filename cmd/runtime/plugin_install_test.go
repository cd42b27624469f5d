package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
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

// What cannot be installed says what to do, and a plugin that does not start is listed with where its reasons are.
func TestPluginFoldersThatDoNotWork(t *testing.T) {
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	dir := t.TempDir()
	serveAs(t, dir, "reference-adamw")
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	p := start(t, "plugin", "install", filepath.Join(dir, "reference-adamw"), "--to", filepath.Join(file, "plugins"))
	if code := p.wait(t, time.Minute); code != 1 {
		t.Errorf("exit status %d", code)
	}
	contains(t, p.stderr.String(), "installing reference-adamw", "not a directory", "name a folder that you can write with --to")
	broken := filepath.Join(plugin.UserDir(), "broken")
	if err := os.MkdirAll(filepath.Dir(broken), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(broken, []byte("#!/bin/sh\necho it is Sunday >&2\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	p = start(t, "plugin", "list")
	if code := p.wait(t, time.Minute); code != 0 {
		t.Errorf("exit status %d", code)
	}
	contains(t, p.stdout.String(), "it is no plugin of Starling, or it failed before it served", "runtime plugin info "+broken+" says more")
	p = start(t, "plugin", "info", broken)
	if code := p.wait(t, time.Minute); code != 1 {
		t.Errorf("exit status %d", code)
	}
	contains(t, p.stderr.String(), "it is Sunday")
}

// Plugins of a runtime that is killed at any moment are gone soon after: those that a check starts, in Go and in Python.
func TestPluginsEndWithWhatStartedThem(t *testing.T) {
	homes := map[string]string{"Go": t.TempDir()}
	serveAs(t, homes["Go"], "reference-adamw")
	t.Run("Go", func(t *testing.T) { endsWithItsStarter(t, filepath.Join(homes["Go"], "reference-adamw"), homes["Go"]) })
	t.Run("Python", func(t *testing.T) {
		python(t)
		home := filepath.Join(t.TempDir(), "snake")
		newAt(t, home, "--lang", "python")
		endsWithItsStarter(t, home, "")
	})
}

func endsWithItsStarter(t *testing.T, path, dir string) {
	t.Helper()
	p := start(t, "plugin", "test", path)
	var of []int
	eventually(t, time.Minute, "no plugin was started", func() bool {
		if of = childrenOf(t, p.cmd.Process.Pid); dir != "" {
			of = pluginProcesses(t, dir)
		}
		return len(of) > 0
	})
	_ = p.cmd.Process.Kill()
	<-p.exited
	eventually(t, time.Minute, "a plugin outlives its runtime", func() bool {
		for _, pid := range of {
			if _, err := os.Stat(filepath.Join("/proc", strconv.Itoa(pid), "exe")); err == nil {
				if b, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline")); len(b) > 0 {
					return false
				}
			}
		}
		return true
	})
}

// childrenOf lists the processes that one has started.
func childrenOf(t *testing.T, parent int) (pids []int) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range all {
		b, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		_, rest, _ := strings.Cut(string(b), ") ")
		if f := strings.Fields(rest); len(f) > 1 && f[1] == strconv.Itoa(parent) {
			if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"starling/core/plugin"
)

// wants are lines that plugin test prints for each kind.
var wants = map[string][]string{
	"optimizer":    {"ok   takes steps", "ok   is element-wise", "ok   has no hidden state", "ok   recovers"},
	"whole-tensor": {"ok   takes steps", "ok   has no hidden state", "ok   recovers"},
	"compressor":   {"ok   encodes and decodes", "ok   delivers a gradient", "ok   recovers"},
	"schedule":     {"ok   gives finite rates", "ok   is deterministic"},
	"sink":         {"ok   takes the figures", "ok   goes on after a resume"},
}

// Whatever kind of plugin is begun, in either language, builds, passes its own tests and keeps the runtime's promises as it is.
func TestNewPluginKinds(t *testing.T) {
	sdk, err := filepath.Abs(filepath.Join("..", "..", "sdk")) // one copy for all, so that it is built once
	if err != nil {
		t.Fatal(err)
	}
	t.Run("Go", func(t *testing.T) {
		for _, k := range pluginKinds {
			t.Run(k.name, func(t *testing.T) {
				newPluginOf(t, k.name, []string{"go", "test", "./..."}, "--sdk", sdk)
			})
		}
	})
	t.Run("Python", func(t *testing.T) {
		interpreter := python(t)
		for _, k := range pluginKinds {
			t.Run(k.name, func(t *testing.T) {
				newPluginOf(t, k.name, []string{interpreter, "-m", "unittest", "plugin_test"}, "--lang", "python")
			})
		}
	})
}

// newPluginOf begins a plugin and runs its own tests and plugin test.
func newPluginOf(t *testing.T, kind string, tests []string, flags ...string) {
	t.Helper()
	home := filepath.Join(t.TempDir(), "my-"+kind)
	newAt(t, home, append([]string{"--kind", kind}, flags...)...)
	cmd := exec.Command(tests[0], tests[1:]...)
	cmd.Dir = home
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=readonly", "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("its own tests: %v\n%s", err, out)
	}
	p := start(t, "plugin", "test", home)
	if code := p.wait(t, 2*time.Minute); code != 0 {
		t.Fatalf("plugin test: exit status %d\n%s%s", code, p.stdout.String(), p.stderr.String())
	}
	contains(t, p.stdout.String(), wants[kind]...)
	b, err := os.ReadFile(filepath.Join(home, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	contains(t, string(b), "# my-"+kind, `("my-`+kind+`"`)
}

// What plugin new does not make it refuses, and makes nothing.
func TestNewPluginRefusals(t *testing.T) {
	for args, want := range map[string]string{
		"--kind momentum":               "--kind momentum: must be one of optimizer, whole-tensor, compressor, schedule, sink",
		"--kind momentum --lang python": "--kind momentum: must be one of optimizer, whole-tensor, compressor, schedule, sink",
		"--lang rust":                   "--lang rust: must be go or python",
		"--sdk nowhere":                 "--sdk",
	} {
		home := filepath.Join(t.TempDir(), "mine")
		p := start(t, append([]string{"plugin", "new", home}, strings.Fields(args)...)...)
		if code := p.wait(t, 20*time.Second); code == 0 {
			t.Errorf("%s: was made", args)
		}
		contains(t, p.stderr.String(), want)
		if _, err := os.Stat(home); !os.IsNotExist(err) {
			t.Errorf("%s: left %s behind: %v", args, home, err)
		}
	}
}

// python is an interpreter that has what the Python SDK needs.
func python(t *testing.T) string {
	t.Helper()
	p := os.Getenv(plugin.EnvPython)
	if p == "" {
		p = "python3"
	}
	if err := exec.Command(p, "-c", "import grpc, google.protobuf, numpy").Run(); err != nil {
		t.Skipf("%s lacks numpy or grpcio (%v); name one that has them in %s", p, err, plugin.EnvPython)
	}
	return p
}

// plugin test lets earlier versions leave state for a later one, and finds plugins that are installed by their names.
func TestPluginTestUpgrades(t *testing.T) {
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	built := t.TempDir()
	for _, v := range []string{"1.0.0", "2.0.0", "3.0.0", "4.0.0", "5.0.0"} {
		cmd := exec.Command("go", "build", "-ldflags", "-X main.version="+v, "-o", filepath.Join(built, v, "moving"), "./testdata/upgrade")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	// The name of an earlier version's file does not matter.
	old := filepath.Join(built, "moving-1.0.0")
	if err := copyFile(old, filepath.Join(built, "1.0.0", "moving"), 0o755); err != nil {
		t.Fatal(err)
	}
	p := start(t, "plugin", "install", filepath.Join(built, "2.0.0", "moving"))
	if code := p.wait(t, 20*time.Second); code != 0 {
		t.Fatal(p.stderr.String())
	}
	for _, c := range []struct {
		args string
		code int
		want []string
	}{
		{"moving", 0, []string{"skip upgrades the state of 1.0.0 (not checked: name the earlier version with --from PATH)"}},
		{"moving --from " + old, 0, []string{"ok   upgrades the state of 1.0.0 (1.0.0 to 2.0.0, "}},
		{built + "/4.0.0/moving --from " + old + " --from " + built + "/2.0.0/moving", 0, []string{"ok   upgrades the state of 1.0.0 (1.0.0 to 4.0.0", "ok   upgrades the state of 2.0.0 (2.0.0 to 4.0.0"}},
		{built + "/5.0.0/moving --from " + old, 1, []string{"FAIL upgrades the state of 1.0.0", "is not finite"}},
		{built + "/3.0.0/moving --from " + old, 1, []string{"FAIL upgrades the state of 1.0.0", "it upgrades the state of no other version"}},
		{"moving --from " + built + "/2.0.0/moving", 1, []string{"both versions call themselves 2.0.0"}},
		{"nobody", 1, []string{`there is no plugin "nobody"`}},
	} {
		p := start(t, append([]string{"plugin", "test", "--set", "momentum=0.75"}, strings.Fields(c.args)...)...)
		if code := p.wait(t, time.Minute); code != c.code {
			t.Errorf("%s: exit status %d\n%s%s", c.args, code, p.stdout.String(), p.stderr.String())
		}
		contains(t, p.stdout.String()+p.stderr.String(), c.want...)
	}
}

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

// Whatever kind of plugin is begun builds, passes its own tests and keeps the runtime's promises as it is.
func TestNewPluginKinds(t *testing.T) {
	sdk, err := filepath.Abs(filepath.Join("..", "..", "sdk")) // one copy for all, so that it is built once
	if err != nil {
		t.Fatal(err)
	}
	for kind, wants := range map[string][]string{
		"whole-tensor": {"ok   takes steps", "ok   has no hidden state", "ok   recovers"},
		"compressor":   {"ok   encodes and decodes", "ok   delivers a gradient", "ok   recovers"},
		"schedule":     {"ok   gives finite rates", "ok   is deterministic"},
		"sink":         {"ok   takes the figures", "ok   goes on after a resume"},
	} {
		t.Run(kind, func(t *testing.T) {
			home := filepath.Join(t.TempDir(), "my-"+kind)
			newAt(t, home, "--kind", kind, "--sdk", sdk)
			cmd := exec.Command("go", "test", "./...")
			cmd.Dir = home
			cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=readonly", "CGO_ENABLED=0")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("its own tests: %v\n%s", err, out)
			}
			p := start(t, "plugin", "test", home)
			if code := p.wait(t, time.Minute); code != 0 {
				t.Fatalf("plugin test: exit status %d\n%s%s", code, p.stdout.String(), p.stderr.String())
			}
			contains(t, p.stdout.String(), wants...)
			b, err := os.ReadFile(filepath.Join(home, "README.md"))
			if err != nil {
				t.Fatal(err)
			}
			contains(t, string(b), "# my-"+kind, `("my-`+kind+`"`)
		})
	}
}

// What plugin new does not make it refuses, and makes nothing.
func TestNewPluginRefusals(t *testing.T) {
	for args, want := range map[string]string{
		"--kind momentum":           "--kind momentum: must be one of optimizer, whole-tensor, compressor, schedule, sink",
		"--kind sink --lang python": "the Python SDK has optimizer and whole-tensor; write this one in Go",
		"--lang rust":               "--lang rust: must be go or python",
		"--sdk nowhere":             "--sdk",
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

// A new Python plugin passes its own tests, keeps the promises, and trains with sharded parameters.
func TestNewPythonPlugin(t *testing.T) {
	interpreter := python(t)
	recipe := pluginRecipe(t)
	text, err := os.ReadFile(recipe)
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"optimizer", "whole-tensor"} {
		t.Run(kind, func(t *testing.T) {
			name := "snake-" + kind
			home := filepath.Join(t.TempDir(), name)
			newAt(t, home, "--lang", "python", "--kind", kind)
			cmd := exec.Command(interpreter, "-m", "unittest", "plugin_test")
			cmd.Dir = home
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("its own tests: %v\n%s", err, out)
			}
			commands := [][]string{{"install", home}, {"test", name}}
			if kind != "optimizer" { // starting Python takes its time
				commands = commands[:1]
			}
			for _, args := range commands {
				p := start(t, append([]string{"plugin"}, args...)...)
				if code := p.wait(t, 2*time.Minute); code != 0 {
					t.Fatalf("plugin %v: exit status %d\n%s%s", args, code, p.stdout.String(), p.stderr.String())
				}
			}
			own := filepath.Join(filepath.Dir(recipe), kind+".star")
			if err := os.WriteFile(own, []byte(strings.Replace(string(text), "return plugin.optimizer(which, **args)", `return plugin.optimizer(which, lr = 1e-3)`, 1)), 0o644); err != nil {
				t.Fatal(err)
			}
			one := runtimeResult(t, filepath.Join(t.TempDir(), "one"), append([]string{"exec", own}, pluginSets("optimizer="+name)...)...)
			two := runtimeResult(t, filepath.Join(t.TempDir(), "two"), append([]string{"exec", own}, pluginSets("optimizer="+name, "ranks=2", "zero=3")...)...)
			if one.WeightsSHA256 != two.WeightsSHA256 {
				t.Errorf("weights %s on one rank, %s on two with zero = 3", one.WeightsSHA256, two.WeightsSHA256)
			}
		})
	}
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

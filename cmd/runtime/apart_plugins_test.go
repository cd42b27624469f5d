//go:build linux

package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"starling/core/plugin"
)

// handedRecipe is apartRecipe with two plugins of a person's own folder, one of them a folder.
func handedRecipe(t *testing.T) string {
	t.Helper()
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	home := plugin.UserDir()
	serveAs(t, home, "reference-adamw")
	serveAs(t, filepath.Join(home, "reference-adamw-whole"), "reference-adamw-whole")
	if err := os.WriteFile(filepath.Join(home, "reference-adamw-whole", plugin.FolderFile), []byte(`{"command": ["./reference-adamw-whole"]}`), 0o644); err != nil {
		t.Fatal(err)
	}
	text := strings.Replace(apartRecipe, "optim.sgd(lr = 0.01)",
		`optim.mix([("*.weight", plugin.optimizer("reference-adamw-whole", lr = 0.01))], rest = plugin.optimizer("reference-adamw", lr = 0.01))`, 1)
	return recipeFile(t, strings.Replace(text, "data = ranks,", "data = ranks, zero = 2,", 1))
}

// bareHost is the environment of a host with no plugins, and its cache.
func bareHost(t *testing.T) (env []string, cache string) {
	t.Helper()
	cache = t.TempDir()
	return []string{"XDG_CONFIG_HOME=" + t.TempDir(), "XDG_CACHE_HOME=" + cache}, filepath.Join(cache, "starling", "plugins")
}

// keptIn lists the plugins that a host was handed.
func keptIn(t *testing.T, cache string) (names []string) {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(cache, "*", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		names = append(names, filepath.Base(f))
	}
	return names
}

// TestPluginsAreHandedOver: hosts that lack the recipe's plugins get the launcher's pinned files, whichever way the ranks are
// started, and end with the bits of one host.
func TestPluginsAreHandedOver(t *testing.T) {
	recipe := handedRecipe(t)
	want := runtimeResult(t, filepath.Join(t.TempDir(), "here"), "exec", recipe).WeightsSHA256
	check := func(t *testing.T, dir, cache, said string) {
		t.Helper()
		if got := readResult(t, dir).WeightsSHA256; got != want {
			t.Errorf("weights %s, on one host %s", got, want)
		}
		if got := keptIn(t, cache); len(got) != 2 {
			t.Errorf("the bare host was handed %v, want two plugins", got)
		}
		contains(t, said, "plugin reference-adamw 1.0.0 is not installed here; the launcher has handed it over", "plugin reference-adamw-whole 1.0.0 is not installed here")
	}
	separately := func(through [3][]string, meet string) func(t *testing.T) {
		return func(t *testing.T) {
			env, cache := bareHost(t)
			dir := filepath.Join(t.TempDir(), "run")
			var ps []*process
			for i := range 3 {
				e := []string{fmt.Sprint("RANK=", i), "WORLD_SIZE=3", "STARLING_SECRET=a secret for these processes alone"}
				if i > 0 {
					e = append(append(e, env...), "STARLING_HOST=bare")
				}
				ps = append(ps, startThrough(t, through[i], e, "exec", recipe, "--run-dir", dir, "--rendezvous", meet))
			}
			for i, p := range ps {
				if code := p.wait(t, time.Minute); code != 0 {
					t.Fatalf("process %d: exit status %d\n%s", i, code, p.stderr.String())
				}
			}
			contains(t, ps[1].stderr.String(), "process 1 of 3 asks process 0 for plugin reference-adamw")
			check(t, dir, cache, ps[1].stderr.String()+ps[2].stderr.String())
		}
	}
	cluster := func(listen string, here, there []string) func(t *testing.T) {
		return func(t *testing.T) {
			env, cache := bareHost(t)
			dir := filepath.Join(t.TempDir(), "run")
			hosts := filepath.Join(t.TempDir(), "hosts.json")
			quote := func(words []string) string {
				var q []string
				for _, w := range words {
					q = append(q, fmt.Sprintf("%q", w))
				}
				return "[" + strings.Join(q, ", ") + "]"
			}
			text := fmt.Sprintf(`{"listen": %q, "hosts": [{"name": "a", "start": %s, "ranks": 1}, {"name": "bare", "start": %s, "ranks": 2}]}`,
				listen, quote(here), quote(append(append(there, "env"), env...)))
			if err := os.WriteFile(hosts, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			p := start(t, "exec", recipe, "--run-dir", dir, "--cluster", hosts)
			if code := p.wait(t, time.Minute); code != 0 {
				t.Fatalf("exit status %d\n%s", code, p.stderr.String())
			}
			log, err := os.ReadFile(filepath.Join(dir, "ranks.log"))
			if err != nil {
				t.Fatal(err)
			}
			check(t, dir, cache, string(log))
		}
	}
	t.Run("cluster file", cluster("tcp:127.0.0.1:0", nil, nil))
	t.Run("separately started", separately([3][]string{}, "127.0.0.1:"+freePort(t)))
	t.Run("namespaces", func(t *testing.T) {
		names := namespaces(t, 2)
		a, b := inside(names[0]), inside(names[1])
		t.Run("cluster file", cluster("tcp:10.77.8.0/24:0", a, b))
		t.Run("separately started", separately([3][]string{a, b, b}, "10.77.8.1:29400"))
	})
	t.Run("mpirun", func(t *testing.T) {
		if _, err := exec.LookPath("mpirun"); err != nil {
			t.Skip("no mpirun here")
		}
		env, cache := bareHost(t)
		dir := filepath.Join(t.TempDir(), "run")
		script := fmt.Sprintf(`if [ "$OMPI_COMM_WORLD_RANK" != 0 ]; then export STARLING_HOST=bare %s; fi; exec "$@"`, strings.Join(env, " "))
		p := startThrough(t, []string{"mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "3", "bash", "-c", script, "-"},
			[]string{"STARLING_SECRET=a secret for these processes alone"}, "exec", recipe, "--run-dir", dir)
		if code := p.wait(t, time.Minute); code != 0 {
			t.Fatalf("exit status %d\n%s", code, p.stderr.String())
		}
		check(t, dir, cache, p.stderr.String())
	})
}

// A host cannot be handed what the launcher has pinned and then changed: the checksum is looked at where it arrives.
func TestAChangedPluginIsNotHandedOver(t *testing.T) {
	recipe := handedRecipe(t)
	env, cache := bareHost(t)
	dir := filepath.Join(t.TempDir(), "run")
	hosts := filepath.Join(t.TempDir(), "hosts.json")
	path := filepath.Join(plugin.UserDir(), "reference-adamw")
	// The other host's shell changes the launcher's file after the launcher has looked at it.
	script := fmt.Sprintf(`rm %[1]s; printf '#!/bin/sh\ntouch %[2]s/ran\n' > %[1]s; chmod 755 %[1]s; exec env %[3]s "$@"`, path, cache, strings.Join(env, " "))
	text := fmt.Sprintf(`{"listen": "tcp:127.0.0.1:0", "hosts": [{"name": "a", "start": []}, {"name": "bare", "start": ["sh", "-c", %q, "-"]}]}`, script)
	if err := os.WriteFile(hosts, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	p := start(t, "exec", recipe, "--run-dir", dir, "--cluster", hosts, "--set", "ranks=2")
	if code := p.wait(t, time.Minute); code != 1 {
		t.Errorf("exit status %d, want 1", code)
	}
	if !strings.Contains(p.stderr.String(), "it was thrown away") && !strings.Contains(p.stderr.String(), "is not here any more") && !strings.Contains(p.stderr.String(), "was changed since the run began") {
		t.Errorf("the change was not noticed: %s", p.stderr.String())
	}
	if _, err := os.Stat(filepath.Join(cache, "ran")); err == nil {
		t.Error("the changed plugin ran")
	}
}

// freePort is a port that nobody listens at.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return fmt.Sprint(l.Addr().(*net.TCPAddr).Port)
}

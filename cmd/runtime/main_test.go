package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"starling/core/train"
)

// The test binary plays the runtime: with envRuntime set it is the command line, started by a launcher it is a worker.
const envRuntime = "STARLING_TEST_RUNTIME"

// envSystem is where that command line reads about the machine's devices.
const envSystem = "STARLING_TEST_SYSTEM"

func TestMain(m *testing.M) {
	switch {
	case isSigns():
		serveSigns()
	case isBrittle():
		serveBrittle()
	case isReference():
		serveReference()
	case isVictim():
		os.Exit(victimMain())
	case isMismatched():
		os.Exit(mismatchedMain())
	case isBenchWorker():
		os.Exit(benchWorkerMain())
	case isWorker():
		os.Exit(workerMain())
	case os.Getenv(envRuntime) != "":
		systemFiles = cmp.Or(os.Getenv(envSystem), systemFiles)
		os.Exit(run(context.Background(), os.Args[1:], time.Now()))
	}
	os.Exit(m.Run())
}

// process is a runtime started as a process of its own.
type process struct {
	cmd            *exec.Cmd
	stdout, stderr bytes.Buffer
	exited         chan struct{}
}

func start(t *testing.T, args ...string) *process {
	t.Helper()
	return startThrough(t, nil, nil, args...)
}

// startThrough starts it by a command that runs others (ip netns exec, mpirun), with more environment.
func startThrough(t *testing.T, through, env []string, args ...string) *process {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	line := append(append(slices.Clone(through), self), args...)
	p := &process{cmd: exec.Command(line[0], line[1:]...), exited: make(chan struct{})}
	p.cmd.Env = append(append(os.Environ(), envRuntime+"=1"), env...)
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.exited)
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.exited
	})
	return p
}

// wait returns the exit status, failing the test if the process takes too long.
func (p *process) wait(t *testing.T, limit time.Duration) int {
	t.Helper()
	select {
	case <-p.exited:
	case <-time.After(limit):
		t.Fatalf("the runtime did not end within %v; stderr:\n%s", limit, p.stderr.String())
	}
	return p.cmd.ProcessState.ExitCode()
}

// runtimeResult runs the command line to its end and reads result.json.
func runtimeResult(t *testing.T, dir string, args ...string) *train.Result {
	t.Helper()
	p := start(t, append(args, "--run-dir", dir)...)
	if code := p.wait(t, 3*time.Minute); code != 0 {
		t.Fatalf("runtime %v: exit status %d\n%s", args, code, p.stderr.String())
	}
	return readResult(t, dir)
}

func readResult(t *testing.T, dir string) *train.Result {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, train.ResultFile))
	if err != nil {
		t.Fatal(err)
	}
	var r train.Result
	if err := json.Unmarshal(b, &r); err != nil {
		t.Fatal(err)
	}
	return &r
}

// recipeFile writes a recipe into a folder of its own.
func recipeFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "recipe.star")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// children lists the live processes whose environment carries a marker.
func children(t *testing.T, marker string) []string {
	t.Helper()
	envs, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range envs {
		b, err := os.ReadFile(e)
		if err == nil && bytes.Contains(b, []byte(marker)) {
			status, _ := os.ReadFile(filepath.Join(filepath.Dir(e), "status"))
			if !bytes.Contains(status, []byte("State:\tZ")) {
				out = append(out, filepath.Base(filepath.Dir(e)))
			}
		}
	}
	return out
}

// eventually waits for a condition that other processes bring about.
func eventually(t *testing.T, limit time.Duration, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if cond() {
			return
		}
	}
	t.Fatalf("after %v: %s", limit, what)
}

func contains(t *testing.T, text string, wants ...string) {
	t.Helper()
	for _, w := range wants {
		if !strings.Contains(text, w) {
			t.Errorf("%q is missing from:\n%s", w, text)
		}
	}
}

func invarianceRecipe() string { return filepath.Join("..", "..", "recipes", "invariance.star") }

func ranksArg(n int) string { return fmt.Sprintf("ranks=%d", n) }

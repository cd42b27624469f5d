//go:build unix

package cluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

func testConfig(part string, ranks, victim int) Config {
	return Config{
		Ranks: ranks,
		Command: func(int) *exec.Cmd {
			self, err := os.Executable()
			if err != nil {
				panic(err)
			}
			cmd := exec.Command(self)
			cmd.Env = append(os.Environ(), envPart+"="+part, envVictim+"="+strconv.Itoa(victim))
			return cmd
		},
		Stderr: io.Discard,
		Grace:  time.Second,
	}
}

// launch runs a job, checks that nothing is left of it, and returns its outcome and how long it took.
func launch(t *testing.T, ctx context.Context, cfg Config) ([][]byte, time.Duration, error) {
	t.Helper()
	tmp, err := os.MkdirTemp("", "cl")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(tmp) })
	t.Setenv("TMPDIR", tmp)
	var started []int
	onStart := cfg.OnStart
	cfg.OnStart = func(rank, pid int) {
		started = append(started, pid)
		if onStart != nil {
			onStart(rank, pid)
		}
	}
	begin := time.Now()
	results, err := Launch(ctx, cfg)
	took := time.Since(begin)
	for _, pid := range started {
		if syscall.Kill(pid, 0) == nil {
			t.Errorf("worker %d is still there", pid)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(tmp, "*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	return results, took, err
}

func TestLaunch(t *testing.T) {
	for _, c := range []Config{{}, {Listen: "tcp:127.0.0.1:0"}, {Transport: TransportUnix}, {Transport: TransportTCP}, {Transport: TransportTCP, TLS: EncryptionOn}} {
		cfg := testConfig("run", 3, -1)
		cfg.Listen, cfg.Transport, cfg.TLS = c.Listen, c.Transport, c.TLS
		ready := 0
		cfg.OnReady = func() { ready++ }
		results, _, err := launch(t, t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		for r, b := range results {
			if want := fmt.Sprintf("rank %d of 3 stopped=false", r); string(b) != want {
				t.Errorf("rank %d's result is %q, want %q", r, b, want)
			}
		}
		if ready != 1 {
			t.Errorf("OnReady was called %d times", ready)
		}
	}
}

// TestFailures: however a rank ends, the job ends within seconds and its error names that rank and the cause.
func TestFailures(t *testing.T) {
	for _, c := range []struct {
		part   string
		change func(*Config)
		want   []string // all in the error
	}{
		{part: "die-early", want: []string{"was killed by signal 9", "before the ranks were connected"}},
		{part: "die-mid", want: []string{"was killed by signal 9", "during step ", "after the ranks were connected"}},
		{part: "exit", want: []string{"exited with code 3", "before the ranks were connected", "cannot read the data"}},
		{part: "leave", want: []string{"ended without a result"}},
		{part: "fail", want: []string{"failed during step 3", "loss is not finite"}},
		{part: "absent", change: func(c *Config) { c.JoinTimeout = time.Second }, want: []string{"did not join the job within 1s"}},
		{part: "deaf", change: func(c *Config) { c.Grace = 200 * time.Millisecond }, want: []string{"was killed by signal 9", "during step 3"}},
	} {
		t.Run(c.part, func(t *testing.T) {
			cfg := testConfig(c.part, 3, 1)
			if c.change != nil {
				c.change(&cfg)
			}
			var pids [3]int
			cfg.OnStart = func(rank, pid int) { pids[rank] = pid }
			if c.part == "deaf" {
				// All ranks sit where they hear nothing; one is killed from outside, the others must be killed by the launcher.
				deaf := 0
				cfg.OnEvent = func(_ int, e []byte) {
					if string(e) == "deaf" {
						if deaf++; deaf == 3 {
							_ = syscall.Kill(pids[1], syscall.SIGKILL)
						}
					}
				}
			}
			_, took, err := launch(t, t.Context(), cfg)
			var failed *RankError
			if !errors.As(err, &failed) {
				t.Fatalf("the job ended with %v", err)
			}
			if failed.Rank != 1 || failed.PID != pids[1] {
				t.Errorf("rank %d (pid %d) is named, want rank 1 (pid %d)", failed.Rank, failed.PID, pids[1])
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the error does not say %q:\n%v", want, err)
				}
			}
			if took > 8*time.Second {
				t.Errorf("it took %v", took)
			}
		})
	}
}

// TestKilledAtAnyTime kills a worker at random instants, from its first moments on.
func TestKilledAtAnyTime(t *testing.T) {
	rounds := 8
	if testing.Short() {
		rounds = 3
	}
	for range rounds {
		cfg := testConfig("kill", 3, -1)
		who, after := rand.IntN(3), time.Duration(rand.IntN(120))*time.Millisecond
		cfg.OnStart = func(rank, pid int) {
			if rank == who {
				time.AfterFunc(after, func() { _ = syscall.Kill(pid, syscall.SIGKILL) })
			}
		}
		_, took, err := launch(t, t.Context(), cfg)
		var failed *RankError
		if !errors.As(err, &failed) || failed.Rank != who || !strings.Contains(err.Error(), "was killed by signal 9") {
			t.Errorf("rank %d was killed after %v; the job ended with %v", who, after, err)
		}
		if took > 6*time.Second {
			t.Errorf("rank %d was killed after %v; the job took %v", who, after, took)
		}
	}
}

func TestRanksThatDoNotBelongTogether(t *testing.T) {
	_, _, err := launch(t, t.Context(), testConfig("digest", 2, 1))
	if err == nil || !strings.Contains(err.Error(), `"other"`) || !strings.Contains(err.Error(), `"d"`) {
		t.Errorf("two recipes: %v", err)
	}
}

func TestTakenPort(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	cfg := testConfig("run", 1, -1)
	cfg.Listen = "tcp:" + l.Addr().String()
	_, _, err = launch(t, t.Context(), cfg)
	if err == nil || !strings.Contains(err.Error(), l.Addr().String()+" is taken") || !strings.Contains(err.Error(), "port 0") {
		t.Errorf("a taken port: %v", err)
	}
}

func TestGracefulStop(t *testing.T) {
	stop := make(chan struct{})
	for name, ask := range map[string]func(pid int){
		"channel":          func(int) { close(stop) },
		"signal to job":    func(int) { _ = syscall.Kill(os.Getpid(), syscall.SIGTERM) },
		"signal to worker": func(pid int) { _ = syscall.Kill(pid, syscall.SIGTERM) },
	} {
		t.Run(name, func(t *testing.T) {
			cfg := testConfig("loop", 2, -1)
			cfg.Stop = stop
			once := sync.Once{}
			cfg.OnEvent = func(_ int, pid []byte) {
				n, err := strconv.Atoi(string(pid))
				if err != nil {
					t.Error(err)
				}
				once.Do(func() { ask(n) })
			}
			results, _, err := launch(t, t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			for r, b := range results {
				if want := fmt.Sprintf("rank %d of 2 stopped=true", r); string(b) != want {
					t.Errorf("rank %d's result is %q, want %q", r, b, want)
				}
			}
		})
		stop = make(chan struct{})
	}
}

func TestStopThatIsNotHeeded(t *testing.T) {
	for name, second := range map[string]bool{"grace": false, "second signal": true} {
		t.Run(name, func(t *testing.T) {
			cfg := testConfig("deaf", 2, -1)
			cfg.Grace = 100 * time.Millisecond
			cfg.StopGrace = 300 * time.Millisecond
			if second {
				cfg.StopGrace = time.Minute
			}
			heard := make(chan os.Signal, 1) // signals sent late must not end the test
			signal.Notify(heard, syscall.SIGTERM)
			defer signal.Stop(heard)
			over := make(chan struct{})
			defer close(over)
			deaf := 0
			cfg.OnEvent = func(_ int, e []byte) {
				if string(e) != "deaf" {
					return
				}
				if deaf++; deaf == 2 {
					go func() {
						_ = syscall.Kill(os.Getpid(), syscall.SIGTERM)
						for second { // two signals that come too close together are one
							select {
							case <-over:
								return
							case <-time.After(100 * time.Millisecond):
								_ = syscall.Kill(os.Getpid(), syscall.SIGTERM)
							}
						}
					}()
				}
			}
			_, took, err := launch(t, t.Context(), cfg)
			if !errors.Is(err, ErrStopped) {
				t.Errorf("the job ended with %v", err)
			}
			if took > 6*time.Second {
				t.Errorf("it took %v", took)
			}
		})
	}
}

func TestCancelledLaunch(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cfg := testConfig("loop", 2, -1)
	why := errors.New("changed my mind")
	cfg.OnReady = func() { cancel(why) }
	_, _, err := launch(t, ctx, cfg)
	if !errors.Is(err, ErrStopped) || !errors.Is(err, why) {
		t.Errorf("the job ended with %v", err)
	}
}

// TestKilledLauncher: no worker outlives a launcher that is killed outright.
func TestKilledLauncher(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), envPart+"=launcher")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var pids []int
	lines := bufio.NewScanner(out)
	for len(pids) < 3 && lines.Scan() {
		pid, err := strconv.Atoi(strings.TrimPrefix(lines.Text(), "pid "))
		if err != nil {
			t.Fatalf("the launcher says %q", lines.Text())
		}
		pids = append(pids, pid)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // "signal: killed"
	deadline := time.Now().Add(orphanGrace + 20*time.Second)
	for _, pid := range pids {
		for alive(pid) {
			if time.Now().After(deadline) {
				t.Fatalf("worker %d outlives its launcher", pid)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
}

// alive reports whether a process runs; one that nobody has reaped does not count.
func alive(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return !errors.Is(err, os.ErrNotExist) || !exists("/proc/self")
	}
	i := strings.LastIndexByte(string(stat), ')')
	return i < 0 || !strings.HasPrefix(string(stat[i:]), ") Z")
}

func exists(path string) bool { _, err := os.Stat(path); return err == nil }

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"starling/core/cluster"
)

// envVictim makes the test binary a rank of a job whose rank 2 is killed in the middle of an all-reduce.
const envVictim = "STARLING_TEST_VICTIM"

func isVictim() bool { return os.Getenv(envVictim) != "" }

// victimMain is such a rank. The last one kills itself while the handle of its sum is open: over connections when some of the sum has come.
func victimMain() int {
	w, err := cluster.Join(context.Background(), cluster.JoinConfig{Digest: "victim"})
	if err != nil {
		return 1
	}
	dir, where, _ := strings.Cut(os.Getenv(envVictim), "|")
	apart := where != "shared memory" // what has come is counted on the way only over connections
	g, _, err := dataGroup(w, false, time.Minute, dir)
	if err != nil {
		_ = w.Fail(err)
		return 1
	}
	defer g.Close()
	b := make([]float32, 8<<20)
	if err = g.AllReduce(w.Context(), "small", b[:100]); err == nil {
		for try := 0; try < 20 && err == nil; try++ { // one that is over before this rank has looked is followed by another
			before := payload(w)
			h := g.StartAllReduce("large", b)
			if w.Rank() == 2 {
				for !h.Over() && (h.Started().IsZero() || apart && payload(w) == before) {
					runtime.Gosched()
				}
				if !h.Over() {
					_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
				}
			}
			err = h.Wait(w.Context())
		}
		if err == nil {
			_ = os.WriteFile(filepath.Join(dir, "over"), nil, 0o644)
		}
	}
	if err != nil {
		_ = os.WriteFile(filepath.Join(dir, fmt.Sprintf("error-rank%d.txt", w.Rank())), []byte(err.Error()), 0o644)
		_ = w.Fail(err)
		return 1
	}
	_ = w.Done(nil)
	return 0
}

func payload(w *cluster.Worker) (n int64) {
	for r := range w.World() {
		n += w.Transport().Counters(r).PayloadReceived
	}
	return n
}

// TestKilledInMidAllReduce: of four processes one is killed while a sum of 32 MB is under way. The others stop at once, name it, and leave their
// stacks and last operations in the run folder.
func TestKilledInMidAllReduce(t *testing.T) {
	for name, cfg := range map[string]cluster.Config{
		"shared memory": {},
		"TCP":           {Transport: cluster.TransportTCP},
		"TLS":           {Transport: cluster.TransportTCP, TLS: cluster.EncryptionOn},
		"two hosts":     {Hosts: []string{"a", "a", "b", "b"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			cfg.Ranks = 4
			cfg.Command = func(int) *exec.Cmd {
				c := exec.Command(self)
				c.Env = append(os.Environ(), envVictim+"="+dir+"|"+name)
				return c
			}
			begin := time.Now()
			_, err = cluster.Launch(t.Context(), cfg)
			if err == nil || !strings.Contains(err.Error(), "rank 2") || !strings.Contains(err.Error(), "was killed by signal 9") {
				t.Errorf("the job ended with %v", err)
			}
			if took := time.Since(begin); took > 20*time.Second { // the deadline is a minute
				t.Errorf("it took %v", took)
			}
			if _, err := os.Stat(filepath.Join(dir, "over")); err == nil {
				t.Error("the sum was over before the rank was killed")
			}
			for _, r := range []int{0, 1, 3} {
				read := func(name string) string {
					b, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("%s-rank%d.txt", name, r)))
					if err != nil {
						t.Error(err)
					}
					return string(b)
				}
				report := read("error")
				contains(t, report, "rank 2")
				if strings.Contains(report, "EOF") {
					t.Errorf("rank %d reports %q, which says nothing to people", r, report)
				}
				contains(t, read("operations"), `all_reduce "small" of 400 bytes`, `all_reduce "large" of 33554432 bytes`, "still running")
				contains(t, read("stacks"), "victimMain")
			}
		})
	}
}

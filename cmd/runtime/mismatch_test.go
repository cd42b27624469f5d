package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"starling/core/cluster"
	"starling/core/comm"
)

// envMismatched makes the test binary a rank of a job in which rank 2 goes its own way.
const envMismatched = "STARLING_TEST_MISMATCHED"

func isMismatched() bool { return os.Getenv(envMismatched) != "" }

// mismatchedMain is such a rank: 300 collectives like everybody's, then another than the rest.
func mismatchedMain() int {
	w, err := cluster.Join(context.Background(), cluster.JoinConfig{Digest: "mismatch"})
	if err != nil {
		return 1
	}
	dir, kind, _ := strings.Cut(os.Getenv(envMismatched), "|")
	g, _, err := dataGroup(w, false, time.Minute, dir)
	if err != nil {
		_ = w.Fail(err)
		return 1
	}
	defer g.Close()
	b := make([]float32, 1000)
	for i := 0; i < 300 && err == nil; i++ {
		err = g.AllReduce(w.Context(), fmt.Sprint("bucket ", i), b)
	}
	const label = `gradient bucket 2 (h.0.mlp), from block "h.0.mlp" at gpt.star:31:17`
	switch {
	case err != nil:
	case w.Rank() != 2:
		err = g.AllReduce(w.Context(), label, b)
	case kind == "operation":
		err = g.AllGather(w.Context(), "parameters 1 (h.1)", comm.Chunks(len(b), g.Size(), 1), b)
	default:
		err = g.AllReduce(w.Context(), label, b[:999])
	}
	if err != nil {
		_ = os.WriteFile(filepath.Join(dir, fmt.Sprintf("error-rank%d.txt", w.Rank())), []byte(err.Error()), 0o644)
		_ = w.Fail(err)
		return 1
	}
	_ = w.Done(nil)
	return 0
}

// TestMismatchedRanks: of four processes rank 2 calls another collective than the rest, or with another shape. All stop at once with one
// report that names it, whatever connects them, and leave their stacks and last 256 operations in the run folder.
func TestMismatchedRanks(t *testing.T) {
	for name, cfg := range map[string]cluster.Config{
		"shared memory": {},
		"TCP":           {Transport: cluster.TransportTCP},
		"two hosts":     {Hosts: []string{"a", "a", "b", "b"}},
	} {
		for kind, entered := range map[string]string{"operation": `rank 2 entered all_gather "parameters 1 (h.1)" of 4000 bytes`, "shape": `of 3996 bytes`} {
			t.Run(name+", "+kind, func(t *testing.T) {
				dir := t.TempDir()
				self, err := os.Executable()
				if err != nil {
					t.Fatal(err)
				}
				cfg.Ranks = 4
				cfg.Command = func(int) *exec.Cmd {
					c := exec.Command(self)
					c.Env = append(os.Environ(), envMismatched+"="+dir+"|"+kind)
					return c
				}
				begin := time.Now()
				_, err = cluster.Launch(t.Context(), cfg)
				if err == nil || !strings.Contains(err.Error(), entered) || !strings.Contains(err.Error(), "ranks 0, 1, 3 entered all_reduce") || !strings.Contains(err.Error(), "gpt.star:31:17") {
					t.Errorf("the job ended with %v", err)
				}
				if took := time.Since(begin); took > 20*time.Second {
					t.Errorf("it took %v", took)
				}
				var first string
				for r := range 4 {
					read := func(name string) string {
						b, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("%s-rank%d.txt", name, r)))
						if err != nil {
							t.Error(err)
						}
						return string(b)
					}
					report, operations := read("error"), read("operations")
					if r == 0 {
						first = report
					}
					if report != first {
						t.Errorf("rank %d reports %s, rank 0 %s", r, report, first)
					}
					contains(t, operations, `all_reduce "bucket 299" of 4000 bytes`, `all_reduce "bucket 45" of 4000 bytes`)
					if n := strings.Count(operations, " of group data"); n < 256 {
						t.Errorf("rank %d keeps %d operations, want 256", r, n)
					}
					contains(t, read("stacks"), "mismatchedMain")
				}
			})
		}
	}
}

//go:build unix

package main

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// A command that is told to stop leaves nothing in the temporary directory.
func TestAStoppedCommandLeavesNothing(t *testing.T) {
	for name, args := range map[string][]string{
		"starling-test-*":    {"plugin", "test", filepath.Join("..", "..", "plugins", "lion")},
		"starling-install-*": {"plugin", "install", filepath.Join("..", "..", "plugins", "lion"), "--to", t.TempDir()},
	} {
		t.Run(name, func(t *testing.T) {
			tmp := t.TempDir()
			p := startThrough(t, nil, []string{"TMPDIR=" + tmp}, args...)
			for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
				if found, _ := filepath.Glob(filepath.Join(tmp, name)); len(found) > 0 {
					break
				}
				if time.Now().After(deadline) {
					t.Fatalf("there is no %s", name)
				}
			}
			if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			if code := p.wait(t, time.Minute); code != 130 {
				t.Errorf("exit status %d, want 130\n%s", code, p.stderr.String())
			}
			left, err := os.ReadDir(tmp)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range left {
				t.Errorf("%s is left", e.Name())
			}
		})
	}
}

//go:build unix

package plugin

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// What a rank that was killed has left behind goes at the next start; what belongs to a live process stays.
func TestSweep(t *testing.T) {
	base := t.TempDir()
	cmd := exec.Command("true")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	folder := func(pid int) string {
		dir := filepath.Join(base, fmt.Sprintf("%s%d-123", socketPrefix, pid))
		if err := os.MkdirAll(filepath.Join(dir, "x"), 0o755); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	dead, own, parent := folder(cmd.Process.Pid), folder(os.Getpid()), folder(os.Getppid())
	other := filepath.Join(base, socketPrefix+"notes")
	if err := os.Mkdir(other, 0o755); err != nil {
		t.Fatal(err)
	}
	sweep(base)
	if _, err := os.Stat(dead); !os.IsNotExist(err) {
		t.Errorf("the folder of a process that is gone is still there: %v", err)
	}
	for _, dir := range []string{own, parent, other} {
		if _, err := os.Stat(dir); err != nil {
			t.Error(err)
		}
	}
}

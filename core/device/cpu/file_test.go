package cpu

import (
	"os"
	"strings"
	"testing"
)

func TestAnArenaInAFileLeavesNothingBehind(t *testing.T) {
	d, err := Open(Config{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	dir := t.TempDir()
	a, err := d.AllocFile(dir, "state", 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	b := a.Bytes()
	if a.Size() != 1<<20 || len(b) != 1<<20 || b[0] != 0 || b[len(b)-1] != 0 {
		t.Errorf("an arena of %d zeroed bytes, want 1 MiB", a.Size())
	}
	b[5] = 7
	if b[5] != 7 {
		t.Error("the memory does not hold what is written")
	}
	a.Free()
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("%d files are left (%v)", len(left), err)
	}
	if _, err := d.AllocFile(dir+"/none", "state", 1<<20); err == nil || !strings.Contains(err.Error(), "arena state") {
		t.Errorf("error %v, want one that names the arena", err)
	}
}

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"starling/core/comm"
)

// TestSaveStall: stacks and operations lie in the run folder under the rank's number.
func TestSaveStall(t *testing.T) {
	dir := t.TempDir()
	saveStall(dir, 3, comm.NewRecorder())
	for name, want := range map[string]string{"stacks-rank3.txt": "TestSaveStall", "operations-rank3.txt": "rank 3, "} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || !strings.Contains(string(b), want) {
			t.Errorf("%s (%v) holds %q", name, err, b)
		}
	}
}

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"starling/core/comm"
)

// TestStragglers: a rank that is waited for through much of a window is named, once a minute at most, and the time in which
// ranks prepared does not count.
func TestStragglers(t *testing.T) {
	var s stragglers
	at := time.Unix(1000, 0)
	late := map[int]time.Duration{}
	for i, c := range []struct {
		of1, of2 time.Duration
		want     string
	}{
		{50 * time.Second, 0, ""}, // preparing
		{time.Second, time.Second, ""},
		{time.Second, 3 * time.Second, "rank 0 spent 30% of the last 10s waiting for rank 2"},
		{time.Second, 3 * time.Second, ""}, // said a moment ago
		{4 * time.Second, 3 * time.Second, "waiting for rank 1"},
		{0, 0, ""},
		{0, 0, ""},
		{0, 0, ""},
		{0, 9 * time.Second, "rank 0 spent 90% of the last 10s waiting for rank 2"},
	} {
		now := map[int]time.Duration{1: late[1] + c.of1, 2: late[2] + c.of2}
		late = now
		got := s.look(0, at, now)
		if (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("look %d says %q, want %q", i, got, c.want)
		}
		at = at.Add(10 * time.Second)
	}
}

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

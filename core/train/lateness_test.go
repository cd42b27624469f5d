package train

import (
	"strings"
	"testing"
	"time"
)

func TestLateness(t *testing.T) {
	var l lateness
	at := time.Unix(1000, 0)
	look := func(after time.Duration, last bool, waited ...float64) (Metrics, string) {
		at = at.Add(after)
		return l.look(at, waited, last)
	}
	if line, _ := look(0, false, 100, 200, 300); line != nil {
		t.Errorf("preparation counts: %v", line)
	}
	if line, _ := look(5*time.Second, false, 103, 203, 301); line != nil {
		t.Errorf("half a window gives %v", line)
	}
	line, text := look(5*time.Second, false, 106, 205, 300.5)
	if line["straggler"] != 2 || line["late_s_rank2"] != 5.5 || line["late_s_rank0"] != 0 || line["late_s_rank1"] != 1 || line["window_s"] != 10 {
		t.Errorf("line %v", line)
	}
	if !strings.Contains(text, "55% of the last 10s waiting for rank 2") {
		t.Errorf("warning %q", text)
	}
	if line, text = look(10*time.Second, false, 112, 211, 300.5); line["straggler"] != 2 || text != "" {
		t.Errorf("within a minute it is said again: %v %q", line, text)
	}
	if line, text = look(10*time.Second, false, 112.1, 211, 300.6); text != "" || line["late_s_rank1"] < 0.09 {
		t.Errorf("ranks that keep step: %v %q", line, text)
	}
	if line, text = look(time.Second, true, 112.1, 211.9, 301.5); line["straggler"] != 0 || text != "" {
		t.Errorf("the end of a run: %v %q", line, text)
	}
}

package optim

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
)

// Cases 1 to 3. testdata/scaler.txt holds transcripts: a line of settings, a line of flags, and behind ---- what the scale is after each step.
func TestScalerTranscripts(t *testing.T) {
	text, err := os.ReadFile("testdata/scaler.txt")
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for block := range strings.SplitSeq(string(text), "\n\n") {
		var lines []string
		for line := range strings.Lines(block) {
			if !strings.HasPrefix(line, "#") {
				lines = append(lines, strings.TrimSpace(line))
			}
		}
		if strings.Join(lines, "") == "" {
			continue
		}
		count++
		head, want, ok := strings.Cut(strings.Join(lines, "\n"), "----\n")
		settings, flags, ok2 := strings.Cut(strings.TrimSpace(head), "\n")
		if !ok || !ok2 {
			t.Fatalf("malformed transcript:\n%s", block)
		}
		if got := play(t, settings, strings.Fields(flags)); got != strings.TrimSpace(want) {
			t.Errorf("%s\n%s\ngives\n%s\nwant\n%s", settings, flags, got, want)
		}
	}
	if count < 8 {
		t.Errorf("%d transcripts were read, want at least 8", count)
	}
}

func play(t *testing.T, settings string, flags []string) string {
	t.Helper()
	l := DefaultLossScale
	restore := 0
	for _, f := range strings.Fields(settings)[1:] {
		key, value, _ := strings.Cut(f, "=")
		var err error
		switch key {
		case "init":
			_, err = fmt.Sscan(value, &l.Init)
		case "window":
			_, err = fmt.Sscan(value, &l.Window)
		case "hysteresis":
			_, err = fmt.Sscan(value, &l.Hysteresis)
		case "floor":
			_, err = fmt.Sscan(value, &l.Floor)
		case "restore":
			_, err = fmt.Sscan(value, &restore)
		case "window_end":
			l.WindowEnd = true
		case "static":
			l.Dynamic = false
		default:
			err = fmt.Errorf("unknown setting")
		}
		if err != nil {
			t.Fatalf("%s: %v", f, err)
		}
	}
	if err := l.Validate(); err != nil {
		t.Fatal(err)
	}
	s := l.Start()
	for range restore { // steps of an earlier session, whose state went through a checkpoint
		var err error
		if s, err = l.Next(s, false); err != nil {
			t.Fatal(err)
		}
		b, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		s = ScaleState{}
		if err := json.Unmarshal(b, &s); err != nil {
			t.Fatal(err)
		}
	}
	var scales []string
	stop := ""
	for _, f := range flags {
		var err error
		if s, err = l.Next(s, f == "1"); err != nil {
			stop = "\nstop: " + err.Error()
			break
		}
		scales = append(scales, fmt.Sprint(s.Scale))
	}
	return strings.Join(scales, " ") + stop
}

// The scale never reaches 0, and its inverse is never infinite, however long overflows go on.
func TestAScaleNeverVanishes(t *testing.T) {
	l := DefaultLossScale
	l.Init = 65536
	s := l.Start()
	for range 200 {
		next, err := l.Next(s, true)
		if err != nil {
			if s.Scale != l.Floor {
				t.Fatalf("stopped at a scale of %v, want the floor %v", s.Scale, l.Floor)
			}
			return
		}
		if s = next; !(s.Scale >= l.Floor) {
			t.Fatalf("the scale is %v, below its floor", s.Scale)
		}
	}
	t.Fatal("200 overflows in a row did not stop the run")
}

func TestScaleSettingsAreChecked(t *testing.T) {
	for what, change := range map[string]func(*LossScale){
		"init":       func(l *LossScale) { l.Init = -1 },
		"factor":     func(l *LossScale) { l.Factor = 1 },
		"window":     func(l *LossScale) { l.Window = 0 },
		"hysteresis": func(l *LossScale) { l.Hysteresis = 0 },
		"floor":      func(l *LossScale) { l.Floor = 1 << 20 },
		"inverse":    func(l *LossScale) { l.Floor = 1e-40 },
	} {
		l := DefaultLossScale
		change(&l)
		if err := l.Validate(); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: error %v, want one that names it", what, err)
		}
	}
}

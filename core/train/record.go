package train

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"

	"starling/core/plugin"
)

// recorder appends lines to a run's metrics.jsonl. A line is one JSON object with "kind", "step" and figures.
type recorder struct {
	f *os.File
	w *bufio.Writer
	// sinks are plugins that get the same figures.
	sinks []*plugin.Sink
}

// MetricsFile is the name of the metrics log in a run folder.
const MetricsFile = "metrics.jsonl"

// openRecorder opens the log of a run folder for appending. After a resume at step, lines of later steps, which
// are about to be made again, are dropped, and with due the step's own evaluation.
func openRecorder(dir string, step int, due bool) (*recorder, error) {
	path := filepath.Join(dir, MetricsFile)
	if err := cutAfter(path, step, due); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("metrics log: %w", err)
	}
	return &recorder{f: f, w: bufio.NewWriter(f)}, nil
}

// cutAfter rewrites the log without lines of steps after step, with due without the step's evaluation, and without a torn last line.
func cutAfter(path string, step int, due bool) error {
	old, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("metrics log: %w", err)
	}
	var keep []byte
	for line := range bytes.Lines(old) {
		var at struct {
			Kind string `json:"kind"`
			Step int    `json:"step"`
		}
		if !bytes.HasSuffix(line, []byte("\n")) || json.Unmarshal(line, &at) != nil || at.Step > step || due && at.Step == step && at.Kind == "eval" {
			continue
		}
		keep = append(keep, line...)
	}
	if bytes.Equal(keep, old) {
		return nil
	}
	tmp := path + ".tmp"
	if err := os.WriteFile(tmp, keep, 0o644); err != nil {
		return fmt.Errorf("metrics log: %w", err)
	}
	if err := os.Rename(tmp, path); err != nil {
		return fmt.Errorf("metrics log: %w", err)
	}
	return nil
}

// write appends one line. Figures are flushed at once: whoever follows the log sees each step as it ends.
func (r *recorder) write(kind string, step int, m Metrics) error {
	if r == nil {
		return nil
	}
	for _, s := range r.sinks {
		s.Write(kind, step, maps.Clone(m))
	}
	figures, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("metrics log: %w", err)
	}
	fmt.Fprintf(r.w, `{"kind":%q,"step":%d`, kind, step)
	if len(m) > 0 {
		r.w.WriteByte(',')
		r.w.Write(figures[1 : len(figures)-1])
	}
	r.w.WriteString("}\n")
	if err := r.w.Flush(); err != nil {
		return fmt.Errorf("metrics log: %w", err)
	}
	return nil
}

func (r *recorder) close() error {
	if r == nil {
		return nil
	}
	for _, s := range r.sinks {
		s.Close()
	}
	return r.f.Close()
}

// Command tensorboard is a sink that writes a run's figures as TensorBoard event files, into the folder tensorboard of the run.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"starling/sdk"
)

func main() { sdk.Serve(&sink{}) }

type sink struct {
	f *os.File
	w *bufio.Writer
}

func (*sink) Manifest() sdk.Manifest {
	return sdk.Manifest{
		Name:    "tensorboard",
		Version: "1.0.0",
		Doc:     "writes a run's figures as TensorBoard event files into its folder",
		Hypers: []sdk.Hyper{
			sdk.String("folder", "tensorboard", "where in the run's folder the files go"),
		},
	}
}

// pattern is that of TensorBoard's readers, with an ending that tells our files from others'.
const pattern = "events.out.tfevents.*.starling"

// Open drops from older files what comes again, and begins a new one.
func (s *sink) Open(run sdk.Run) error {
	name := run.Settings.String("folder")
	if !filepath.IsLocal(name) {
		return fmt.Errorf("folder = %q: it must lie in the run's folder", name)
	}
	dir := filepath.Join(run.Folder, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	old, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil {
		return err
	}
	for _, path := range old {
		if err := cut(path, int64(run.Step)); err != nil {
			return err
		}
	}
	now := time.Now()
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	// Readers take files in the order of their names; the process's number tells files of one second apart.
	path := filepath.Join(dir, fmt.Sprintf("events.out.tfevents.%010d.%s.%d.starling", now.Unix(), host, os.Getpid()))
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	*s = sink{f: f, w: bufio.NewWriter(f)}
	if _, err := s.w.Write(record(version(now))); err != nil {
		return err
	}
	return s.w.Flush()
}

// cut drops the events of steps after step from a file, and what a killed process has left torn at its end.
func cut(path string, step int64) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var keep []byte
	events := 0
	for rest := b; ; {
		data, after, ok := split(rest)
		if !ok {
			break
		}
		if at, ok := stepOf(data); ok && at <= step {
			keep = append(keep, rest[:len(rest)-len(after)]...)
			events++
		}
		rest = after
	}
	switch {
	case len(keep) == len(b):
		return nil
	case events <= 1: // the version alone
		return os.Remove(path)
	}
	tmp := path + ".tmp"
	if err := os.WriteFile(tmp, keep, 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// Write makes one event of each record. The figures of steps are those of training, and so they are called; eval_loss is eval/loss.
func (s *sink) Write(records []sdk.Record) error {
	for _, r := range records {
		kind := r.Kind
		if kind == "step" {
			kind = "train"
		}
		var values []scalar
		for _, name := range slices.Sorted(maps.Keys(r.Values)) {
			values = append(values, scalar{kind + "/" + strings.TrimPrefix(name, kind+"_"), float32(r.Values[name])})
		}
		if _, err := s.w.Write(record(event(r.Time, int64(r.Step), values))); err != nil {
			return err
		}
	}
	return s.w.Flush()
}

func (s *sink) Close() error { return errors.Join(s.w.Flush(), s.f.Sync(), s.f.Close()) }

// Command csv is a sink that writes a run's figures as one CSV file for each kind of them: csv/step.csv, csv/eval.csv, csv/epoch.csv,
// csv/lateness.csv in the run's folder.
package main

import (
	"bufio"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"starling/sdk"
)

func main() { sdk.Serve(&sink{}) }

type sink struct {
	dir   string
	comma rune
	files map[string]*file
}

// file is one CSV file. Its columns are the figures of its first record, in order of name.
type file struct {
	f       *os.File
	w       *csv.Writer
	columns []string
}

func (*sink) Manifest() sdk.Manifest {
	return sdk.Manifest{
		Name:    "csv",
		Version: "1.0.0",
		Doc:     "writes a run's figures as CSV files into its folder",
		Hypers: []sdk.Hyper{
			sdk.String("folder", "csv", "where in the run's folder the files go"),
			sdk.String("separator", ",", "what stands between two fields").OneOf(",", ";", "\t"),
		},
	}
}

func (s *sink) Open(run sdk.Run) error {
	name := run.Settings.String("folder")
	if !filepath.IsLocal(name) {
		return fmt.Errorf("folder = %q: it must lie in the run's folder", name)
	}
	*s = sink{dir: filepath.Join(run.Folder, name), comma: []rune(run.Settings.String("separator"))[0], files: map[string]*file{}}
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return err
	}
	old, err := filepath.Glob(filepath.Join(s.dir, "*.csv"))
	if err != nil {
		return err
	}
	for _, path := range old {
		if err := s.cut(path, run.Step); err != nil {
			return err
		}
	}
	return nil
}

// cut drops the rows of steps after step, which are about to come again.
func (s *sink) cut(path string, step int) error {
	b, err := os.Open(path)
	if err != nil {
		return err
	}
	defer b.Close()
	r := csv.NewReader(bufio.NewReader(b))
	r.Comma = s.comma
	var keep [][]string
	for {
		row, err := r.Read()
		var torn *csv.ParseError
		if errors.Is(err, io.EOF) || errors.As(err, &torn) { // a row that was being written when the run was killed
			break
		}
		if err != nil {
			return err
		}
		if at, err := strconv.Atoi(row[0]); len(keep) == 0 || err == nil && at <= step {
			keep = append(keep, row)
		}
	}
	if len(keep) == 0 {
		return os.Remove(path)
	}
	tmp := path + ".tmp"
	f, err := os.Create(tmp)
	if err != nil {
		return err
	}
	w := csv.NewWriter(f)
	w.Comma = s.comma
	if err := errors.Join(w.WriteAll(keep), f.Close()); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// file opens the file of a kind of record.
func (s *sink) file(r sdk.Record) (*file, error) {
	if f := s.files[r.Kind]; f != nil {
		return f, nil
	}
	path := filepath.Join(s.dir, filepath.Base(r.Kind)+".csv")
	columns := slices.Sorted(maps.Keys(r.Values))
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	out := &file{f: f, w: csv.NewWriter(f), columns: columns}
	out.w.Comma = s.comma
	head := csv.NewReader(f)
	head.Comma = s.comma
	if row, err := head.Read(); err == nil && len(row) > 2 {
		out.columns = row[2:]
	} else if err := out.w.Write(append([]string{"step", "time"}, columns...)); err != nil {
		return nil, err
	}
	if _, err := f.Seek(0, io.SeekEnd); err != nil {
		return nil, err
	}
	s.files[r.Kind] = out
	return out, nil
}

func (s *sink) Write(records []sdk.Record) error {
	for _, r := range records {
		f, err := s.file(r)
		if err != nil {
			return err
		}
		row := []string{strconv.Itoa(r.Step), strconv.FormatFloat(float64(r.Time.UnixMilli())/1000, 'f', 3, 64)}
		for _, c := range f.columns {
			text := ""
			if v, ok := r.Values[c]; ok {
				text = strconv.FormatFloat(v, 'g', -1, 64)
			}
			row = append(row, text)
		}
		if err := f.w.Write(row); err != nil {
			return err
		}
	}
	for _, f := range s.files {
		if f.w.Flush(); f.w.Error() != nil {
			return f.w.Error()
		}
	}
	return nil
}

func (s *sink) Close() error {
	var errs []error
	for _, f := range s.files {
		f.w.Flush()
		errs = append(errs, f.w.Error(), f.f.Sync(), f.f.Close())
	}
	return errors.Join(errs...)
}

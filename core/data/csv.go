package data

import (
	"bufio"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
)

// CSVConfig says how a table becomes samples: one line a sample, one column its
// label or target, every other column a feature.
type CSVConfig struct {
	// Label is the label column: its name in the header, or its number from 0, negative
	// from the end. Empty means the last column.
	Label string
	// Target is, in the same way, a column of real numbers to predict, in place of labels. Label and Classes are
	// not used then.
	Target string
	// Shape is the shape of the features, such as [8, 8]; empty means [columns - 1].
	Shape []int
	// Scale multiplies every feature, but no target; 0 means 1. Pixels of 0 to 255 want 1.0 / 255.
	Scale float32
	// Classes is the number of classes; 0 means one more than the largest label.
	Classes int
	// Comma separates the columns; 0 means ','.
	Comma rune
}

// ReadCSVFile reads the table at path.
func ReadCSVFile(path string, cfg CSVConfig) (*Array, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("data: opening a table: %w", err)
	}
	defer file.Close()
	return ReadCSV(file, path, cfg)
}

// ReadCSV reads a table; name is what errors call it. The first line is a header
// when none of its cells is a number. Labels are whole numbers from 0.
// Blank lines and a byte order mark at the start are skipped. Errors start with name:line:column.
func ReadCSV(r io.Reader, name string, cfg CSVConfig) (*Array, error) {
	text := bufio.NewReader(r)
	if mark, err := text.Peek(len(byteOrderMark)); err == nil && string(mark) == byteOrderMark {
		_, _ = text.Discard(len(mark)) // what was peeked at is there
	}
	t := table{name: name, cfg: cfg, csv: csv.NewReader(text)}
	t.csv.ReuseRecord = true
	t.csv.FieldsPerRecord = -1 // counted here, for the sake of the message
	if cfg.Comma != 0 {
		t.csv.Comma = cfg.Comma
	}
	if t.cfg.Scale == 0 {
		t.cfg.Scale = 1
	}
	for {
		record, err := t.csv.Read()
		if err == io.EOF {
			break
		}
		if err != nil {
			var bad *csv.ParseError
			if errors.As(err, &bad) {
				return nil, fmt.Errorf("data: %s:%d:%d: %w", name, bad.Line, bad.Column, bad.Err)
			}
			return nil, fmt.Errorf("data: %s: %w", name, err)
		}
		if err := t.add(record); err != nil {
			return nil, err
		}
	}
	return t.array()
}

// byteOrderMark is what some editors and spreadsheets put before UTF-8 text.
const byteOrderMark = "\ufeff"

type table struct {
	name     string
	cfg      CSVConfig
	csv      *csv.Reader
	header   []string
	columns  int // 0 before the first line
	label    int // the column of labels or targets
	features []float32
	labels   []int32
	targets  []float32
}

func (t *table) errorf(column int, format string, args ...any) error {
	line, col := t.csv.FieldPos(column)
	return fmt.Errorf("data: %s:%d:%d: %s", t.name, line, col, fmt.Sprintf(format, args...))
}

func (t *table) add(record []string) error {
	if t.columns == 0 {
		header, err := t.start(record)
		if header || err != nil {
			return err
		}
	}
	if len(record) != t.columns {
		return t.errorf(0, "%d columns, where the first line has %d", len(record), t.columns)
	}
	for k, cell := range record {
		cell = strings.TrimSpace(cell)
		if k == t.label && t.cfg.Target == "" {
			y, err := strconv.ParseInt(cell, 10, 32)
			if err != nil || y < 0 {
				hint := ""
				if _, err := strconv.ParseFloat(cell, 32); err == nil {
					hint = fmt.Sprintf("; to predict real numbers, give target = %s in place of classes", t.columnArg(k))
				}
				return t.errorf(k, "label %s is %q; labels are whole numbers from 0%s", t.columnName(k), cell, hint)
			}
			if t.cfg.Classes > 0 && y >= int64(t.cfg.Classes) {
				return t.errorf(k, "label %s is %d; with %d classes labels are 0 to %d", t.columnName(k), y, t.cfg.Classes, t.cfg.Classes-1)
			}
			t.labels = append(t.labels, int32(y))
			continue
		}
		v, err := strconv.ParseFloat(cell, 32)
		if err != nil || math.IsInf(v, 0) || math.IsNaN(v) {
			what := "feature"
			if k == t.label {
				what = "target"
			}
			return t.errorf(k, "%s %s is %q, which is no finite number", what, t.columnName(k), cell)
		}
		if k == t.label {
			t.targets = append(t.targets, float32(v))
			continue
		}
		t.features = append(t.features, float32(v)*t.cfg.Scale)
	}
	return nil
}

// start settles the columns by the first line, and says whether it is a header.
func (t *table) start(record []string) (header bool, err error) {
	t.columns = len(record)
	if t.columns < 2 {
		return false, t.errorf(0, "one column only; a sample needs features and a label (is the separator another than %q?)", t.csv.Comma)
	}
	header = !slices.ContainsFunc(record, func(cell string) bool {
		_, err := strconv.ParseFloat(strings.TrimSpace(cell), 64)
		return err == nil
	})
	if header {
		t.header = slices.Clone(record)
		for k := range t.header {
			t.header[k] = strings.TrimSpace(t.header[k])
		}
	}
	t.label, err = t.labelColumn()
	return header, err
}

// labelColumn finds the column of labels or targets.
func (t *table) labelColumn() (int, error) {
	what, name := "label", t.cfg.Label
	if t.cfg.Target != "" {
		what, name = "target", t.cfg.Target
	}
	if name == "" {
		return t.columns - 1, nil
	}
	if k := slices.Index(t.header, name); k >= 0 {
		return k, nil
	}
	n, err := strconv.Atoi(name)
	switch {
	case err != nil && t.header == nil:
		return 0, t.errorf(0, "the %s column %q is named, but the first line is no header; give its number", what, name)
	case err != nil:
		return 0, t.errorf(0, "no column is called %q; the header has %s", name, strings.Join(t.header, ", "))
	}
	if n < 0 {
		n += t.columns
	}
	if n < 0 || n >= t.columns {
		return 0, t.errorf(0, "there is no column %s; the line has columns 0 to %d", name, t.columns-1)
	}
	return n, nil
}

func (t *table) columnName(k int) string {
	if t.header != nil {
		return strconv.Quote(t.header[k])
	}
	return "in column " + strconv.Itoa(k)
}

// columnArg is a column as an argument of a recipe.
func (t *table) columnArg(k int) string {
	if t.header != nil {
		return strconv.Quote(t.header[k])
	}
	return strconv.Itoa(k)
}

func (t *table) array() (*Array, error) {
	if len(t.labels)+len(t.targets) == 0 {
		return nil, fmt.Errorf("data: %s has no samples", t.name)
	}
	shape := t.cfg.Shape
	if len(shape) == 0 {
		shape = []int{t.columns - 1}
	}
	a, err := NewArray(t.features, shape, t.labels, t.cfg.Classes)
	if t.cfg.Target != "" {
		a, err = NewRegression(t.features, shape, t.targets)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", t.name, err)
	}
	return a, nil
}

package data

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// The quickstart's corpus: thousands of files of real text, a folder whose name ends in .go, and
// files that are no UTF-8.
func TestTextOfGoStandardLibrary(t *testing.T) {
	index, err := ScanText(t.Context(), TextConfig{Pattern: "$GOROOT/src/**/*.go", Holdout: 0.02})
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	var last Progress
	calls := 0
	text, err := index.Load(t.Context(), func(p Progress) {
		if p.Bytes < last.Bytes || p.Files < last.Files {
			t.Errorf("progress went back from %+v to %+v", last, p)
		}
		last = p
		calls++
	})
	if err != nil {
		t.Fatal(err)
	}
	defer text.Close()
	t.Logf("%d files, %d held out, %d bytes, %d calls of progress, read in %v", len(index.Files), index.HoldoutFiles(), text.Bytes(), calls, time.Since(begin))
	if last.Bytes != last.TotalBytes || last.Files != len(index.Files) || calls < 10 || calls > 200 {
		t.Errorf("%d calls of progress, the last %+v", calls, last)
	}
	if len(index.Files) < 5000 {
		t.Errorf("only %d files", len(index.Files))
	}
	if !slices.IsSortedFunc(index.Files, func(a, b TextFile) int { return bytes.Compare([]byte(a.Path), []byte(b.Path)) }) {
		t.Error("files are not sorted by path")
	}
	share := float64(index.HoldoutFiles()) / float64(len(index.Files))
	if share < 0.015 || share > 0.025 {
		t.Errorf("%.4f of the files are held out, want about 0.02", share)
	}
	if index.Bytes() != text.Bytes() || int64(len(text.TrainBytes())) != index.TrainBytes || int64(len(text.HoldoutBytes())) != index.HoldoutBytes {
		t.Error("the streams are not as long as the index says")
	}
	// Both streams, taken apart again, are the files.
	streams := map[bool][]byte{false: text.TrainBytes(), true: text.HoldoutBytes()}
	for k, f := range index.Files {
		stream := streams[f.Holdout]
		if k%97 == 0 {
			want, err := os.ReadFile(filepath.Join(index.Root, f.Path))
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(stream[:f.Size], want) {
				t.Errorf("%s differs in the stream", f.Path)
			}
		}
		if stream[f.Size] != Separator {
			t.Errorf("%s is not followed by a separator", f.Path)
		}
		streams[f.Holdout] = stream[f.Size+1:]
	}
	if len(streams[false])+len(streams[true]) != 0 {
		t.Error("the streams hold more than the files")
	}
}

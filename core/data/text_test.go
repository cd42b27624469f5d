package data

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
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

// corpus writes files below a temporary folder and returns it.
func corpus(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func openText(t *testing.T, cfg TextConfig) *Text {
	t.Helper()
	text, err := OpenText(t.Context(), cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := text.Close(); err != nil {
			t.Error(err)
		}
	})
	return text
}

func TestTextTakesRegularFilesInPathOrder(t *testing.T) {
	dir := corpus(t, map[string]string{
		"b/x.txt":           "bx\xff\xfe",
		"a.txt":             "a",
		"b.txt":             "b",
		"b/folder.txt/deep": "no match",
		"b/empty.txt":       "",
		"b/other.md":        "no match",
		"outside/y.md":      "linked",
	})
	if err := os.Symlink(filepath.Join(dir, "outside", "y.md"), filepath.Join(dir, "link.txt")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(dir, filepath.Join(dir, "b", "loop")); err != nil {
		t.Fatal(err)
	}
	text := openText(t, TextConfig{Pattern: "**/*.txt", Dir: dir})
	if got, want := string(text.TrainBytes()), "a\x00b\x00bx\xff\xfe\x00linked\x00"; got != want {
		t.Errorf("stream %q, want %q", got, want)
	}
	if _, err := text.Holdout(2); err == nil || !strings.Contains(err.Error(), "holdout = 0.02") {
		t.Errorf("holdout of a source without one: error %v", err)
	}
}

func TestHoldoutDependsOnThePathAlone(t *testing.T) {
	files := map[string]string{}
	for i := range 200 {
		files[fmt.Sprintf("d%d/f%d.txt", i%7, i)] = strings.Repeat("x", i+1)
	}
	held := func() map[string]bool {
		index, err := ScanText(t.Context(), TextConfig{Pattern: "**/*.txt", Dir: corpus(t, files), Holdout: 0.1})
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]bool{}
		for _, f := range index.Files {
			out[f.Path] = f.Holdout
		}
		return out
	}
	before := held()
	for i := range 50 {
		files[fmt.Sprintf("new/f%d.txt", i)] = "y"
	}
	files["d0/f0.txt"] = "other content"
	after := held()
	for path, was := range before {
		if after[path] != was {
			t.Errorf("%s: held out %v, with more files %v", path, was, after[path])
		}
	}
}

func TestHoldoutOfFewFiles(t *testing.T) {
	two := map[string]string{"a.txt": "aaaa", "b.txt": "bbbb"}
	for _, fraction := range []float64{0.0001, 0.9999} {
		text := openText(t, TextConfig{Pattern: "*.txt", Dir: corpus(t, two), Holdout: fraction})
		if len(text.TrainBytes()) != 5 || len(text.HoldoutBytes()) != 5 {
			t.Errorf("holdout %v of two files: streams %q and %q, want one file each", fraction, text.TrainBytes(), text.HoldoutBytes())
		}
	}
	one := openText(t, TextConfig{Pattern: "*.txt", Dir: corpus(t, map[string]string{"a.txt": "0123456789"}), Holdout: 0.25})
	if train, held := string(one.TrainBytes()), string(one.HoldoutBytes()); train != "0123456" || held != "789\x00" {
		t.Errorf("one file is cut into %q and %q", train, held)
	}
}

func TestWindows(t *testing.T) {
	w, err := NewWindows([]byte("abcdefgh"), 3)
	if err != nil {
		t.Fatal(err)
	}
	if w.Len() != 2 || WindowCount(8, 3) != 2 || WindowCount(7, 3) != 2 || WindowCount(6, 3) != 1 || WindowCount(0, 3) != 0 {
		t.Errorf("%d windows", w.Len())
	}
	b := NewBatch(w.Fields(), 2)
	s := newSampler(t, SamplerConfig{Samples: 2, GlobalBatch: 2, MicroBatch: 2})
	if err := b.Fill(w, s, 0, 0); err != nil {
		t.Fatal(err)
	}
	text := func(name string) string {
		out, err := Bytes{}.Decode(nil, b.Column(name).Int32)
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	if text("tokens") != "abcdef" || text("targets") != "bcdefg" || b.Weight != 6 || b.Samples != 2 {
		t.Errorf("tokens %q, targets %q, weight %d, samples %d", text("tokens"), text("targets"), b.Weight, b.Samples)
	}
	if err := w.Sample(2, b.rows[0]); err == nil {
		t.Error("a window past the end was read")
	}
	for context, want := range map[int]string{0: "context = 0", 8: "8 bytes are too few for one sample of context = 8"} {
		if _, err := NewWindows([]byte("abcdefgh"), context); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("context %d: error %v", context, err)
		}
	}
}

func TestTextRefuses(t *testing.T) {
	dir := corpus(t, map[string]string{"a.txt": "a", "e/empty.md": ""})
	for _, c := range []struct {
		pattern string
		want    []string
	}{
		{"", []string{"pattern is empty"}},
		{"nothing/**/*.go", []string{dir + "/nothing", "no such file", "before the first wildcard"}},
		{"e/**/*.go", []string{"no file matches " + dir + "/e/**/*.go", "extension"}},
		{"*.md", []string{"no file matches"}},
		{"e/*.md", []string{"is empty"}},
		{"a.txt/*.go", []string{"a.txt is no folder"}},
		{"[a.txt", []string{"malformed", "[a.txt"}},
		{"$HOME/*.txt", []string{"unknown variable $HOME", "only $GOROOT"}},
		{"${DATA}/*.txt", []string{"unknown variable ${DATA}"}},
		{"a$/*.txt", []string{"unknown variable $"}},
		{"~/x.txt", []string{"~ is not expanded"}},
	} {
		_, err := ScanText(t.Context(), TextConfig{Pattern: c.pattern, Dir: dir})
		for _, want := range c.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%q: error %v, want %q", c.pattern, err, want)
			}
		}
	}
	for _, fraction := range []float64{-0.1, 1, math.NaN()} {
		if _, err := ScanText(t.Context(), TextConfig{Pattern: "*.txt", Dir: dir, Holdout: fraction}); err == nil || !strings.Contains(err.Error(), "holdout = ") {
			t.Errorf("holdout %v: error %v", fraction, err)
		}
	}
}

func TestGorootIsTheEnvironmentsOrTheGoCommands(t *testing.T) {
	dir := corpus(t, map[string]string{"src/a.go": "package a"})
	t.Setenv("GOROOT", dir)
	text := openText(t, TextConfig{Pattern: "${GOROOT}/src/*.go"})
	if got := string(text.TrainBytes()); got != "package a\x00" {
		t.Errorf("stream %q", got)
	}
	t.Setenv("GOROOT", "")
	t.Setenv("PATH", "")
	if _, err := ScanText(t.Context(), TextConfig{Pattern: "$GOROOT/src/*.go"}); err == nil || !strings.Contains(err.Error(), "no Go toolchain was found") || !strings.Contains(err.Error(), "install Go") {
		t.Errorf("without a Go toolchain: error %v", err)
	}
}

func TestRecipeFolderMayHoldPatternCharacters(t *testing.T) {
	dir := corpus(t, map[string]string{"run [1] {a,b}/a.txt": "a"})
	text := openText(t, TextConfig{Pattern: "*.txt", Dir: filepath.Join(dir, "run [1] {a,b}")})
	if got := string(text.TrainBytes()); got != "a\x00" {
		t.Errorf("stream %q", got)
	}
}

func TestFileThatChangesBetweenScanAndLoad(t *testing.T) {
	for name, content := range map[string]string{"shrinks": "a", "grows": "abcdefg"} {
		dir := corpus(t, map[string]string{"a.txt": "abcd", "b.txt": "abcd"})
		index, err := ScanText(t.Context(), TextConfig{Pattern: "*.txt", Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "b.txt"), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := index.Load(t.Context(), nil); !errors.Is(err, ErrChanged) || !strings.Contains(err.Error(), filepath.Join(dir, "b.txt")) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

func TestLoadStopsWithItsContext(t *testing.T) {
	index, err := ScanText(t.Context(), TextConfig{Pattern: "*.txt", Dir: corpus(t, map[string]string{"a.txt": "a"})})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := index.Load(ctx, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

// The definition in the package comment, computed by hand for two files, one longer than a piece.
func TestFingerprint(t *testing.T) {
	long := strings.Repeat("0123456789abcdef", (pieceBytes+160)/16)
	files := map[string]string{"long.txt": long, "a/short.txt": "short"}
	first := openText(t, TextConfig{Pattern: "**/*.txt", Dir: corpus(t, files)})
	if got := string(first.TrainBytes()); got != "short\x00"+long+"\x00" {
		t.Error("a file of several pieces is not read whole")
	}

	h := sha256.New()
	h.Write([]byte("starling text fingerprint v1\n"))
	put := func(path string, size int, pieces ...string) {
		h.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(path))))
		h.Write([]byte(path))
		h.Write(binary.LittleEndian.AppendUint64(nil, uint64(size)))
		for _, p := range pieces {
			sum := sha256.Sum256([]byte(p))
			h.Write(sum[:])
		}
	}
	put("a/short.txt", 5, "short")
	put("long.txt", len(long), long[:4<<20], long[4<<20:])
	if got, want := first.Fingerprint(), hex.EncodeToString(h.Sum(nil)); got != want {
		t.Errorf("fingerprint %s, want %s", got, want)
	}

	// Where the files lie and what is held out does not enter; every byte and name does.
	if same := openText(t, TextConfig{Pattern: "**/*.txt", Dir: corpus(t, files), Holdout: 0.5}); same.Fingerprint() != first.Fingerprint() {
		t.Error("the same files elsewhere have another fingerprint")
	}
	for name, change := range map[string]map[string]string{
		"one byte":                        {"long.txt": long[:len(long)-1] + "X", "a/short.txt": "short"},
		"one name":                        {"long2.txt": long, "a/short.txt": "short"},
		"two bytes swapped between files": {"long.txt": "s" + long[1:], "a/short.txt": "0hort"},
	} {
		if other := openText(t, TextConfig{Pattern: "**/*.txt", Dir: corpus(t, change)}); other.Fingerprint() == first.Fingerprint() {
			t.Errorf("%s differs and the fingerprint does not", name)
		}
	}
}

func BenchmarkGoStandardLibrary(b *testing.B) {
	for b.Loop() {
		text, err := OpenText(b.Context(), TextConfig{Pattern: "$GOROOT/src/**/*.go", Holdout: 0.02}, nil)
		if err != nil {
			b.Fatal(err)
		}
		b.SetBytes(text.Bytes())
		if err := text.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

package data

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
)

// TextConfig names a text source.
type TextConfig struct {
	// Pattern is a glob: *, **, ?, [class], {a,b}. $GOROOT stands for the Go
	// toolchain's folder; any other variable is an error.
	Pattern string
	// Dir is the folder that a relative pattern starts from: the recipe's.
	Dir string
	// Holdout is the fraction of the files, 0 <= Holdout < 1, kept out of training.
	Holdout float64
}

// TextFile is one file of a corpus.
type TextFile struct {
	Path    string // relative to the index's Root, with forward slashes
	Size    int64  // bytes
	Holdout bool   // in the holdout stream

	at int64 // where its first byte goes in the corpus's memory
}

// TextIndex is a text source whose files are listed and not yet read.
type TextIndex struct {
	Pattern string     // as expanded: absolute, with forward slashes
	Root    string     // folder of the pattern's fixed prefix
	Files   []TextFile // sorted by Path; empty files are left out

	TrainBytes   int64 // length of the train stream, separators included
	HoldoutBytes int64 // length of the holdout stream, separators included
}

// ScanText lists the files of a source, and decides which are held out.
func ScanText(ctx context.Context, cfg TextConfig) (*TextIndex, error) {
	if !(cfg.Holdout >= 0 && cfg.Holdout < 1) {
		return nil, fmt.Errorf("data: holdout = %v must be at least 0 and less than 1", cfg.Holdout)
	}
	pattern, err := expand(ctx, cfg.Pattern, cfg.Dir)
	if err != nil {
		return nil, err
	}
	root, found, err := walk(ctx, pattern)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(found, func(a, b match) int { return strings.Compare(a.rel, b.rel) })
	found = slices.Compact(found)
	if len(found) == 0 {
		return nil, fmt.Errorf("data: no file matches %s; check the folder and the extension (** crosses folders, * does not)", pattern)
	}
	x := &TextIndex{Pattern: pattern, Root: root}
	for _, m := range found {
		if m.size > 0 {
			x.Files = append(x.Files, TextFile{Path: m.rel, Size: m.size})
		}
	}
	if len(x.Files) == 0 {
		return nil, fmt.Errorf("data: every file that matches %s is empty (%d of them)", pattern, len(found))
	}
	holdOut(x.Files, cfg.Holdout)
	if err := x.place(cfg.Holdout); err != nil {
		return nil, err
	}
	return x, nil
}

// pathHash orders paths for the holdout, the same way on every machine and for any
// set of files.
func pathHash(rel string) uint64 {
	sum := sha256.Sum256([]byte(rel))
	return binary.BigEndian.Uint64(sum[:])
}

// holdOut marks the files whose hash lies in the lowest fraction of all hashes, at
// least one and not all of them. A single file is not marked: place cuts it.
func holdOut(files []TextFile, fraction float64) {
	if fraction == 0 || len(files) == 1 {
		return
	}
	// A fraction below 1 times 2⁶⁴ is exact in float64 and below 2⁶⁴.
	limit := uint64(math.Ldexp(fraction, 64))
	held, lowest, highest := 0, 0, 0
	for i := range files {
		h := pathHash(files[i].Path)
		if h < limit {
			files[i].Holdout = true
			held++
		}
		if h < pathHash(files[lowest].Path) {
			lowest = i
		}
		if h > pathHash(files[highest].Path) {
			highest = i
		}
	}
	switch held {
	case 0:
		files[lowest].Holdout = true
	case len(files):
		files[highest].Holdout = false
	}
}

// place gives every file its place in memory: the train stream first.
func (x *TextIndex) place(holdout float64) error {
	total := uint64(0)
	for _, f := range x.Files {
		total += uint64(f.Size) + 1
		if total > math.MaxInt {
			return fmt.Errorf("data: %s matches more than %d bytes, which no memory holds; use fewer files", x.Pattern, math.MaxInt)
		}
	}
	at := int64(0)
	for _, held := range []bool{false, true} {
		for i := range x.Files {
			if f := &x.Files[i]; f.Holdout == held {
				f.at = at
				at += f.Size + 1
			}
		}
		if !held {
			x.TrainBytes = at
		}
	}
	x.HoldoutBytes = at - x.TrainBytes
	if len(x.Files) == 1 && holdout > 0 {
		x.HoldoutBytes = int64(math.Ceil(float64(x.Files[0].Size)*holdout)) + 1
		x.TrainBytes = at - x.HoldoutBytes
	}
	return nil
}

// Bytes is the memory that Load allocates and keeps: one byte for each byte of text
// and one separator a file.
func (x *TextIndex) Bytes() int64 { return x.TrainBytes + x.HoldoutBytes }

// HoldoutFiles is the number of files held out.
func (x *TextIndex) HoldoutFiles() (n int) {
	for _, f := range x.Files {
		if f.Holdout {
			n++
		}
	}
	return n
}

func (x *TextIndex) path(f *TextFile) string {
	return filepath.Join(x.Root, filepath.FromSlash(f.Path))
}

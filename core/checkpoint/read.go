package checkpoint

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sort"
)

// Checkpoint is a committed checkpoint, open for reading. Its methods may be called
// from several goroutines at once.
type Checkpoint struct {
	path     string
	manifest *manifest
	trainer  []byte
	files    map[string]*os.File
	tensors  map[string]*stored
}

// stored is a tensor and where its pieces lie, sorted by offset.
type stored struct {
	info   Info
	size   int64 // bytes an element
	count  int64 // elements
	pieces []placed
}

type placed struct {
	file   *os.File
	at     int64 // byte of the piece's first element in the file
	offset int64 // first element
	count  int64
}

// Info describes a tensor of a checkpoint.
type Info struct {
	Name  string
	DType DType
	Shape []int
}

// Open opens the checkpoint in a folder. It checks the commit marker, the manifest,
// the trainer's state and every shard's size and header; Verify checks the rest.
func Open(path string) (*Checkpoint, error) {
	c, err := open(path)
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %s: %w", path, err)
	}
	return c, nil
}

func open(path string) (_ *Checkpoint, err error) {
	commit, err := readSmall(filepath.Join(path, commitName), 1<<10)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("there is no commit marker %s: it was never finished", commitName)
	}
	if err != nil {
		return nil, err
	}
	encoded, err := readSmall(filepath.Join(path, manifestName), maxManifest)
	if err != nil {
		return nil, err
	}
	if err := checkCommit(commit, encoded); err != nil {
		return nil, err
	}
	m, err := parseManifest(encoded)
	if err != nil {
		return nil, err
	}
	c := &Checkpoint{path: path, manifest: m, files: map[string]*os.File{}, tensors: map[string]*stored{}}
	defer func() {
		if err != nil {
			_ = c.Close()
		}
	}()
	placed := map[string]map[string]entry{} // by file and key
	for _, f := range m.Files {
		entries, err := c.openFile(f)
		if err != nil {
			return nil, err
		}
		placed[f.Name] = entries
	}
	for _, t := range m.Tensors {
		if err := c.place(t, placed); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// readSmall reads a whole file of at most limit bytes.
func readSmall(path string, limit int64) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > limit {
		return nil, fmt.Errorf("%s is no file of at most %d bytes", filepath.Base(path), limit)
	}
	return os.ReadFile(path)
}

// openFile opens one listed file and checks what can be checked without reading it
// all; a shard's entries come by key, each at its place in the file.
func (c *Checkpoint) openFile(f manifestFile) (map[string]entry, error) {
	path := filepath.Join(c.path, f.Name)
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() != f.Size {
		return nil, fmt.Errorf("%s has %d bytes, not %d: it is damaged", f.Name, info.Size(), f.Size)
	}
	if f.Name == trainerName {
		if c.trainer, err = os.ReadFile(path); err != nil {
			return nil, err
		}
		if sumOf(c.trainer) != f.SHA256 {
			return nil, fmt.Errorf("%s does not have the checksum that %s gives: it is damaged", f.Name, manifestName)
		}
		return nil, nil
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	c.files[f.Name] = file
	entries, _, start, err := readHeader(file, f.Size)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Name, err)
	}
	byKey := make(map[string]entry, len(entries))
	for _, e := range entries {
		e.Begin += start
		e.End += start
		byKey[e.Key] = e
	}
	return byKey, nil
}

func (c *Checkpoint) place(t manifestTensor, entries map[string]map[string]entry) error {
	count, err := elements(t.DType, t.Shape)
	if err != nil {
		return err
	}
	s := &stored{info: Info{t.Name, t.DType, t.Shape}, size: int64(t.DType.Size()), count: count}
	for _, p := range t.Pieces {
		key, shape, err := Piece{t.Name, t.DType, t.Shape, p.Offset, p.Count}.stored()
		if err != nil {
			return err
		}
		e, ok := entries[p.File][key]
		if !ok || e.DType != t.DType || !slices.Equal(e.Shape, shape) {
			return fmt.Errorf("%s does not hold %q as %s%v, which %s says it does", p.File, key, t.DType, shape, manifestName)
		}
		s.pieces = append(s.pieces, placed{c.files[p.File], e.Begin, p.Offset, p.Count})
	}
	c.tensors[t.Name] = s
	return nil
}

// Close closes the files.
func (c *Checkpoint) Close() error {
	var errs []error
	for _, f := range c.files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

// Path is the checkpoint's folder.
func (c *Checkpoint) Path() string { return c.path }

// Step is the optimizer step after which it was taken.
func (c *Checkpoint) Step() int64 { return c.manifest.Step }

// Trainer is the JSON document that was committed with it.
func (c *Checkpoint) Trainer() []byte { return c.trainer }

// Tensors lists the tensors, sorted by name.
func (c *Checkpoint) Tensors() []Info {
	out := make([]Info, len(c.manifest.Tensors))
	for i, t := range c.manifest.Tensors {
		out[i] = c.tensors[t.Name].info
	}
	return out
}

// Lookup describes the tensor called name, and says whether there is one.
func (c *Checkpoint) Lookup(name string) (Info, bool) {
	s, ok := c.tensors[name]
	if !ok {
		return Info{}, false
	}
	return s.info, true
}

// ReadRange fills dst with the elements of a tensor from element offset on. dst must be
// a whole number of elements that lie in the tensor. Nothing is padded, and nothing
// is converted: the caller compares Lookup's type and shape with its own.
func (c *Checkpoint) ReadRange(name string, offset int64, dst []byte) error {
	s, ok := c.tensors[name]
	if !ok {
		return fmt.Errorf("checkpoint: %s holds no tensor %q", c.path, name)
	}
	n := int64(len(dst)) / s.size
	if n*s.size != int64(len(dst)) || offset < 0 || offset > s.count || n > s.count-offset {
		return fmt.Errorf("checkpoint: %s: %d bytes from element %d are no range of %q, %s%v", c.path, len(dst), offset, name, s.info.DType, s.info.Shape)
	}
	k := sort.Search(len(s.pieces), func(k int) bool { return s.pieces[k].offset+s.pieces[k].count > offset })
	for len(dst) > 0 {
		p := s.pieces[k]
		skip := offset - p.offset
		take := min(int64(len(dst))/s.size, p.count-skip)
		if _, err := p.file.ReadAt(dst[:take*s.size], p.at+skip*s.size); err != nil {
			return fmt.Errorf("checkpoint: reading elements %d to %d of %q: %w", offset, offset+take-1, name, err)
		}
		dst = dst[take*s.size:]
		offset += take
		k++
	}
	return nil
}

// Verify reads every shard and compares its checksum. The error names the first
// damaged file.
func (c *Checkpoint) Verify(ctx context.Context) error {
	buf := make([]byte, 1<<20)
	for _, f := range c.manifest.Files {
		file, ok := c.files[f.Name]
		if !ok {
			continue // trainer.json, which Open has verified
		}
		hash := sha256.New()
		r := io.NewSectionReader(file, 0, f.Size)
		for {
			if ctx.Err() != nil {
				return fmt.Errorf("checkpoint: verifying %s: %w", c.path, context.Cause(ctx))
			}
			n, err := r.Read(buf)
			hash.Write(buf[:n])
			if err == io.EOF {
				break
			}
			if err != nil {
				return fmt.Errorf("checkpoint: %s: %w", c.path, err)
			}
		}
		if hex.EncodeToString(hash.Sum(nil)) != f.SHA256 {
			return fmt.Errorf("checkpoint: %s: %s does not have the checksum that %s gives: it is damaged", c.path, f.Name, manifestName)
		}
	}
	return nil
}

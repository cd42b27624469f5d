package checkpoint

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
)

// Shard is what one call of WriteShard wrote. It travels to the rank that commits, as
// JSON where the ranks are processes.
type Shard struct {
	File   string  `json:"file"` // name in the checkpoint's folder
	Size   int64   `json:"size"` // bytes
	SHA256 string  `json:"sha256"`
	Pieces []Piece `json:"pieces"`
}

func shardName(index int) string { return fmt.Sprintf("shard-%05d.safetensors", index) }

// chunkBytes is how much is written between two looks at the context.
const chunkBytes = 4 << 20

// WriteShard writes one rank's tensors, or pieces of them, as shard index of the
// checkpoint of step in dir. The file is on disk when it returns, and no part of a
// checkpoint until Commit. Ranks may write their shards at the same time.
func WriteShard(ctx context.Context, dir string, step int64, index int, tensors []Tensor) (Shard, error) {
	shard, err := writeShard(ctx, dir, step, index, tensors)
	if err != nil {
		return Shard{}, fmt.Errorf("checkpoint: writing shard %d of step %d in %s: %w", index, step, dir, explain(err))
	}
	return shard, nil
}

func writeShard(ctx context.Context, dir string, step int64, index int, tensors []Tensor) (Shard, error) {
	if step < 0 || index < 0 {
		return Shard{}, errors.New("steps and shards are numbered from 0")
	}
	entries, data, err := layout(tensors)
	if err != nil {
		return Shard{}, err
	}
	folder := filepath.Join(dir, tmpPrefix+stepName(step))
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return Shard{}, err
	}
	shard := Shard{File: shardName(index), Pieces: make([]Piece, len(data))}
	for i, t := range data {
		shard.Pieces[i] = t.piece()
	}
	metadata := map[string]string{
		"format":  formatName + "-shard",
		"version": strconv.Itoa(formatVersion),
		"step":    strconv.FormatInt(step, 10),
	}
	err = createFile(filepath.Join(folder, shard.File), func(file io.Writer) error {
		sum := summer{ctx: ctx, w: file, hash: sha256.New()}
		if err := writeTensors(&sum, entries, data, metadata); err != nil {
			return err
		}
		shard.Size = sum.size
		shard.SHA256 = hex.EncodeToString(sum.hash.Sum(nil))
		return nil
	})
	return shard, err
}

// summer writes in chunks and hashes and counts what it writes, until its context ends.
type summer struct {
	ctx  context.Context
	w    io.Writer
	hash interface {
		io.Writer
		Sum([]byte) []byte
	}
	size int64
}

func (s *summer) Write(p []byte) (int, error) {
	written := 0
	for len(p) > 0 {
		if s.ctx.Err() != nil {
			return written, context.Cause(s.ctx)
		}
		n, err := s.w.Write(p[:min(len(p), chunkBytes)])
		s.hash.Write(p[:n])
		s.size += int64(n)
		written += n
		if err != nil {
			return written, err
		}
		p = p[n:]
	}
	return written, nil
}

// Commit makes the checkpoint of step in dir out of shards, which must be all that
// its ranks wrote, and trainer, a JSON document. It fails, and leaves every other
// checkpoint as it was, where a shard is missing or an element of a tensor is in
// no shard or in two. A checkpoint of the same step is replaced. The result is the
// checkpoint's folder.
func Commit(dir string, step int64, trainer []byte, shards []Shard) (path string, err error) {
	path, err = commit(dir, step, trainer, shards)
	if err != nil {
		return "", fmt.Errorf("checkpoint: committing step %d in %s: %w", step, dir, explain(err))
	}
	return path, nil
}

func commit(dir string, step int64, trainer []byte, shards []Shard) (string, error) {
	if !json.Valid(trainer) {
		return "", errors.New("the trainer's state is no JSON document")
	}
	name := stepName(step)
	folder := filepath.Join(dir, tmpPrefix+name)
	files := []manifestFile{{Name: trainerName, Size: int64(len(trainer)), SHA256: sumOf(trainer)}}
	for _, s := range shards {
		files = append(files, manifestFile{Name: s.File, Size: s.Size, SHA256: s.SHA256})
	}
	m := newManifest(step, files, shards)
	if err := m.validate(); err != nil {
		return "", err
	}
	encoded, err := m.encode()
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return "", err
	}
	if err := tidy(folder, shards); err != nil {
		return "", err
	}
	for name, content := range map[string][]byte{trainerName: trainer, manifestName: encoded} {
		if err := createFile(filepath.Join(folder, name), writing(content)); err != nil {
			return "", err
		}
	}
	if err := syncDir(folder); err != nil {
		return "", err
	}
	if err := replaceFile(filepath.Join(folder, commitName), writing(commitLine(encoded))); err != nil {
		return "", err
	}
	if err := syncDir(folder); err != nil {
		return "", err
	}
	return publish(dir, name)
}

func writing(content []byte) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := w.Write(content)
		return err
	}
}

// tidy checks that the shards are there with their sizes, and removes what an earlier
// attempt at this step left behind.
func tidy(folder string, shards []Shard) error {
	sizes := map[string]int64{}
	for _, s := range shards {
		sizes[s.File] = s.Size
	}
	found, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	for _, f := range found {
		want, listed := sizes[f.Name()]
		if !listed {
			if err := os.RemoveAll(filepath.Join(folder, f.Name())); err != nil {
				return err
			}
			continue
		}
		info, err := f.Info()
		if err != nil {
			return err
		}
		if info.Size() != want {
			return fmt.Errorf("%s has %d bytes, its rank wrote %d", f.Name(), info.Size(), want)
		}
		delete(sizes, f.Name())
	}
	for name := range sizes {
		return fmt.Errorf("%s is not there; do all ranks write to the same folder?", name)
	}
	return nil
}

// publish gives a finished folder its name.
func publish(dir, name string) (string, error) {
	path, old := filepath.Join(dir, name), filepath.Join(dir, oldPrefix+name)
	switch _, err := os.Lstat(path); {
	case err == nil:
		// An .old folder beside a checkpoint of its step is a leftover: see recoverOld.
		if err := os.RemoveAll(old); err != nil {
			return "", err
		}
		if err := os.Rename(path, old); err != nil {
			return "", err
		}
	case !errors.Is(err, os.ErrNotExist):
		return "", err
	}
	if err := os.Rename(filepath.Join(dir, tmpPrefix+name), path); err != nil {
		return "", err
	}
	if err := syncDir(dir); err != nil {
		return "", err
	}
	return path, os.RemoveAll(old)
}

// Discard removes what WriteShard wrote for a step that will not be committed.
func Discard(dir string, step int64) error {
	if err := os.RemoveAll(filepath.Join(dir, tmpPrefix+stepName(step))); err != nil {
		return fmt.Errorf("checkpoint: removing the unfinished step %d: %w", step, err)
	}
	return nil
}

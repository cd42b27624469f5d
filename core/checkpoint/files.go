package checkpoint

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
)

// createFile writes a new file through write and syncs it to disk. A file that fails
// is removed again, which also frees a full disk.
func createFile(path string, write func(io.Writer) error) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	err = write(file)
	if err == nil {
		err = file.Sync()
	}
	if closing := file.Close(); err == nil {
		err = closing
	}
	if err != nil {
		_ = os.Remove(path)
	}
	return err
}

// replaceFile puts a new file at path in one step: written beside it, synced, renamed.
// The folder is not synced.
func replaceFile(path string, write func(io.Writer) error) error {
	beside := filepath.Join(filepath.Dir(path), ".new-"+filepath.Base(path))
	if err := createFile(beside, write); err != nil {
		return err
	}
	if err := os.Rename(beside, path); err != nil {
		_ = os.Remove(beside)
		return err
	}
	return nil
}

// syncDir makes the names in a folder durable. Windows has no such call and needs none.
func syncDir(path string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	dir, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("checkpoint: syncing a folder: %w", err)
	}
	defer dir.Close()
	if err := dir.Sync(); err != nil {
		return fmt.Errorf("checkpoint: syncing a folder: %w", err)
	}
	return nil
}

// explain adds to an error from the disk what a person can do about it.
func explain(err error) error {
	switch {
	case errors.Is(err, syscall.ENOSPC):
		return fmt.Errorf("%w: the disk is full; free some space, or keep fewer checkpoints", err)
	case errors.Is(err, syscall.EROFS), errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w: the folder cannot be written; check its owner, its permissions and how its disk is mounted", err)
	}
	return err
}

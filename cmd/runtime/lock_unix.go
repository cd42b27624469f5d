//go:build unix

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// lockFile is held by the launcher of a run for as long as it lives, so that no second one writes to the folder.
const lockFile = "lock"

// lockFolder takes the folder of a run; the system lets go of it when the process ends, however it ends.
func lockFolder(dir string) (unlock func(), err error) {
	path := filepath.Join(dir, lockFile)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("run folder: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer f.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return func() {}, nil // a file system without locks
		}
		by, _ := os.ReadFile(path)
		return nil, fmt.Errorf("the run in %s is going on already (process %s); wait for it, or stop it first", dir, strings.TrimSpace(string(by)))
	}
	err = f.Truncate(0)
	if err == nil {
		_, err = fmt.Fprintf(f, "%d\n", os.Getpid())
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("run folder: %w", err)
	}
	return func() { f.Close() }, nil
}

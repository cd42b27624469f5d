package cpu

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// reserveFile makes the file so long and takes the room on the disk, so that a full disk shows now and not in the middle of a
// step as a signal.
func reserveFile(f *os.File, bytes int64) error {
	err := unix.Fallocate(int(f.Fd()), 0, 0, bytes)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return f.Truncate(bytes)
	}
	return err
}

package main

import (
	"strconv"

	"golang.org/x/sys/unix"
)

// limits reads the system's limits for this process.
func (d *diagnosis) limits() {
	var fs unix.Statfs_t
	if unix.Statfs("/dev/shm", &fs) == nil {
		d.Shm = int64(fs.Blocks) * fs.Bsize
	}
	of := func(resource int, unit uint64) string {
		var l unix.Rlimit
		switch err := unix.Getrlimit(resource, &l); {
		case err != nil:
			return err.Error()
		case l.Cur == unix.RLIM_INFINITY:
			return "unlimited"
		case unit == 1:
			return strconv.FormatUint(l.Cur, 10)
		}
		return bytesText(int64(l.Cur))
	}
	d.Memlock, d.Files = of(unix.RLIMIT_MEMLOCK, 1024), of(unix.RLIMIT_NOFILE, 1)
}

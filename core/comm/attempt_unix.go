//go:build linux || darwin

package comm

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// canAttempt says whether this system has attemptAll.
const canAttempt = true

// attemptAll writes what is to be written as far as the connection takes it at once. Errors are left to the writer, which meets them again.
func (w *writing) attemptAll() (n int64, all bool) {
	if w.attempt == nil { // made once
		w.attempt = func(fd uintptr) bool {
			for len(w.rest) > 0 {
				n, err := unix.Writev(int(fd), w.rest)
				if err == unix.EINTR {
					continue
				}
				if err != nil || n <= 0 {
					break
				}
				w.moved += int64(n)
				w.skip(n)
			}
			return true
		}
	}
	w.moved = 0
	for !w.over() {
		if w.next() != nil {
			break
		}
		if _ = w.raw.Write(w.attempt); len(w.rest) > 0 {
			break
		}
	}
	return w.moved, w.over()
}

// skip takes n bytes off the front of what is left.
func (w *writing) skip(n int) {
	for n > 0 {
		if k := len(w.rest[0]); n < k {
			w.rest[0] = w.rest[0][n:]
			return
		} else {
			n -= k
		}
		w.rest = w.rest[1:]
	}
}

// attemptOnce reads what is there, 0 bytes if nothing is.
func (rd *reading) attemptOnce(raw syscall.RawConn, b []byte) int {
	if rd.attempt == nil {
		rd.attempt = func(fd uintptr) bool {
			rd.n, _ = unix.Read(int(fd), rd.buf) // -1 with an error
			return true
		}
	}
	rd.buf, rd.n = b, 0
	_ = raw.Read(rd.attempt)
	rd.buf = nil
	return rd.n
}

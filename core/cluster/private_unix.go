//go:build unix

package cluster

import (
	"io/fs"
	"syscall"
)

// readableByOthers are the bits of a file's mode that let others at it. A file of root's may be read by its group: that is how
// Kubernetes hands a secret to a process that is not root (fsGroup).
func readableByOthers(info fs.FileInfo) fs.FileMode {
	if s, ok := info.Sys().(*syscall.Stat_t); ok && s.Uid == 0 {
		return 0o037
	}
	return 0o077
}
